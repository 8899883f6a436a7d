"""Templates to tokens: the fixed part of a prompt, the part that a query can change, and the tokens of labels.

Special tokens split a text before it is tokenised, so a template falls into three parts that are tokenised on their
own: `opening` up to the last special token before the slot, the `fragment` that holds the query, and `closing` from the
first special token after it. Only the fragment is tokenised per request, as plain text: a query that spells a special
token stays text. Within the fragment the tokens before the slot that no query changes are cached with the opening.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config.fitted import Head
from ..config.prompt import SLOT, PromptConfig
from ..errors import ConfigError, PlanError, prefixed
from .trie import LabelTrie, Pointer, build_trie, end_of_prompt

# Query beginnings and endings after which tokenisers are known to merge differently: none, letters, digits, spaces,
# line breaks, punctuation, contractions, other scripts, combining marks, emoji.
PROBES = (
    "red dress", "", "a", "7", " x", "  y ", "\nz\n", ".", "'s", "-", "红色连衣裙", "é", "\u0301", "👗", "ß", "S", "_",
)  # fmt: skip
_SPACED = ("x\t", "x\r", "x\x85", "x\xa0", "x\u2028", "x\u3000")
"""Endings that some tokenizers join with white space after them, depending on what follows that."""
_WORD_ENDS = re.compile(r"(?<=\S)(?= \w)|(?<=\n)(?=\S)")
_N_NEAR = 64
"""Characters before the slot that are always tokenised with a label."""


class Tokenizer(Protocol):
    """The part of a model that turns text into tokens."""

    def tokenize(self, text: str, *, parse_special: bool) -> npt.NDArray[np.int32]: ...

    def piece(self, token: int) -> tuple[bytes, bool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A compiled prompt. The rendered prompt's tokens are opening + tokens of (before + query + after) + closing."""

    settings: PromptConfig
    """its labels, scoring, calibration and abstention"""
    head: Head | Pointer | None = None
    """what answers instead of its labels' texts"""
    label_tokens: tuple[tuple[int, ...], ...]
    """the tokens of label_prefix + label, without an end token"""
    trie: LabelTrie
    before: str
    after: str
    n_empty: int
    """tokens of the fragment for an empty query"""
    opening: tuple[int, ...]
    stable: tuple[int, ...]
    """the first tokens of the fragment, which are the same for every usual query"""
    closing: tuple[int, ...]
    has_state: bool = False
    """whether recurrent layers keep a state after its prefix, which is then of use only as a whole; keys and values can
    be used up to any token"""

    @property
    def name(self) -> str:
        """The name of its answers."""
        return self.settings.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels to choose from."""
        return self.settings.labels

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that are cached at start-up."""
        return self.opening + self.stable

    @property
    def fragment(self) -> tuple[str, str]:
        """The text around the query that is tokenised per request; equal fragments are tokenised once."""
        return self.before, self.after

    def fragment_tokens(self, tokenizer: Tokenizer, query: str) -> list[int]:
        """The tokens of before + query + after, as `new_tokens` takes them."""
        tokens: list[int] = tokenizer.tokenize(self.before + query + self.after, parse_special=False).tolist()
        return tokens

    def new_tokens(self, fragment_tokens: list[int]) -> tuple[int, list[int]]:
        """(n_cached, tokens to feed), given the tokens of before + query + after.

        n_cached is len(prefix) on the fast path. It is smaller for a query that changes a token of the prefix, or after
        which no token is left to feed; with recurrent states, which exist only after the prefix's last token, it is
        then 0.
        """
        n = len(self.stable)
        if is_changed := tuple(fragment_tokens[:n]) != self.stable:
            n = common_prefix(self.stable, fragment_tokens)
        if (n < len(fragment_tokens) or self.closing) and not (is_changed and self.has_state):
            return len(self.opening) + n, [*fragment_tokens[n:], *self.closing]
        # all is fed where a state cannot be used, and the last token where none is left: its hidden state is needed
        whole = [*self.opening, *fragment_tokens, *self.closing]
        if not whole:
            raise PlanError(f"prompts.{self.name} is empty for an empty query: nothing can be computed")
        n = 0 if self.has_state else len(whole) - 1
        return n, whole[n:]


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many elements two sequences share at their beginning."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def compile_prompt(
    tokenizer: Tokenizer,
    config: PromptConfig,
    template: str,
    *,
    bos: int = -1,
    end: int = -1,
    exact: bool = False,
    head: Head | Pointer | None = None,
    has_state: bool = False,
    codes: bool = False,
) -> Prompt:
    """Tokenise a template of a prompt, and its labels, once.

    bos: the token to put first, -1 for none; end: the end-of-label token, -1 for none; exact: see build_trie;
    head: what answers instead of the labels' texts; has_state: as in Prompt; codes: the labels have the tokens of their
    own texts, even if they would merge with the prompt's last token.
    Raises ConfigError, with the prompt and the label, if the tokens would differ from those of the rendered text.
    """
    name, labels, label_prefix = config.name, config.labels, config.label_prefix
    before_slot, _, after_slot = template.partition(SLOT)
    try:
        opening_text, before = _split_at_special(tokenizer, before_slot, last=True)
        after, closing_text = _split_at_special(tokenizer, after_slot, last=False)
    except UnicodeDecodeError:
        what = f"prompts.{name}: a control token of this model is a part of a character and splits one of the template"
        raise ConfigError(f"{what}: fetch the file again, or leave that character out") from None
    opening = tokenizer.tokenize(opening_text, parse_special=True).tolist()
    if bos >= 0 and opening[:1] != [bos]:
        opening.insert(0, bos)
    closing = tokenizer.tokenize(closing_text, parse_special=True).tolist()

    fragments = [tokenizer.tokenize(before + probe + after, parse_special=False).tolist() for probe in PROBES]
    for probe, fragment in zip(PROBES, fragments, strict=True):
        whole = tokenizer.tokenize(template.replace(SLOT, probe), parse_special=True).tolist()
        if [*opening, *fragment, *closing][len(opening) + len(fragment) + len(closing) - len(whole) :] == whole:
            continue
        what = f"prompts.{name}: this model's tokenizer changes the text beside its special tokens"
        raise ConfigError(f"{what}: remove the white space beside the special tokens of the template")
    if codes:
        before, after, first, last, fragments = _shortened(tokenizer, before, after, fragments)
        opening, closing, endings = opening + first, last + closing, [""]
    elif closing_text:
        endings = [_split_at_special(tokenizer, closing_text, last=True)[1]]
    else:
        endings = _endings(tokenizer, before, after, fragments)
    n_stable = min(common_prefix(fragments[0], other) for other in fragments[1:])
    begins_apart = bool(codes or closing_text or after)
    if isinstance(head, Pointer):
        label_tokens: list[tuple[int, ...]] = [()] * len(labels)
        closing, trie = head.trie(closing, len(labels))
    elif head and not head.reads_labels:
        alone = [tokenizer.tokenize(label_prefix + label, parse_special=False).tolist() for label in labels]
        label_tokens = [tuple(tokens) for tokens in alone]
        trie = end_of_prompt(len(labels), label_tokens[0][0])
    else:
        label_tokens = [_label_tokens(tokenizer, name, label, label_prefix, endings, begins_apart) for label in labels]
        with prefixed(f"prompts.{name}"):
            trie = build_trie(labels, label_tokens, end, config.scoring, exact=exact, with_root=head is not None)
    return Prompt(
        settings=config.changed(prior="none", temperature=None) if head else config,
        head=head,
        label_tokens=tuple(label_tokens),
        trie=trie,
        before=before,
        after=after,
        n_empty=len(fragments[PROBES.index("")]),
        opening=tuple(opening),
        stable=tuple(fragments[0][:n_stable]),
        closing=tuple(closing),
        has_state=has_state,
    )


