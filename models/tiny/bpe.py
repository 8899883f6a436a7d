"""Train the tokenizer: byte-level BPE with the Qwen2 pre-tokeniser's regex and no normaliser.

python models/tiny/bpe.py        writes models/tiny/tokenizer.json
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from compose import make_query
from prompts import HERE, SPECIAL, load_prompts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The pre-tokeniser that llama.cpp calls `qwen2`.
PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def new_tokenizer(model: models.BPE) -> Tokenizer:
    """A tokenizer around a BPE model, with the split that llama.cpp applies."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def texts(count: int) -> Iterator[str]:
    """Training queries, mostly without slips, and the prompts and labels often enough to be whole tokens."""
    rng = random.Random("bpe")
    for i in range(count):
        yield "query: " + make_query("train", rng, slips=i % 6 == 0).text
    for style in ("separate", "joint"):
        for prompt in load_prompts(style):
            for _ in range(count // 400):
                yield from (piece for piece in SPECIAL.split(prompt.before + prompt.after) if piece)
                yield from (prompt.label_prefix + label for label in prompt.labels)


def main() -> None:
    tokenizer = new_tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=32,
    )
    tokenizer.train_from_iterator(texts(400_000), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
