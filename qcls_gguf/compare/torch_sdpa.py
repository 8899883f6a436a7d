"""PyTorch with transformers: prefixes in an expanded KV cache, one forward for all prompts, label rows of the head.

A row of the batch is a path of a prompt's label trie; most prompts have one. Rows begin with their prompt's cached keys
and values, new tokens are padded to a bucket's length, and on a GPU each bucket is a CUDA graph.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..model.header import read_header
from .way import AbsentError, Answer, Task, Way

_BUCKETS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)


def bucket(n_tokens: int) -> int:
    """The padded length of a row of n_tokens new tokens."""
    return next((size for size in _BUCKETS if size >= n_tokens), -(-n_tokens // 128) * 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    prompt: int
    path: tuple[int, ...]
    """what is fed behind the prompt"""


class _Layer:
    """One layer's keys and values, (n_rows, n_heads, n_prefix + bucket, n_dims); new ones go behind the prefixes."""

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


class TorchSdpa(Way):
    """One forward of (n_rows, bucket) tokens."""

    name: ClassVar[str] = "torch"
    about: ClassVar[str] = (
        "PyTorch SDPA, prefixes in an expanded KV cache, one forward for all prompts, hidden states · label rows"
    )

    def __init__(self, task: Task, folder: Path | None = None, *, synthetic: bool = False) -> None:
        super().__init__(task)
        self._folder = folder
        self._synthetic = synthetic
        self.comparable = not synthetic

    def start(self) -> None:
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                raise AbsentError(f"{package} is not installed: pip install torch transformers")
        if self._folder is None and not self._synthetic:
            raise AbsentError(
                "no weights: give the model's folder, as transformers reads it, as `hf_folder`, or `synthetic` for "
                "random weights of the same shape"
            )
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        self._cuda = torch.cuda.is_available() and self.task.n_gpu_layers > 0
        self._device = torch.device("cuda" if self._cuda else "cpu")
        self._dtype = torch.float16 if self._cuda else torch.float32
        torch.set_num_threads(self.task.n_threads)
        with torch.inference_mode():
            self._model = self._load(transformers)
            self._head = self._model.get_output_embeddings().weight
            self._prepare(transformers)

    def _load(self, transformers: Any) -> Any:
        auto = transformers.AutoModelForCausalLM
        options = {"attn_implementation": "sdpa", "dtype": self._dtype}
        if self._folder is not None:
            model = auto.from_pretrained(self._folder, local_files_only=True, **options)
        else:
            with self._torch.device(self._device):
                model = auto.from_config(self._shape(transformers), **options)
        return model.to(self._device).eval()

    def _shape(self, transformers: Any) -> Any:
        """The configuration of a Qwen3 of the GGUF file's shape."""
        header = read_header(self.task.model_path)
        if header.arch != "qwen3":
            raise AbsentError(
                f"`synthetic` knows the shape of qwen3 only, and the model is {header.arch}: give `hf_folder`"
            )

        def value(key: str) -> Any:
            return header.scalars[f"qwen3.{key}"]

        return transformers.Qwen3Config(
            vocab_size=self.task.classifier.parts.engine.model.facts.n_vocab,
            hidden_size=value("embedding_length"),
            intermediate_size=value("feed_forward_length"),
            num_hidden_layers=value("block_count"),
            num_attention_heads=value("attention.head_count"),
            num_key_value_heads=value("attention.head_count_kv"),
            head_dim=value("attention.key_length"),
            max_position_embeddings=value("context_length"),
            rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
            tie_word_embeddings="output.weight" not in header.tensors,
        )

    def _prepare(self, transformers: Any) -> None:
        """Lay out the rows, compute the prefixes, and run every bucket that the queries need."""
        torch, prompts = self._torch, self.task.prompts
        self._rows: list[_Row] = []
        row_of: list[int] = []
        depth_of: list[int] = []
        edge_token: list[int] = []
        edge_read: list[int] = []
        for index, prompt in enumerate(prompts):
            reader = prompt.reader
            inner = {parent for parent, _ in reader.trie.fed}
            ends = [node for node in range(len(reader.trie.fed) + 1) if node not in inner]
            paths = [reader.node_path(node) for node in ends]
            first = len(self._rows)
            self._rows += [_Row(prompt=index, path=path) for path in paths]
            for node, tokens in zip(reader.trie.read, reader.edge_tokens, strict=True):
                way = reader.node_path(node)
                edge_read += [len(row_of)] * len(tokens)
                edge_token += tokens.tolist()
                row_of.append(first + next(i for i, path in enumerate(paths) if path[: len(way)] == way))
                depth_of.append(len(way))
        if max(edge_token) >= self._head.shape[0]:
            raise AbsentError(f"the weights have {self._head.shape[0]} tokens, and a label has token {max(edge_token)}")
        self._row_of = torch.tensor(row_of, device=self._device)
        self._depth_of = np.array(depth_of)
        self._reads_of_row = np.array(row_of)
        self._edge_read = torch.tensor(edge_read, device=self._device)
        self._edge_rows = self._head[torch.tensor(edge_token, device=self._device)].float()
        self._n_prefix = np.array([len(prompts[row.prompt].compiled.prefix) for row in self._rows])
        requests = [self._new_tokens(query) for query in self.task.queries]
        sizes = sorted({bucket(max(map(len, tokens))) for _, tokens in requests})
        self._cache = self._prefixes(transformers, max(sizes))
        self._buckets = {size: self._bucket(size) for size in sizes}

    def _prefixes(self, transformers: Any, n_new: int) -> Any:
        """The cache of all rows, each prompt's prefix computed once."""
        torch, widest = self._torch, int(self._n_prefix.max())
        layers: list[_Layer] = []
        stored: dict[int, Any] = {}
        for index, prompt in enumerate(self.task.prompts):
            if prompt.compiled.prefix:
                ids = torch.tensor([prompt.compiled.prefix], device=self._device)
                cache = transformers.DynamicCache()
                self._model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
                stored[index] = [(layer.keys, layer.values) for layer in cache.layers]
        config = self._model.config
        n_heads = config.num_key_value_heads
        n_dims = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(self._rows), n_heads, widest + n_new, n_dims)
        for layer in range(config.num_hidden_layers):
            both = torch.zeros((2, *shape), dtype=self._dtype, device=self._device)
            for i, row in enumerate(self._rows):
                if row.prompt in stored:
                    for part, found in zip(both, stored[row.prompt][layer], strict=True):
                        part[i, :, : found.shape[2]] = found[0]
            layers.append(_Layer(both[0], both[1], widest))
        return transformers.cache_utils.Cache(layers=layers)

    def _new_tokens(self, query: str) -> tuple[npt.NDArray[np.int64], list[list[int]]]:
        """For each row how many tokens of its prefix stay, and the tokens behind them."""
        found = [self.task.tokens(prompt.compiled, query) for prompt in self.task.prompts]
        n_cached = np.array([found[row.prompt][0] for row in self._rows])
        return n_cached, [[*found[row.prompt][1], *row.path] for row in self._rows]

    def _mask(self, n_cached: npt.NDArray[np.int64], size: int) -> Any:
        """(n_rows, 1, size, n_prefix + size): a row's own prefix, and its new tokens up to each one."""
        torch, widest = self._torch, int(self._n_prefix.max())
        prefix = np.arange(widest)[None, :] < n_cached[:, None]
        past = np.broadcast_to(prefix[:, None, :], (len(n_cached), size, widest))
        new = np.broadcast_to(np.tril(np.ones((size, size), bool)), (len(n_cached), size, size))
        return torch.from_numpy(np.concatenate([past, new], axis=2)[:, None]).to(self._device)

    def _bucket(self, size: int) -> dict[str, Any]:
        """The buffers of a bucket, and its CUDA graph where there is a GPU."""
        torch, n = self._torch, len(self._rows)
        made: dict[str, Any] = {
            "ids": torch.zeros((n, size), dtype=torch.long, device=self._device),
            "pos": torch.zeros((n, size), dtype=torch.long, device=self._device),
            "at": torch.zeros(len(self._depth_of), dtype=torch.long, device=self._device),
            "mask": self._mask(self._n_prefix, size),
        }
        self._forward(made)
        if self._cuda:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._forward(made)
            torch.cuda.current_stream().wait_stream(stream)
            made["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made["graph"]):
                self._forward(made)
        return made

    def _forward(self, made: dict[str, Any]) -> None:
        """Hidden states at the read nodes, and the logits of their edges, into `made`."""
        hidden = self._model.base_model(
            input_ids=made["ids"],
            attention_mask=made["mask"],
            position_ids=made["pos"],
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        made["hidden"] = hidden[self._row_of, made["at"]]
        made["edges"] = (made["hidden"].float()[self._edge_read] * self._edge_rows).sum(-1)

    def _run(self, query: str) -> dict[str, Any]:
        torch = self._torch
        n_cached, tokens = self._new_tokens(query)
        lengths = np.array([len(row) for row in tokens])
        size = bucket(int(lengths.max()))
        ids = np.zeros((len(tokens), size), np.int64)
        for i, row in enumerate(tokens):
            ids[i, : len(row)] = row
        pos = n_cached[:, None] + np.arange(size)
        own = np.array([len(tokens[row]) - len(self._rows[row].path) for row in self._reads_of_row])
        made = self._buckets[size]
        made["ids"].copy_(torch.from_numpy(ids))
        made["pos"].copy_(torch.from_numpy(pos))
        made["at"].copy_(torch.from_numpy(own - 1 + self._depth_of))
        broken = bool((n_cached != self._n_prefix).any())
        if broken:
            made["mask"].copy_(self._mask(n_cached, size))
        if self._cuda:
            made["graph"].replay()
        else:
            self._forward(made)
        if broken:
            made["mask"].copy_(self._mask(self._n_prefix, size))
        return made

    def _answers(self, query: str, *, exact: bool) -> list[Answer]:
        with self._torch.inference_mode():
            made = self._run(query)
            edges = made["edges"].cpu().numpy()
            sums = self._torch.logsumexp((made["hidden"] @ self._head.T).float(), -1).cpu().numpy() if exact else None
        answers, edge, read = [], 0, 0
        for prompt in self.task.prompts:
            mine = []
            for tokens in prompt.reader.edge_tokens:
                mine.append(edges[edge : edge + len(tokens)])
                edge += len(tokens)
            tree = prompt.reader.tree(mine)
            joint = prompt.reader.joint(mine, sums[read : read + len(mine)]) if sums is not None else ()
            read += len(mine)
            answers.append(Answer(label=prompt.reader.winner(tree), tree=tree, joint=joint))
        return answers

    def classify(self, query: str) -> list[Answer]:
        return self._answers(query, exact=False)

    def audit(self, query: str) -> list[Answer]:
        return self._answers(query, exact=True)

    def remarks(self) -> list[str]:
        where = "float16, a CUDA graph a bucket" if self._cuda else "float32 on the CPU"
        weights = (
            "random weights of the same shape, so that its answers are not comparable"
            if self._synthetic
            else "weights that are not quantised, unless the folder's are"
        )
        return [f"{where}; {weights}; new tokens padded to {', '.join(map(str, self._buckets))}"]

    def close(self) -> None:
        if hasattr(self, "_model"):
            self._buckets = {}
            del self._model
            if self._cuda:
                self._torch.cuda.empty_cache()
