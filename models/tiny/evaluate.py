"""Accuracy of a GGUF file on a query set through stock llama.cpp, by the label tree's rule.

LLAMA_CPP_LIB_PATH=FOLDER python models/tiny/evaluate.py models/fashion-tiny-Q8_0.gguf models/tiny/heldout.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
from corpus import read_queries
from engine import Model
from prompts import CONFIGS, Encoder, Prompt, load_prompts


def label_scores(model: Model, encoder: Encoder, prompt: Prompt, query: str) -> np.ndarray:
    """Every label's log-probability: a softmax over the children of each node on its path in the label tree."""
    base = encoder.prompt(prompt, query)
    paths = [(*encoder.label(prompt, label), encoder.end) for label in prompt.labels]
    score = np.zeros(len(paths))
    for depth in range(max(map(len, paths))):
        for node in sorted({path[:depth] for path in paths if len(path) > depth}):
            below = [i for i, path in enumerate(paths) if path[:depth] == node and len(path) > depth]
            children = sorted({paths[i][depth] for i in below})
            if len(children) == 1:
                continue
            logits = model.logits([*base, *node])[children].astype(np.float64)
            share = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            for i in below:
                score[i] += share[children.index(paths[i][depth])]
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--errors", type=Path, help="write wrong answers to this file")
    args = parser.parse_args()
    encoder, queries = Encoder(), read_queries(args.queries)
    errors = []
    with Model(args.gguf) as model:
        for style in CONFIGS:
            line = []
            for prompt in load_prompts(style):
                right = 0
                for query, labels in queries:
                    score = label_scores(model, encoder, prompt, query)
                    answer = prompt.labels[int(score.argmax())]
                    right += answer == labels[prompt.name]
                    if answer != labels[prompt.name]:
                        errors.append({"style": style, "prompt": prompt.name, "query": query,
                                       "want": labels[prompt.name], "got": answer})  # fmt: skip
                line.append(f"{prompt.name} {right / len(queries):.4f}")
            print(f"{args.gguf.name} {args.queries.name} {style}: " + " ".join(line), flush=True)
    line = []
    for prompt in load_prompts("separate"):
        most = Counter(labels[prompt.name] for _, labels in queries).most_common(1)[0]
        line.append(f"{prompt.name} {most[1] / len(queries):.4f}")
    print(f"majority class, {len(queries)} queries: " + " ".join(line))
    if args.errors:
        text = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in errors)
        args.errors.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
