"""The compiled part: the patched llama.cpp, the C shim, and their ctypes border."""

from ._lib import (
    BuildInfo,
    Counters,
    Device,
    NativeContext,
    NativeModel,
    Probed,
    TrieScores,
    build_info,
    devices,
    library_folder,
    probe_copy,
    probe_matmul,
    set_log,
)

__all__ = [
    "BuildInfo",
    "Counters",
    "Device",
    "NativeContext",
    "NativeModel",
    "Probed",
    "TrieScores",
    "build_info",
    "devices",
    "library_folder",
    "probe_copy",
    "probe_matmul",
    "set_log",
]
