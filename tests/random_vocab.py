"""Small vocabularies for random-weight GGUF models: byte-level BPE (`gpt2`, as Qwen) and SentencePiece (`llama`).

Every word of `WORDS` is one token. ` tank top`, ` light blue` and ` light pink` are two tokens each, the last two with
a common first token; ` jump` is a token and the first token of ` jumper` and ` jumpsuit`. So label trees get depth.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Literal

from gguf import GGUFWriter, TokenType

VocabKind = Literal["bpe", "spm", "bpe-marks", "spm-marks", "bpe-joins", "spm-joins", "bpe-answers"]
"""-answers: yes and no; -marks: with user-defined tokens; -joins: whose rules join text to the control token JOINED"""
MARKS = ("<think>", "</think>", "<|go|>", "\n\n")
JOINED = "<!@>"

BOS, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

_SPACED = """
the of for with in is to no if use from one exactly output analyze group intent mentioned item what label query user
dress jeans shirt tee hoodie knit trench coat skirt tank top jump other none boy girl man woman pregnant
light dark sky blue pink red green black white grey brown cotton wool silk linen spring summer winter all season
"""
_UNSPACED = "query label system user assistant category color er suit 查询 标签 颜色 类别 裙 衬衫 红色 蓝色"
WORDS = (*(f" {word}" for word in _SPACED.split()), *_UNSPACED.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocab:
    """Tokens in id order, with what each kind of tokenizer needs to use them."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    bos: int
    eos: int

    def extended(self, more: Mapping[str, TokenType], merges: Sequence[str] = ()) -> "Vocab":
        """The same vocabulary with more tokens and merges at its end."""
        tokens, types = (*self.tokens, *more), (*self.types, *more.values())
        scores = (*self.scores, *(-1000.0 for _ in more))
        return replace(self, tokens=tokens, types=types, merges=(*self.merges, *merges), scores=scores)

    def write(self, writer: GGUFWriter, *, add_bos: bool) -> None:
        """Add the tokenizer's keys to a GGUF file."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        writer.add_bos_token_id(self.bos)
        writer.add_eos_token_id(self.eos)
        writer.add_pad_token_id(self.bos)
        writer.add_add_bos_token(add_bos)


@cache
def build_vocab(kind: VocabKind) -> Vocab:
    """The built-in vocabulary of one kind: about 600 tokens."""
    base, _, extra = kind.partition("-")
    vocab = _build_bpe() if base == "bpe" else _build_spm()
    if extra == "marks":
        return vocab.extended(dict.fromkeys(MARKS, TokenType.USER_DEFINED))
    if extra == "answers":
        missing = {part: TokenType.NORMAL for part in ("ye", "yes", "no", ":A") if part not in vocab.tokens}
        return vocab.extended(missing, merges=("y e", "ye s", "n o", ": A"))
    if extra == "joins":
        parts = {JOINED[:2]: TokenType.NORMAL, JOINED[:3]: TokenType.NORMAL, JOINED: TokenType.CONTROL}
        missing = {part: TokenType.NORMAL for part in JOINED if part not in vocab.tokens}
        merges = [f"{JOINED[:n]} {JOINED[n]}" for n in range(1, len(JOINED))]
        return vocab.extended({**missing, **parts}, merges=merges if vocab.merges else ())
    return vocab


def _build_bpe() -> Vocab:
    alphabet = _byte_alphabet()
    merges = _train_merges("".join(alphabet[byte] for byte in word.encode()) for word in WORDS)
    tokens = list(dict.fromkeys([*alphabet, *(left + right for left, right in merges)]))
    n_text = len(tokens)
    tokens += [BOS, IM_START, IM_END]
    return Vocab(
        model="gpt2",
        pre="qwen2",
        tokens=tuple(tokens),
        types=(TokenType.NORMAL,) * n_text + (TokenType.CONTROL,) * 3,
        merges=tuple(f"{left} {right}" for left, right in merges),
        scores=(0.0,) * len(tokens),
        bos=tokens.index(BOS),
        eos=tokens.index(IM_END),
    )


def _build_spm() -> Vocab:
    words = [word.replace(" ", "\u2581") for word in WORDS]
    merged = dict.fromkeys(left + right for left, right in _train_merges(words))
    characters = sorted({character for word in words for character in word} - merged.keys())
    special = ["<unk>", "<s>", "</s>", IM_START, IM_END]
    single_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *single_bytes, *merged, *characters]
    n_unscored = len(special) + len(single_bytes)
    n_text = len(tokens) - n_unscored
    return Vocab(
        model="llama",
        pre="default",
        tokens=tuple(tokens),
        types=(TokenType.UNKNOWN, *(TokenType.CONTROL,) * 4, *(TokenType.BYTE,) * 256, *(TokenType.NORMAL,) * n_text),
        merges=(),
        # SentencePiece joins the pair with the highest score first, so scores fall in the order of training.
        scores=(*(0.0,) * n_unscored, *(-float(i) for i in range(n_text))),
        bos=tokens.index("<s>"),
        eos=tokens.index(IM_END),
    )


def _train_merges(words: Iterable[str]) -> list[tuple[str, str]]:
    """Merges, most urgent first, under which each word becomes one token.

    A word is first encoded with the merges found so far; its leftmost pair is then made a new merge until one token
    is left. A new merge is less urgent than all before it, so words already done keep their encoding.
    """
    ranks: dict[tuple[str, str], int] = {}
    for word in words:
        while len(pieces := _apply_merges(word, ranks)) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
    return list(ranks)


def _apply_merges(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    pieces = list(word)
    while known := [pair for pair in pairwise(pieces) if pair in ranks]:
        left, right = min(known, key=lambda pair: ranks[pair])
        i = next(i for i, pair in enumerate(pairwise(pieces)) if pair == (left, right))
        pieces[i : i + 2] = [left + right]
    return pieces


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary, in byte order.

    Bytes that print in Latin-1 stand for themselves, the others take the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