def _shortened(
    tokenizer: Tokenizer, before: str, after: str, fragments: list[list[int]]
) -> tuple[str, str, list[int], list[int], list[list[int]]]:
    """The nearest text around the query up to a cut between words or lines, as in `_endings`, so that prompts share it.

    Returns the text before and after the query, the tokens of what stood before and after that, and the tokens of what
    is left with the probes; everything as it is where tokens reach over a cut.
    """
    start = max((match.start() for match in _WORD_ENDS.finditer(before)), default=0)
    cut = _WORD_ENDS.search(after)
    near, end = before[start:], after[: cut.start()] if cut else after
    fragments += [tokenizer.tokenize(before + probe + after, parse_special=False).tolist() for probe in _SPACED]
    shortened = [tokenizer.tokenize(near + probe + end, parse_special=False).tolist() for probe in PROBES + _SPACED]
    n = len(tokenizer.tokenize(before[:start], parse_special=False))
    first, last = fragments[0][:n], fragments[0][n + len(shortened[0]) :]
    if all([*first, *part, *last] == whole for part, whole in zip(shortened, fragments, strict=True)):
        return near, end, first, last, shortened
    return before, after, [], [], fragments


def _split_at_special(tokenizer: Tokenizer, text: str, *, last: bool) -> tuple[str, str]:
    """(text up to and with its last special token, the rest), or (text before its first one, the rest with it)."""
    data = text.encode()
    pieces = [tokenizer.piece(int(token)) for token in tokenizer.tokenize(text, parse_special=True)]
    for piece, is_special in reversed(pieces) if last else pieces:
        at = (data.rfind(piece) if last else data.find(piece)) if is_special else -1
        if at >= 0:
            at += len(piece) if last else 0
            return data[:at].decode(), data[at:].decode()
    return ("", text) if last else (text, "")


