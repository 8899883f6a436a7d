"""The compiled part: the patched llama.cpp and the C shim. This is the only package that uses ctypes."""

from .context import ContextMemory, NativeContext
from .device import Device, devices
from .library import build_info
from .model import NativeModel

__all__ = ["ContextMemory", "Device", "NativeContext", "NativeModel", "build_info", "devices"]
