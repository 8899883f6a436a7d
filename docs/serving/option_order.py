"""How often an answer changes with the order of the options, if their own texts or a letter for each are scored.

python docs/serving/option_order.py models/tiny/heldout.jsonl [N] — labels N rows with the embedded model; see
docs/serving.md.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from qcls_gguf import Classifier, PromptConfig, load_config

N_ORDERS = 6
PROMPT = "category"
TEMPLATE = """<|im_start|>system
Analyze the category intent. Output exactly one WHAT from [OPTIONS]. Use 'none' if no category intent.<|im_end|>
<|im_start|>user
query: {query}<|im_end|>
<|im_start|>assistant
WHAT:"""


def prompts(orders: Sequence[Sequence[str]]) -> list[PromptConfig]:
    """The question with its options in each order, once asking for an option and once for its letter."""
    found = []
    for n, order in enumerate(orders):
        letters = tuple(string.ascii_uppercase[: len(order)])
        lettered = ", ".join(f"{letter}: {label}" for letter, label in zip(letters, order, strict=True))
        for how, what, shown, labels in (
            ("text", "label", ", ".join(order), tuple(order)),
            ("letter", "letter", lettered, letters),
        ):
            template = TEMPLATE.replace("WHAT", what).replace("OPTIONS", shown)
            found.append(PromptConfig(name=f"{how} {n}", prompt_template=template, labels=labels))
    return found


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    rows = rows[: int(sys.argv[2]) if len(sys.argv) > 2 else 200]
    config = load_config("mission")
    (options,) = (prompt.labels for prompt in config.prompts if prompt.name == PROMPT)
    shuffled = random.Random(0)
    orders = [options, *(shuffled.sample(options, len(options)) for _ in range(N_ORDERS - 1))]
    answers: dict[str, list[list[str]]] = {"text": [], "letter": []}
    with Classifier.from_config(config.changed(prompts=tuple(prompts(orders)))) as classifier:
        for row in rows:
            labels = classifier.classify(row["query"]).labels
            answers["text"].append([labels[f"text {n}"] for n in range(N_ORDERS)])
            indices = [string.ascii_uppercase.index(labels[f"letter {n}"]) for n in range(N_ORDERS)]
            answers["letter"].append([order[index] for order, index in zip(orders, indices, strict=True)])
    for how, found in answers.items():
        changes = sum(len(set(each)) > 1 for each in found) / len(rows)
        pairs = [each[n] != each[m] for each in found for n in range(N_ORDERS) for m in range(n)]
        right = [label == row["labels"][PROMPT] for each, row in zip(found, rows, strict=True) for label in each]
        print(f"{how}: {changes:.0%} of the queries have more than one answer in {N_ORDERS} orders,", end=" ")
        print(f"two orders differ in {sum(pairs) / len(pairs):.1%}, {sum(right) / len(right):.0%} are right")


if __name__ == "__main__":
    main()
