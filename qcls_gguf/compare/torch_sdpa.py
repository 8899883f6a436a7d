"""PyTorch with transformers: prefixes in an expanded KV cache, one forward for all prompts, label rows of the head.

Each row of the batch begins with its prompt's cached keys and values. Its new tokens are padded to one of a few
lengths, the buckets, and on a GPU each bucket is a CUDA graph.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..model.header import read_header
from .method import AbsentError, Answer, Method, Workload
from .torch_rows import CacheLayer, bucket_size, row_layout


@dataclass(slots=True, kw_only=True)
class _Bucket:
    """The tensors of a batch whose rows are padded to one length. On a GPU a CUDA graph reads and writes them."""

    ids: Any
    """(n_rows, size) tokens"""
    pos: Any
    """(n_rows, size) positions"""
    at: Any
    """(n_reads,) which token of its row each read needs the hidden state of"""
    mask: Any
    """(n_rows, 1, size, n_prefix + size) what each new token attends to"""
    hidden: Any = None
    """(n_reads, n_embd), computed by a forward"""
    edges: Any = None
    """(n_edges,) logits, computed by a forward"""
    graph: Any = None


class TorchSdpa(Method):
    """One forward of (n_rows, bucket) tokens."""

    name: ClassVar[str] = "torch"
    about: ClassVar[str] = (
        "PyTorch SDPA, prefixes in an expanded KV cache, one forward for all prompts, hidden states · label rows"
    )
    own_tokenizer: ClassVar[bool] = False

    def __init__(self, workload: Workload, folder: Path | None = None, *, synthetic: bool = False) -> None:
        super().__init__(workload)
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
        self._cuda = torch.cuda.is_available() and self.workload.n_gpu_layers > 0
        self._device = torch.device("cuda" if self._cuda else "cpu")
        self._dtype = torch.float16 if self._cuda else torch.float32
        torch.set_num_threads(self.workload.n_threads)
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
        header = read_header(self.workload.model_path)
        if header.arch != "qwen3":
            raise AbsentError(
                f"`synthetic` knows the shape of qwen3 only, and the model is {header.arch}: give `hf_folder`"
            )

        def value(key: str) -> Any:
            return header.scalars[f"qwen3.{key}"]

        return transformers.Qwen3Config(
            vocab_size=header.tensors["token_embd.weight"].shape[1],
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
        torch, layout = self._torch, row_layout(self.workload.prompts)
        if (largest := int(layout.token_of_edge.max())) >= self._head.shape[0]:
            raise AbsentError(f"the weights have {self._head.shape[0]} tokens, and a label has token {largest}")
        self._layout = layout
        self._row_of_read = torch.tensor(layout.row_of_read, device=self._device)
        self._read_of_edge = torch.tensor(layout.read_of_edge, device=self._device)
        self._edge_rows = self._head[torch.tensor(layout.token_of_edge, device=self._device)].float()
        self._n_prefix = np.array([len(self.workload.prompts[row.prompt].compiled.prefix) for row in layout.rows])
        requests = [self._new_tokens(query) for query in self.workload.queries]
        sizes = sorted({bucket_size(max(map(len, tokens))) for _, tokens in requests})
        self._cache = self._prefixes(transformers, max(sizes))
        self._buckets = {size: self._bucket(size) for size in sizes}

    def _prefixes(self, transformers: Any, n_new: int) -> Any:
        """The cache of all rows, each prompt's prefix computed once."""
        torch, widest = self._torch, int(self._n_prefix.max())
        layers: list[CacheLayer] = []
        stored: dict[int, Any] = {}
        for index, prompt in enumerate(self.workload.prompts):
            if prompt.compiled.prefix:
                ids = torch.tensor([prompt.compiled.prefix], device=self._device)
                cache = transformers.DynamicCache()
                self._model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
                stored[index] = [(layer.keys, layer.values) for layer in cache.layers]
        config = self._model.config
        n_heads = config.num_key_value_heads
        n_dims = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(self._layout.rows), n_heads, widest + n_new, n_dims)
        for layer in range(config.num_hidden_layers):
            both = torch.zeros((2, *shape), dtype=self._dtype, device=self._device)
            for i, row in enumerate(self._layout.rows):
                if row.prompt in stored:
                    for part, prefix in zip(both, stored[row.prompt][layer], strict=True):
                        part[i, :, : prefix.shape[2]] = prefix[0]
            layers.append(CacheLayer(both[0], both[1], widest))
        return transformers.cache_utils.Cache(layers=layers)

    def _new_tokens(self, query: str) -> tuple[npt.NDArray[np.int64], list[list[int]]]:
        """For each row how many tokens of its prefix stay, and the tokens behind them."""
        by_prompt = [self.workload.tokens(prompt.compiled, query) for prompt in self.workload.prompts]
        n_cached = np.array([by_prompt[row.prompt][0] for row in self._layout.rows])
        return n_cached, [[*by_prompt[row.prompt][1], *row.path] for row in self._layout.rows]

    def _mask(self, n_cached: npt.NDArray[np.int64], size: int) -> Any:
        """(n_rows, 1, size, n_prefix + size): a row's own prefix, and its new tokens up to each one."""
        torch, widest = self._torch, int(self._n_prefix.max())
        prefix = np.arange(widest)[None, :] < n_cached[:, None]
        past = np.broadcast_to(prefix[:, None, :], (len(n_cached), size, widest))
        new = np.broadcast_to(np.tril(np.ones((size, size), bool)), (len(n_cached), size, size))
        return torch.from_numpy(np.concatenate([past, new], axis=2)[:, None]).to(self._device)

    def _bucket(self, size: int) -> _Bucket:
        """The buffers of a bucket, and its CUDA graph where there is a GPU."""
        torch, n = self._torch, len(self._layout.rows)
        bucket = _Bucket(
            ids=torch.zeros((n, size), dtype=torch.long, device=self._device),
            pos=torch.zeros((n, size), dtype=torch.long, device=self._device),
            at=torch.zeros(len(self._layout.row_of_read), dtype=torch.long, device=self._device),
            mask=self._mask(self._n_prefix, size),
        )
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
        hidden = self._model.base_model(
            input_ids=bucket.ids,
            attention_mask=bucket.mask,
            position_ids=bucket.pos,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        bucket.hidden = hidden[self._row_of_read, bucket.at]
        bucket.edges = (bucket.hidden.float()[self._read_of_edge] * self._edge_rows).sum(-1)

    def _run(self, query: str) -> _Bucket:
        torch = self._torch
        n_cached, tokens = self._new_tokens(query)
        lengths = np.array([len(row) for row in tokens])
        size = bucket_size(int(lengths.max()))
        ids = np.zeros((len(tokens), size), np.int64)
        for i, row in enumerate(tokens):
            ids[i, : len(row)] = row
        pos = n_cached[:, None] + np.arange(size)
        own = np.array([len(tokens[row]) - len(self._layout.rows[row].path) for row in self._layout.row_of_read])
        bucket = self._buckets[size]
        bucket.ids.copy_(torch.from_numpy(ids))
        bucket.pos.copy_(torch.from_numpy(pos))
        bucket.at.copy_(torch.from_numpy(own - 1 + self._layout.depth_of_read))
        broken = bool((n_cached != self._n_prefix).any())
        if broken:
            bucket.mask.copy_(self._mask(n_cached, size))
        if self._cuda:
            bucket.graph.replay()
        else:
            self._forward(bucket)
        if broken:
            bucket.mask.copy_(self._mask(self._n_prefix, size))
        return bucket

    def _answers(self, query: str, *, exact: bool) -> list[Answer]:
        with self._torch.inference_mode():
            bucket = self._run(query)
            edges = bucket.edges.cpu().numpy()
            sums = self._torch.logsumexp((bucket.hidden @ self._head.T).float(), -1).cpu().numpy() if exact else None
        answers, edge, read = [], 0, 0
        for prompt in self.workload.prompts:
            prompt_edges = []
            for tokens in prompt.reader.edge_tokens:
                prompt_edges.append(edges[edge : edge + len(tokens)])
                edge += len(tokens)
            tree = prompt.reader.tree(prompt_edges)
            joint = prompt.reader.joint(prompt_edges, sums[read : read + len(prompt_edges)]) if sums is not None else ()
            read += len(prompt_edges)
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
