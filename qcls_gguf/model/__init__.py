"""Which model: the file, the hub, its header, its identity, and the open model that engines share."""

from .open import Model, find_model
from .open_models import OpenModels

__all__ = ["Model", "OpenModels", "find_model"]
