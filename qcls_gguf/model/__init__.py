"""Which model: its file, header, identity, place on devices; and the open model that engines share."""

from .files import ModelFile
from .find import find_model
from .open import Model, OpenModels, Vocabulary

__all__ = ["Model", "ModelFile", "OpenModels", "Vocabulary", "find_model"]
