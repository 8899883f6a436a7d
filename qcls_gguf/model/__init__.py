"""Which model: the file, the hub, its header, its identity, and the open model that engines share."""

from .find import find_model
from .open import Model
from .open_models import OpenModels

__all__ = ["Model", "OpenModels", "find_model"]
