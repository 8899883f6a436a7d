"""The compiled part: the patched llama.cpp and the C shim. This is the only package that uses ctypes."""

from .abi import WeightOrder
from .context import Counters, HeadTail, NativeContext, max_sequences, n_contexts_on_gpus
from .context_settings import ContextMemory, ContextSettings, measure_context
from .device import Device, Multiprocessors, Probed, devices, multiprocessors, probe_copy, probe_matmul
from .library import BuildInfo, build_info, library_folder, set_log
from .model import ModelFacts, NativeModel
from .tensor_types import dequantised, type_block
from .trie import TrieScores

__all__ = [
    "BuildInfo",
    "ContextMemory",
    "ContextSettings",
    "Counters",
    "Device",
    "HeadTail",
    "ModelFacts",
    "Multiprocessors",
    "NativeContext",
    "NativeModel",
    "Probed",
    "TrieScores",
    "WeightOrder",
    "build_info",
    "dequantised",
    "devices",
    "library_folder",
    "max_sequences",
    "measure_context",
    "multiprocessors",
    "n_contexts_on_gpus",
    "probe_copy",
    "probe_matmul",
    "set_log",
    "type_block",
]
