"""How prompts and labels become the rows of one batch for PyTorch, and the key-value cache that the batch extends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .method import WorkloadPrompt

_BUCKETS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)


def bucket_size(n_tokens: int) -> int:
    """The padded length of a row of n_tokens new tokens."""
    return next((size for size in _BUCKETS if size >= n_tokens), -(-n_tokens // 128) * 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the batch: a prompt and a path of its label trie. Most prompts have one row, with an empty path."""

    prompt: int
    path: tuple[int, ...]
    """label tokens that are fed behind the prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The rows of all prompts, and what the scores read in them: a read is a trie node at which labels part."""

    rows: tuple[Row, ...]
    row_of_read: npt.NDArray[np.int64]
    """(n_reads,) the row that holds each node"""
    depth_of_read: npt.NDArray[np.int64]
    """(n_reads,) tokens of the label before each node"""
    read_of_edge: npt.NDArray[np.int64]
    """(n_edges,) the read that each edge of a trie begins at"""
    token_of_edge: npt.NDArray[np.int64]
    """(n_edges,)"""


def row_layout(prompts: Sequence[WorkloadPrompt]) -> RowLayout:
    """The rows for all paths of all prompts' label tries, in the order of the prompts."""
    rows: list[Row] = []
    row_of_read: list[int] = []
    depth_of_read: list[int] = []
    read_of_edge: list[int] = []
    token_of_edge: list[int] = []
    for index, prompt in enumerate(prompts):
        reader = prompt.reader
        inner = {parent for parent, _ in reader.trie.fed}
        ends = [node for node in range(len(reader.trie.fed) + 1) if node not in inner]
        paths = [reader.node_path(node) for node in ends]
        first = len(rows)
        rows += [Row(prompt=index, path=path) for path in paths]
        for node, tokens in zip(reader.trie.read, reader.edge_tokens, strict=True):
            start = reader.node_path(node)
            read_of_edge += [len(row_of_read)] * len(tokens)
            token_of_edge += tokens.tolist()
            row_of_read.append(first + next(i for i, path in enumerate(paths) if path[: len(start)] == start))
            depth_of_read.append(len(start))
    return RowLayout(
        rows=tuple(rows),
        row_of_read=np.array(row_of_read),
        depth_of_read=np.array(depth_of_read),
        read_of_edge=np.array(read_of_edge),
        token_of_edge=np.array(token_of_edge),
    )


class CacheLayer:
    """One layer's keys and values, (n_rows, n_heads, n_prefix + bucket, n_dims); new ones go behind the prefixes.

    It has the attributes and methods that transformers asks of a layer of its `Cache`.
    """

    is_compileable = False
    is_sliding = False
    is_croppable = False
    supports_early_init = False
    is_initialized = True

    def __init__(self, keys: Any, values: Any, n_prefix: int) -> None:
        self.keys = keys
        self.values = values
        self._n_prefix = n_prefix

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        end = self._n_prefix + keys.shape[2]
        self.keys[:, :, self._n_prefix : end].copy_(keys)
        self.values[:, :, self._n_prefix : end].copy_(values)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self, *_: Any) -> int:
        return self._n_prefix

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return int(self.keys.shape[2]), 0

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])
