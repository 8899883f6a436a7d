"""Compare llama.cpp's tokeniser on a GGUF file with the training tokenizer, on thousands of generated strings.

LLAMA_CPP_LIB_PATH=FOLDER python models/tiny/check_tokenizer.py models/fashion-tiny-Q8_0.gguf
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from compose import make_query
from engine import Model
from prompts import CONFIGS, Encoder, load_prompts

ALPHABET = (
    "abz AZ 09 .,;:!?'\"-_/\\()[]{}<>|#$€£%&*+=~`^@\t\n\r 红裙牛仔裤，。！？ éüßñçİſK "
    "日本語カナ 한국어 русский עברית 👗🛍️👩\u200d👧\u200d👦🏽 \u00a0\u200b\u3000"
)


def strings(count: int) -> list[str]:
    """Queries of all splits and random strings of awkward characters."""
    rng = random.Random("tokenizer")
    out = ["", " ", "  ", "\n", "<|im_end|>", "<|im_start|>user", "'S 'll I'VE", "a\r\n\r\nb", "x" * 500]
    for _ in range(count):
        out.append(make_query(rng.choice(["train", "dev", "heldout"]), rng).text)
        out.append("".join(rng.choices(ALPHABET, k=rng.randint(1, 30))))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()
    encoder, wrong = Encoder(), 0
    texts = strings(args.count)
    with Model(args.gguf, n_ctx=64) as model:
        for text in texts:
            ours, theirs = encoder.plain(f"user\nquery: {text}"), model.tokenise(f"user\nquery: {text}", special=False)
            if ours != theirs:
                wrong += 1
                print(f"differs: {text!r}\n  {ours}\n  {theirs}")
        rendered = 0
        for style in CONFIGS:
            for prompt in load_prompts(style):
                plain = prompt.before + "red 连衣裙 " + prompt.after
                rendered += encoder.template(plain) == model.tokenise(plain, special=True)
    print(f"{len(texts)} strings, {wrong} differ; {rendered} of 16 templates agree")
    if wrong or rendered != 16:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
