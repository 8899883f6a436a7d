"""Compiled prompts made by hand: tokens, and no text."""

from collections.abc import Sequence

from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.trie import build_trie

Tokens = tuple[int, ...]


def made_prompt(
    name: str, labels: Sequence[Tokens], opening: Tokens = (), stable: Tokens = (), closing: Tokens = (), **more: bool
) -> Prompt:
    """A prompt whose labels are named a, b, …, 26, 27, … and have these tokens; more: options of `build_trie`."""
    texts = tuple(chr(ord("a") + n) if n < 26 else str(n) for n in range(len(labels)))
    return Prompt(
        settings=PromptConfig(name=name, prompt_template="{query}", labels=texts), label_tokens=tuple(labels),
        trie=build_trie(texts, labels, -1, "tree", **more), before="", after="", n_empty=0,
        opening=opening, stable=stable, closing=closing,
    )  # fmt: skip
