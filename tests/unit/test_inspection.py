"""What an inspection counts, on a tokenizer of whole words whose tokens can be counted by hand."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qcls_gguf.config.scoring import Scoring
from qcls_gguf.inspection.inspect import empty_request, inspect_prompts
from qcls_gguf.inspection.records import TrieNode
from qcls_gguf.prompts.compiled import Prompt, compile_prompt
from qcls_gguf.score.result import Counts

SPECIAL, WORD = r"<\|\w+\|>", r" ?\w+|\s|[^\w\s]"
COLOR = "<|s|>color: light blue, light pink, red<|e|>\nquery: {query}<|e|>\nlabel:"
ITEM = "<|s|>item: dress, jeans<|e|>\nquery: {query}<|e|>\nlabel:"
COLORS, ITEMS = ("light blue", "light pink", "red"), ("dress", "jeans")


class Words:
    """A tokenizer whose tokens are words with the space before them, single other characters, and <|special|> ones."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tokenize(self, text: str, *, parse_special: bool) -> npt.NDArray[np.int32]:
        found = re.findall(f"{SPECIAL}|{WORD}" if parse_special else WORD, text)
        self.texts += [piece for piece in dict.fromkeys(found) if piece not in self.texts]
        return np.array([self.texts.index(piece) for piece in found], np.int32)

    def piece(self, token: int) -> tuple[bytes, bool]:
        return self.texts[token].encode(), re.fullmatch(SPECIAL, self.texts[token]) is not None


@pytest.fixture
def words() -> Words:
    return Words()


def compiled(
    words: Words, name: str, template: str, labels: tuple[str, ...], scoring: Scoring = "tree", end: str = "<|e|>"
) -> Prompt:
    token = int(words.tokenize(end, parse_special=True)[0])
    return compile_prompt(
        words, name=name, template=template, label_prefix=" ", labels=labels, scoring=scoring, end=token
    )


def counted(n_tokens: int = 0, n_decodes: int = 1) -> Counts:
    return Counts(n_queries=1, n_decodes=n_decodes, n_tokens_new=n_tokens, n_tokens_cached=24, n_positions=3)


def shape(node: TrieNode) -> Any:
    """(text, label, flags, children): f for fed, r for read."""
    return node.text, node.label, "f" * node.fed + "r" * node.read, [shape(child) for child in node.children]


def test_prefix_and_added_tokens(words: Words) -> None:
    color, item = inspect_prompts(
        [compiled(words, "color", COLOR, COLORS), compiled(words, "item", ITEM, ITEMS, "first_token")], words
    )
    assert (color.prefix.n_tokens, item.prefix.n_tokens) == (14, 10)  # `\n`, `query` and `:` are cached, ` ` is not
    assert (color.prefix.n_shared, color.prefix.shared_with) == (1, ("item",))
    assert [token.text for token in color.added.fragment] == [" "]
    assert [token.text for token in color.added.suffix] == ["<|e|>", "\n", "label", ":"]
    assert color.added.n_tokens == 5
    assert (color.n_tokens_labels, color.n_positions, color.n_leaves) == (1, 2, 1)
    assert (item.n_tokens_labels, item.n_positions, item.n_leaves) == (0, 1, 1)
    assert (color.scoring, item.scoring) == ("tree", "first_token")
    assert color.fast_path
    assert item.fast_path


def test_label_tokens_and_trie(words: Words) -> None:
    (prompt,) = inspect_prompts([compiled(words, "p", ITEM, ("wool", "wool blend", "all season", "red"))], words)
    assert [[token.text for token in label.tokens] for label in prompt.labels] == [
        [" wool"],
        [" wool", " blend"],
        [" all", " season"],
        [" red"],
    ]
    assert [label.end and label.end.text for label in prompt.labels] == ["<|e|>", None, None, None]
    assert shape(prompt.trie) == (
        "",
        None,
        "fr",
        [
            (" wool", None, "fr", [("<|e|>", "wool", "", []), (" blend", "wool blend", "", [])]),
            (" all", None, "", [(" season", "all season", "", [])]),
            (" red", "red", "", []),
        ],
    )
    assert prompt.trie.token is None
    assert words.texts[prompt.trie.children[0].token or 0] == " wool"
    (exact,) = inspect_prompts([compiled(words, "p", ITEM, ("wool", "wool blend", "all season"), "joint")], words)
    assert (exact.n_tokens_labels, exact.n_positions, exact.n_leaves) == (2, 3, 2)
    assert shape(exact.trie.children[1]) == (" all", None, "fr", [(" season", "all season", "", [])])


def test_request_of_prompts_with_separate_texts(words: Words) -> None:
    prompts = [compiled(words, "color", COLOR, COLORS), compiled(words, "item", ITEM, ITEMS)]
    request = empty_request(prompts, inspect_prompts(prompts, words), counted(11))
    assert (request.n_tokens, request.n_tokens_cached, request.n_positions, request.n_query_copies) == (11, 24, 3, 2)
    assert request.n_tokens_unshared == 11


def test_request_of_prompts_that_share_their_text(words: Words) -> None:
    texts = [(name, f"<|s|>label it<|e|>\nquery: {{query}}<|e|>\n{name}:") for name in ("color", "item")]
    prompts = [compiled(words, name, text, COLORS) for name, text in texts]
    request = empty_request(prompts, inspect_prompts(prompts, words), counted(9))
    assert request.n_tokens_unshared == 2 * (1 + 4 + 1)
    assert request.n_query_copies == 1
