"""PyTorch with transformers: prefixes in an expanded KV cache, one forward for all prompts, label rows of the head.

A row of the batch is a prompt and a path of its label trie, which is fed after it; most prompts have one row, with an
empty path. It begins with its prompt's cached keys and values. Its new tokens are padded to one of a few lengths, the
buckets, and on a GPU each bucket is a CUDA graph.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.header import read_header
from . import Peers
from .method import AbsentError, Answer, Method, Workload, WorkloadPrompt

_BUCKETS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""transformers' names of a Qwen3's sizes, and GGUF's"""


def bucket_size(n_tokens: int) -> int:
    """The padded length of a row of n_tokens new tokens."""
    return next((size for size in _BUCKETS if size >= n_tokens), -(-n_tokens // 128) * 128)


@dataclass(frozen=True, slots=True)
class Read:
    """A trie node at which labels part."""

    row: int
    """the row of the batch that holds it"""
    depth: int
    """tokens of the label before it"""
    tokens: npt.NDArray[np.intp]
    """of the edges that begin there"""


def row_layout(prompts: tuple[WorkloadPrompt, ...]) -> tuple[list[tuple[int, tuple[int, ...]]], list[Read]]:
    """The rows for all paths of all prompts' label tries, each (index of the prompt, label tokens), and their reads."""
    rows: list[tuple[int, tuple[int, ...]]] = []
    reads = []
    for index, prompt in enumerate(prompts):
        inner = {parent for parent, _ in prompt.trie.fed}
        paths = [prompt.node_path(node) for node in range(len(prompt.trie.fed) + 1) if node not in inner]
        for node, tokens in zip(prompt.trie.read, prompt.edge_tokens, strict=True):
            start = prompt.node_path(node)
            row = next(i for i, path in enumerate(paths) if path[: len(start)] == start)
            reads.append(Read(len(rows) + row, len(start), tokens))
        rows += [(index, path) for path in paths]
    return rows, reads


class CacheLayer:
    """One layer's keys and values, (n_rows, n_heads, n_prefix + bucket, n_dims); new ones follow the prefixes.

    It has the attributes and methods that transformers asks of a layer of its `Cache`.
    """

    is_compileable = is_sliding = is_croppable = supports_early_init = False
    is_initialized = True

    def __init__(self, keys: Any, values: Any, n_prefix: int) -> None:
        self.keys, self.values, self._n_prefix = keys, values, n_prefix

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


class _Bucket:
    """The tensors of a batch whose rows are padded to one length. On a GPU a CUDA graph reads and writes them."""

    def __init__(self, n_rows: int, size: int, n_reads: int, zeros: Callable[..., Any]) -> None:
        self.ids = zeros((n_rows, size))
        """tokens"""
        self.n_cached = zeros((n_rows, 1))
        """how many tokens of its prefix each row follows"""
        self.at = zeros(n_reads)
        """which token of its row each read needs the hidden state of"""
        self.hidden: Any = None
        """(n_reads, n_embd), computed by a forward"""
        self.edges: Any = None
        """(n_edges,) logits, computed by a forward"""
        self.graph: Any = None


class Torch(Method):
    """One forward of (n_rows, bucket) tokens."""

    def __init__(self, workload: Workload, peers: Peers) -> None:
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                raise AbsentError(f"{package} is not installed: pip install torch transformers")
        if peers.hf_folder is None and not peers.synthetic:
            raise AbsentError(
                "no weights: give the model's folder, as transformers reads it, as `hf_folder`, or `synthetic` for "
                "random weights of the same shape"
            )
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self._workload, self._torch, self._peers = workload, torch, peers
        self.comparable = not peers.synthetic
        self._cuda = torch.cuda.is_available() and workload.model.n_gpu_layers > 0
        self._device = torch.device("cuda" if self._cuda else "cpu")
        self._dtype = torch.float16 if self._cuda else torch.float32
        torch.set_num_threads(workload.n_threads)
        with torch.inference_mode():
            self._model = self._load(transformers)
            self._head = self._model.get_output_embeddings().weight
            self._prepare(transformers)

    def _load(self, transformers: Any) -> Any:
        auto = transformers.AutoModelForCausalLM
        options = {"attn_implementation": "sdpa", "dtype": self._dtype}
        if self._peers.hf_folder is not None:
            model = auto.from_pretrained(self._peers.hf_folder, local_files_only=True, **options)
        else:
            with self._torch.device(self._device):
                model = auto.from_config(self._shape(transformers), **options)
        return model.to(self._device).eval()

    def _shape(self, transformers: Any) -> Any:
        """The configuration of a Qwen3 of the GGUF file's shape."""
        header = read_header(Path(self._workload.model.path))
        if header.arch != "qwen3":
            raise AbsentError(
                f"`synthetic` knows the shape of qwen3 only, and the model is {header.arch}: give `hf_folder`"
            )
        return transformers.Qwen3Config(
            vocab_size=header.tensors["token_embd.weight"].shape[1],
            tie_word_embeddings="output.weight" not in header.tensors,
            **{name: header.scalars[f"qwen3.{key}"] for name, key in _SIZES.items()},
        )

    def _prepare(self, transformers: Any) -> None:
        """Lay out the rows, compute the prefixes, and run every bucket that the queries need."""
        torch, prompts = self._torch, self._workload.prompts
        self._rows, self._reads = row_layout(prompts)
        edges = np.concatenate([read.tokens for read in self._reads])
        if (largest := edges.max()) >= self._head.shape[0]:
            raise AbsentError(f"the weights have {self._head.shape[0]} tokens, and a label has token {largest}")
        read_of_edge = np.repeat(np.arange(len(self._reads)), [len(read.tokens) for read in self._reads])
        self._row_of_read = torch.tensor([read.row for read in self._reads], device=self._device)
        self._read_of_edge = torch.tensor(read_of_edge, device=self._device)
        self._edge_rows = self._head[torch.tensor(edges, device=self._device)].float()
        self._n_prefix = max(len(prompt.compiled.prefix) for prompt in prompts)
        longest = [max(map(len, self._new_tokens(query)[1])) for query in self._workload.inputs]
        self._sizes = sorted(set(map(bucket_size, longest)))
        self._cache = self._prefixes(transformers, self._sizes[-1])
        self._buckets = {size: self._bucket(size) for size in self._sizes}

    def _prefixes(self, transformers: Any, n_new: int) -> Any:
        """The cache of all rows, each prompt's prefix computed once."""
        torch, config = self._torch, self._model.config
        n_dims = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(self._rows), config.num_key_value_heads, self._n_prefix + n_new, n_dims)
        options = {"dtype": self._dtype, "device": self._device}
        layers = [
            CacheLayer(torch.zeros(shape, **options), torch.zeros(shape, **options), self._n_prefix)
            for _ in range(config.num_hidden_layers)
        ]
        for index, prompt in enumerate(self._workload.prompts):
            if not prompt.compiled.prefix:
                continue
            ids = torch.tensor([prompt.compiled.prefix], device=self._device)
            cache = transformers.DynamicCache()
            self._model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
            rows = [i for i, (of_prompt, _) in enumerate(self._rows) if of_prompt == index]
            for layer, stored in zip(layers, cache.layers, strict=True):
                layer.keys[rows, :, : ids.shape[1]] = stored.keys
                layer.values[rows, :, : ids.shape[1]] = stored.values
        return transformers.cache_utils.Cache(layers=layers)

    def _new_tokens(self, query: str) -> tuple[list[list[int]], list[list[int]]]:
        """For each row how many tokens of its prefix stay, and the tokens after them."""
        by_prompt = self._workload.inputs[query]
        n_cached = [[by_prompt[index][0]] for index, _ in self._rows]
        return n_cached, [[*by_prompt[index][1], *path] for index, path in self._rows]

    def _bucket(self, size: int) -> _Bucket:
        """The buffers of a bucket, and its CUDA graph where there is a GPU."""
        torch = self._torch
        zeros = partial(torch.zeros, dtype=torch.long, device=self._device)
        bucket = _Bucket(len(self._rows), size, len(self._reads), zeros)
        self._forward(bucket)
        if self._cuda:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._forward(bucket)
            torch.cuda.current_stream().wait_stream(stream)
            bucket.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(bucket.graph):
                self._forward(bucket)
        return bucket

    def _forward(self, bucket: _Bucket) -> None:
        """Hidden states at the read nodes, and the logits of their edges, into the bucket."""
        torch, (n_rows, size) = self._torch, bucket.ids.shape
        new = torch.arange(size, device=self._device)
        # a token attends to its row's own prefix, and to the new tokens up to itself
        past = torch.arange(self._n_prefix, device=self._device) < bucket.n_cached
        up_to = new <= new[:, None]
        mask = torch.cat([past[:, None].expand(-1, size, -1), up_to.expand(n_rows, -1, -1)], dim=2)
        hidden = self._model.base_model(
            input_ids=bucket.ids,
            attention_mask=mask[:, None],
            position_ids=bucket.n_cached + new,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        bucket.hidden = hidden[self._row_of_read, bucket.at]
        bucket.edges = (bucket.hidden.float()[self._read_of_edge] * self._edge_rows).sum(-1)

    def _run(self, query: str) -> _Bucket:
        torch = self._torch
        n_cached, tokens = self._new_tokens(query)
        size = bucket_size(max(map(len, tokens)))
        bucket = self._buckets[size]
        at = [len(tokens[read.row]) - len(self._rows[read.row][1]) - 1 + read.depth for read in self._reads]
        bucket.ids.copy_(torch.tensor([row + [0] * (size - len(row)) for row in tokens]))
        bucket.n_cached.copy_(torch.tensor(n_cached))
        bucket.at.copy_(torch.tensor(at))
        if self._cuda:
            bucket.graph.replay()
        else:
            self._forward(bucket)
        return bucket

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        with self._torch.inference_mode():
            bucket = self._run(query)
            edges = bucket.edges.cpu().numpy()
            sums = self._torch.logsumexp((bucket.hidden @ self._head.T).float(), -1).tolist() if exact else []
        by_read = np.split(edges, np.cumsum([len(read.tokens) for read in self._reads])[:-1])
        answers, n = [], 0
        for prompt in self._workload.prompts:
            end = n + len(prompt.trie.read)
            answers.append(prompt.answer(by_read[n:end], sums[n:end]))
            n = end
        return answers

    def remarks(self) -> list[str]:
        where = "float16, a CUDA graph a bucket" if self._cuda else "float32 on the CPU"
        weights = (
            "weights that are not quantised, unless the folder's are"
            if self.comparable
            else "random weights of the same shape, so that its answers are not comparable"
        )
        sizes = ", ".join(map(str, self._sizes))
        return [f"{where}; {weights}; new tokens padded to {sizes}; tokenised by this package, whose time is added"]
