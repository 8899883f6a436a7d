"""The compiled part: the patched llama.cpp and the C shim. This is the only package that uses ctypes."""

from .context import Counters, NativeContext, OutputSteps, n_contexts_on_gpus
from .context_settings import ContextMemory, ContextSettings, measure_context
from .device import Device, Probed, devices, probe_copy, probe_matmul, probe_multiply, probe_read, sees_cuda_gpu
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
    "ModelFacts",
    "NativeContext",
    "NativeModel",
    "OutputSteps",
    "Probed",
    "TrieScores",
    "build_info",
    "dequantised",
    "devices",
    "library_folder",
    "measure_context",
    "n_contexts_on_gpus",
    "probe_copy",
    "probe_matmul",
    "probe_multiply",
    "probe_read",
    "sees_cuda_gpu",
    "set_log",
    "type_block",
]
