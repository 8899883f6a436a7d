"""The compiled part: the patched llama.cpp, the C shim, and their ctypes border."""

from ._lib import (
    BuildInfo,
    Counters,
    Device,
    Multiprocessors,
    NativeContext,
    NativeModel,
    Probed,
    TrieScores,
    build_info,
    devices,
    library_folder,
    max_sequences,
    multiprocessors,
    probe_copy,
    probe_matmul,
    set_log,
)

__all__ = [
    "BuildInfo",
    "Counters",
    "Device",
    "Multiprocessors",
    "NativeContext",
    "NativeModel",
    "Probed",
    "TrieScores",
    "build_info",
    "devices",
    "library_folder",
    "max_sequences",
    "multiprocessors",
    "probe_copy",
    "probe_matmul",
    "set_log",
]
