"""The compiled part: the patched llama.cpp, the C shim, and their ctypes border."""

from ._lib import BuildInfo, Counters, Device, NativeContext, NativeModel, build_info, devices, library_folder, set_log

__all__ = [
    "BuildInfo",
    "Counters",
    "Device",
    "NativeContext",
    "NativeModel",
    "build_info",
    "devices",
    "library_folder",
    "set_log",
]
