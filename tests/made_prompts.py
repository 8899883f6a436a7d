"""Compiled prompts made by hand: tokens, and no text."""

from collections.abc import Sequence

from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.trie import build_trie

Tokens = tuple[int, ...]


def made_prompt(
    name: str, labels: Sequence[Tokens], opening: Tokens = (), stable: Tokens = (), closing: Tokens = (), **more: bool
) -> Prompt:
    """A prompt whose labels are named a, b, … and have these tokens; more: options of `build_trie`."""
    texts = tuple(map(chr, range(ord("a"), ord("a") + len(labels))))
    trie = build_trie(texts, labels, -1, "tree", **more)
    return Prompt(
        name=name, labels=texts, label_tokens=tuple(labels), trie=trie, before="", after="",
        opening=opening, stable=stable, closing=closing,
    )  # fmt: skip
