"""A Llama model's dequantised weights: its log-probabilities in numpy's F32 arithmetic, and a file of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from gguf_parts import put_together, take_apart

from .texts import aside

Array = npt.NDArray[np.float32]


def in_floats(path: Path) -> Path:
    """A file beside it with the same weights in F32, for which no product rounds activations to 8 bits."""
    made = path.with_suffix(".F32.gguf")
    if not made.exists():
        file = take_apart(path)
        for tensor, read in zip(file.tensors, GGUFReader(path).tensors, strict=True):
            tensor.data = dequantize(read.data, read.tensor_type).astype(np.float32).tobytes()
            tensor.kind = GGMLQuantizationType.F32
        with aside(made) as part:
            part.write_bytes(put_together(file))
    return made


class Reference:
    """One file. Nothing is cached or shared: every text is computed whole, as the architecture is defined."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._weights = {each.name: dequantize(each.data, each.tensor_type) for each in reader.tensors}
        keys = "block_count", "attention.head_count", "attention.head_count_kv", "rope.freq_base"
        values = [reader.fields[f"llama.{key}"].contents() for key in (*keys, "attention.layer_norm_rms_epsilon")]
        self._n_layers, self._n_heads, self._n_kv = map(int, values[:3])
        self._base, self._eps = map(float, values[3:])

    def log_probabilities(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float64]:
        """(n_tokens - start, n_vocab) of what follows each token from number `start` on."""
        x = self._weights["token_embd.weight"][list(tokens)]
        for layer in range(self._n_layers):
            x = x + self._attention(self._normed(x, f"blk.{layer}.attn_norm"), layer)
            y = self._normed(x, f"blk.{layer}.ffn_norm")
            gate, up = (self._times(y, f"blk.{layer}.ffn_{name}") for name in ("gate", "up"))
            x = x + self._times(gate / (1 + np.exp(-gate)) * up, f"blk.{layer}.ffn_down")
        head = "output" if "output.weight" in self._weights else "token_embd"
        logits = self._times(self._normed(x[start:], "output_norm"), head).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def _times(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self._weights[f"{name}.weight"].T)

    def _normed(self, x: Array, name: str) -> Array:
        size = np.sqrt((x * x).mean(axis=1, keepdims=True) + self._eps)
        return np.asarray(x / size * self._weights[f"{name}.weight"])

    def _attention(self, x: Array, layer: int) -> Array:
        n, heads = len(x), self._n_heads
        q, k, v = (self._times(x, f"blk.{layer}.attn_{name}").reshape(n, -1, x.shape[1] // heads) for name in "qkv")
        q, k = self._rotated(q), self._rotated(k)
        k, v = (np.repeat(each, heads // self._n_kv, axis=1) for each in (k, v))
        score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
        score[:, np.triu(np.ones((n, n), np.bool_), 1)] = -np.inf
        power = np.exp(score - score.max(axis=2, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", power / power.sum(axis=2, keepdims=True), v)
        return self._times(mixed.reshape(n, -1), f"blk.{layer}.attn_output")

    def _rotated(self, x: Array) -> Array:
        """Rotary positions of neighbouring pairs, as llama.cpp stores Llama's heads."""
        n, _, width = x.shape
        angle = np.arange(n)[:, None] * self._base ** (-np.arange(0, width, 2) / width)
        cos, sin = np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
