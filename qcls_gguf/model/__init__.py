"""Which model: the file, the hub, its header, its identity, and the open model that engines share."""

from .open import Model, OpenModels, find_model

__all__ = ["Model", "OpenModels", "find_model"]