def _endings(tokenizer: Tokenizer, before: str, after: str, fragments: Sequence[Sequence[int]]) -> list[str]:
    """The last parts of the text that alone decide a label's tokens: one after all queries, or one a probe.

    Whether tokens merge is decided by neighbours alone: if the whole text has the tokens P + S and its end Q + S, then
    a label adds the same tokens to both, and long lists of labels need not be tokenised again with every label. The
    text is cut between words or lines, where no tokenizer's word reaches over the cut.
    """
    if cut := _WORD_ENDS.search(after):
        ending = after[cut.start() :]
        end = tokenizer.tokenize(ending, parse_special=False).tolist()
        if all(fragment[-len(end) :] == end for fragment in fragments):
            return [ending]
    at = max((match.start() for match in _WORD_ENDS.finditer(before[:-_N_NEAR])), default=0)
    for probe, whole in zip(PROBES, fragments, strict=True):
        end = tokenizer.tokenize(before[at:] + probe + after, parse_special=False).tolist()
        n_equal = common_prefix(end[::-1], whole[::-1])
        n_slot = len(tokenizer.tokenize(probe + after, parse_special=False))
        if n_equal <= n_slot:
            at = 0
    return [before[at:] + probe + after for probe in PROBES]


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether a text gets a space before it, as with SentencePiece."""
    first = tokenizer.tokenize("a", parse_special=False).tolist()[:1]
    return bool(first) and tokenizer.piece(first[0])[0].startswith(b" ")


def _label_tokens(
    tokenizer: Tokenizer, name: str, label: str, label_prefix: str, endings: Sequence[str], begins_apart: bool
) -> tuple[int, ...]:
    """The label's tokens when prompt and label are tokenised together; they must not depend on the query.

    endings: the last part of the prompt's text: after its last special token, or from before the slot on, with various
    queries; begins_apart: whether there is text between the slot and the label.
    """
    text = label_prefix + label
    if not begins_apart and not text[:1].isspace():
        what = f"prompts.{name}: nothing stands between {SLOT} and label {label!r}, which merges with some queries"
        raise ConfigError(f"{what}: put text between them, or begin label_prefix with a space")
    if text[0] == " " and endings == [""] and _adds_space(tokenizer):
        text = text[1:]  # the tokenizer puts it there, as at the beginning of every text
    ways: set[tuple[int, ...]] = set()
    for ending in endings:
        alone = tokenizer.tokenize(ending, parse_special=False).tolist()
        both = tokenizer.tokenize(ending + text, parse_special=False).tolist()
        if both[: len(alone)] != alone:
            last = tokenizer.piece(alone[-1])[0].decode(errors="replace")
            what = f"label {label!r} with its prefix {label_prefix!r} merges with the prompt's last token {last!r}"
            remedy = "end the template or begin the prefix so that a token ends between them"
            after = "" if begins_apart else f", with text after {SLOT}"
            raise ConfigError(f"prompts.{name}: {what}: {remedy}{after}")
        ways.add(tuple(both[len(alone) :]))
    if ways == {()}:
        raise ConfigError(f"prompts.{name}: label {label!r} has no tokens in this model's vocabulary")
    if len(ways) > 1:
        what = f"prompts.{name}: the tokens of label {label!r} depend on the query"
        raise ConfigError(f"{what}: put text between {SLOT} and the label")
    return ways.pop()
