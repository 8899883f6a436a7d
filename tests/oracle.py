"""The slow, obvious mirror of the classifier: one prompt, one label, one whole sequence, stock logits.

Nothing is cached or merged: every label's score comes from a decode of the rendered prompt with the label behind it.
The code follows the definitions and takes nothing from the package but the native library.

Decodes of random tokens, and of some beside the cells of others.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.native import NativeContext, NativeModel

Float32Array = npt.NDArray[np.float32]
N_CTX = 512
STOCK: dict[str, Any] = {
    **{"n_batch": N_CTX, "n_seq_max": 1, "n_outputs_max": N_CTX, "n_threads": 1},
    **{"hidden_only": False, "visible_cells": False},
}


Node = tuple[int, int, Sequence[int]]
"""Token, position, sequences."""


def decode(context: NativeContext, nodes: Sequence[Node], output: npt.NDArray[np.bool_] | None = None) -> Float32Array:
    """The rows of the nodes, or of those that are flagged, (n_flagged, row_size)."""
    output = np.ones(len(nodes), np.bool_) if output is None else output
    rows = np.full((int(output.sum()), context.row_size), np.nan, np.float32)
    context.decode(
        np.array([token for token, _, _ in nodes], np.int32),
        np.array([pos for _, pos, _ in nodes], np.int32),
        np.cumsum([0, *(len(seqs) for _, _, seqs in nodes)], dtype=np.int32),
        np.array([seq for _, _, seqs in nodes for seq in seqs], np.int32),
        output,
        rows,
    )
    return rows


def decode_sequence(
    context: NativeContext,
    tokens: Sequence[int],
    *,
    output: npt.NDArray[np.bool_] | None = None,
    start: int = 0,
    seq: int = 0,
) -> Float32Array:
    """Decode tokens at positions start, start + 1, … of one sequence.

    output: (n_tokens,) flags, all if not given. Returns the flagged rows, (n_flagged, row_size).
    """
    return decode(context, [(token, start + i, [seq]) for i, token in enumerate(tokens)], output)


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The log-probabilities that logits (n,) stand for."""
    shifted: npt.NDArray[np.float64] = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def softmax(logits: npt.ArrayLike) -> list[float]:
    """The probabilities that logits (n,) stand for."""
    return [float(p) for p in np.exp(log_softmax(np.asarray(logits, np.float64)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
    """What a configuration says of one prompt. label_end: the end-of-label token's text; None: the model's own."""

    name: str
    template: str
    labels: tuple[str, ...]
    label_prefix: str = " "
    scoring: Scoring = "tree"
    label_end: str | None = None

    def settings(self) -> dict[str, Any]:
        """As a configuration has them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"prompt_template": given.pop("template"), **given}


COLOR = PromptSpec(
    name="color",
    template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:",
    labels=("light blue", "light pink", "red", "none"),
)
"""Two of its labels begin alike."""
ITEM = PromptSpec(name="item", template="<|im_start|>{query}<|im_end|>label:", labels=("dress", "coat", "none"))
"""Its prefix is one token."""


class Oracle(ExitStack):
    """Scores labels one at a time in a stock context. Close it after use."""

    def __init__(self, path: Path, *, n_ctx: int = N_CTX, kv_type: str = "f16", flash_attn: bool | None = None) -> None:
        super().__init__()
        self.path = path
        self.model = self.enter_context(NativeModel(path))
        context = NativeContext(self.model, **STOCK, n_ctx=n_ctx, kv_type=kv_type, flash_attn=flash_attn)
        self.context = self.enter_context(context)
        pieces = [(token, *self.model.piece(token)) for token in range(self.model.facts.n_vocab)]
        self.special = {piece.decode(): token for token, piece, is_special in pieces if is_special}
        longest_first = sorted(self.special, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def rendered(self, template: str, query: str, behind: str = "") -> list[int]:
        """Tokens of the template with the query in its slot and `behind` at its end, query and `behind` being text."""
        parts = self._splitter.split(template)
        parts[-1] += behind
        tokens: list[int] = []
        for part in parts:
            if part in self.special:
                tokens.append(self.special[part])
            elif part:
                text = part.replace("{query}", query)
                tokens += self.model.tokenize(text, parse_special=False).tolist()
        facts = self.model.facts
        if facts.add_bos and tokens[:1] != [facts.token_bos]:
            tokens.insert(0, facts.token_bos)
        return tokens

    def label_tokens(self, prompt: PromptSpec, query: str) -> list[list[int]]:
        """The tokens by which each label goes beyond the rendered prompt."""
        start = self.rendered(prompt.template, query)
        paths = []
        for label in prompt.labels:
            whole = self.rendered(prompt.template, query, prompt.label_prefix + label)
            assert whole[: len(start)] == start, f"{label!r} merges with the prompt"
            paths.append(whole[len(start) :])
        return paths

    def paths(self, prompt: PromptSpec, query: str) -> list[list[int]]:
        """The tokens of each label, with the end-of-label token where another label begins with it."""
        facts = self.model.facts
        end = facts.token_eos  # the random models name no end-of-turn token
        if prompt.label_end is not None:
            end = self.special[prompt.label_end]
        tokens = self.label_tokens(prompt, query)
        return [
            [*path, end] if any(len(other) > len(path) and other[: len(path)] == path for other in tokens) else path
            for path in tokens
        ]

    def score(self, prompt: PromptSpec, query: str) -> tuple[list[float], list[float]]:
        """(score, log-probability) of each label, each label's own sequence decoded anew."""
        start = self.rendered(prompt.template, query)
        if prompt.scoring == "first_token":
            logits = [float(self.logits(start)[-1, path[0]]) for path in self.label_tokens(prompt, query)]
            return logits, log_softmax(np.array(logits)).tolist()
        paths = self.paths(prompt, query)
        scores = [self._tree_score(start, path, paths) for path in paths]
        return scores, scores

    def joint(self, prompt: PromptSpec, query: str) -> list[list[float]]:
        """log p of every token of each label, an end-of-label token included, over the whole vocabulary."""
        return self.log_probabilities(self.rendered(prompt.template, query), self.paths(prompt, query))

    def log_probabilities(self, start: list[int], paths: Sequence[list[int]]) -> list[list[float]]:
        """log p of every token of each path after the tokens of a prompt, over the whole vocabulary.

        Paths that differ in their last token alone are read from one decode: labels of a real model are many.
        """
        logits = {fed: self.logits([*start, *fed]) for fed in {tuple(path[:-1]) for path in paths}}
        answers = []
        for path in paths:
            rows = logits[tuple(path[:-1])][len(start) - 1 :]
            answers.append([float(log_softmax(row)[token]) for row, token in zip(rows, path, strict=True)])
        return answers

    def _tree_score(self, start: list[int], path: list[int], paths: list[list[int]]) -> float:
        logits = self.logits(start + path)
        total = 0.0
        for depth, token in enumerate(path):
            children = sorted({other[depth] for other in paths if other[:depth] == path[:depth]})
            row = logits[len(start) - 1 + depth]
            total += log_softmax(row[children])[children.index(token)]
        return total

    def logits(self, tokens: list[int]) -> npt.NDArray[np.float64]:
        """Logits after every token of a sequence of its own, (n_tokens, n_vocab)."""
        self.context.trim(np.zeros(1, np.int32), np.zeros(1, np.int32))
        return decode_sequence(self.context, tokens).astype(np.float64)


BRANCHING: dict[str, Any] = {"n_ctx": 1024, "n_batch": 128, "n_outputs_max": 128, "n_seq_max": 12}
"""The contexts that `random_decodes` takes."""


def random_tokens(random: np.random.Generator, context: NativeContext, n: int) -> list[int]:
    return [int(token) for token in random.integers(0, context.model.facts.n_vocab - 5, n)]


def random_decodes(
    random: np.random.Generator, both: Sequence[NativeContext], n_decodes: int, most_new: int
) -> list[Float32Array]:
    """Sequences branch, grow and are trimmed at random, alike in both contexts; the rows of each decode in each.

    most_new: tokens of a sequence at once.
    """
    found = []
    length = [0] * 12
    for _ in range(n_decodes):
        for seq in range(12):
            parent = int(random.integers(12))
            if random.random() < 0.3:
                length[seq] = int(random.integers(length[seq] + 1))
                for context in both:
                    context.trim(np.array([seq], np.int32), np.array([length[seq]], np.int32))
            elif length[seq] == 0 and length[parent] > 0:
                length[seq] = int(random.integers(1, length[parent] + 1))
                for context in both:
                    context.share(parent, seq, 0, length[seq])
        nodes = []
        for seq in random.permutation(12)[: random.integers(1, 6)].tolist():
            new = random_tokens(random, both[0], int(random.integers(1, most_new)))
            nodes += [(token, length[seq] + i, [seq]) for i, token in enumerate(new)]
            length[seq] += len(new)
        found.append(np.stack([decode(context, nodes) for context in both]))
        if sum(length) > 700:
            length = [0] * 12
            for context in both:
                context.clear()
    return found


def check_cells_of_others(
    random: np.random.Generator, context: NativeContext, tokens: list[int], wanted: Float32Array, n_foreign: int
) -> None:
    """A sequence has these rows, to a bit, with n_foreign cells of others in the cache, and scattered among theirs.

    The context decodes 512 tokens at once and has 48 sequences.
    """
    for start in range(0, n_foreign, 512):
        decode_sequence(context, random_tokens(random, context, 512), seq=47, start=start)
    np.testing.assert_array_equal(decode_sequence(context, tokens), wanted)
    context.clear()
    for seq in range(1, 47):  # every second sequence leaves a hole of some cells
        decode_sequence(context, random_tokens(random, context, 1 + seq % 3), seq=seq)
    context.trim(np.arange(2, 47, 2, dtype=np.int32), np.zeros(23, np.int32))
    np.testing.assert_array_equal(decode_sequence(context, tokens), wanted)
