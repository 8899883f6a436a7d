"""The compiled part: the patched llama.cpp and the C shim. This is the only package that uses ctypes."""

from .context import ContextLimits, ContextMemory, ContextSettings, NativeContext, measure_context, n_contexts_on_gpus
from .device import Device, devices
from .library import build_info
from .model import NativeModel

__all__ = [
    "ContextLimits",
    "ContextMemory",
    "ContextSettings",
    "Device",
    "NativeContext",
    "NativeModel",
    "build_info",
    "devices",
    "measure_context",
    "n_contexts_on_gpus",
]
