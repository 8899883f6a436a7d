"""The prompts of the two configs, and the token ids that a query gives in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from qcls_gguf import load_config

HERE = Path(__file__).parent
CONFIGS = {
    "separate": HERE.parent.parent / "configs" / "fashion-8.yaml",
    "joint": HERE.parent.parent / "configs" / "fashion-8-joint.yaml",
}
SPECIAL = re.compile(r"(<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>)")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: the text on both sides of the query, and its labels."""

    style: str
    name: str
    before: str
    after: str
    label_prefix: str
    labels: tuple[str, ...]


def load_prompts(style: str) -> list[Prompt]:
    """The prompts of a style, in the order of its config."""
    prompts = []
    for prompt in load_config(CONFIGS[style]).prompts:
        before, _, after = prompt.expanded_template.partition("{query}")
        prompts.append(Prompt(style, prompt.name, before, after, prompt.label_prefix, prompt.labels))
    return prompts


class Encoder:
    """Token ids of prompts and labels; special tokens exist in templates only, never in a query."""

    def __init__(self, path: Path = HERE / "tokenizer.json") -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.encode_special_tokens = True
        self.special = {text: self._id(text) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
        self.end = self.special["<|im_end|>"]

    def _id(self, text: str) -> int:
        token = self.tokenizer.token_to_id(text)
        if token is None:
            raise ValueError(f"the vocabulary has no {text}")
        return int(token)

    def plain(self, text: str) -> list[int]:
        """The ids of text that holds no special token, whatever it spells."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def template(self, text: str) -> list[int]:
        """The ids of template text, special tokens split off first."""
        ids: list[int] = []
        for piece in SPECIAL.split(text):
            if SPECIAL.fullmatch(piece):
                ids.append(self.special[piece])
            elif piece:
                ids += self.plain(piece)
        return ids

    def prompt(self, prompt: Prompt, query: str) -> list[int]:
        """The ids of the whole rendered prompt; the text around the query is merged with it as the tokenizer does."""
        *head, last = SPECIAL.split(prompt.before)
        first, *tail = SPECIAL.split(prompt.after)
        return self.template("".join(head)) + self.plain(last + query + first) + self.template("".join(tail))

    def label(self, prompt: Prompt, label: str) -> list[int]:
        """The ids of a label after its prompt, without the end token."""
        stem = SPECIAL.split(prompt.after)[-1]
        return self.plain(stem + prompt.label_prefix + label)[len(self.plain(stem)) :]

    def query_stem(self, prompt: Prompt) -> tuple[str, list[int]]:
        """The plain text before the query that may merge with it, less its last blank, and that text's ids."""
        stem = SPECIAL.split(prompt.before)[-1]
        return stem, self.plain(stem.rstrip(" "))
