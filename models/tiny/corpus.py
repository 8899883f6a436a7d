"""Query sets: the committed dev and held-out files, and token arrays for training.

python models/tiny/corpus.py     writes models/tiny/dev.jsonl and models/tiny/heldout.jsonl
python models/tiny/corpus.py --fresh 2000 --out queries.jsonl     other queries of the held-out part, in neither file
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from compose import Query, make_query
from lexicon import ATTRIBUTES
from prompts import HERE, Encoder, load_prompts

SIZES = {"dev": 1200, "heldout": 800}
CHUNK = 25_000
DROPOUT_CHUNKS = (
    6  # one chunk in six is tokenised with BPE dropout, so that unseen spellings split into pieces met before
)
LONGEST = 200


def fold(text: str) -> str:
    """The text without case and whitespace: what makes two queries the same for the leakage check."""
    return "".join(text.lower().split())


def read_queries(path: Path) -> list[tuple[str, dict[str, str]]]:
    """The queries and labels of a JSON-lines file."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(record["query"], record["labels"]) for record in records]


def kept_out() -> frozenset[str]:
    """The folded text of every query that training must not hold."""
    return frozenset(fold(query) for split in SIZES for query, _ in read_queries(HERE / f"{split}.jsonl"))


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Queries as tokens: flat int16 ids, offsets (n + 1,), and label indices (n, 8)."""

    ids: np.ndarray
    offset: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.offset) - 1


def label_indices(labels: list[dict[str, str]]) -> np.ndarray:
    """Label names as indices into each prompt's label list, (n, 8) uint8."""
    index = [{label: i for i, label in enumerate(p.labels)} for p in load_prompts("separate")]
    return np.array([[index[k][row[a]] for k, a in enumerate(ATTRIBUTES)] for row in labels], dtype=np.uint8)


def tokenise(queries: list[str], labels: list[dict[str, str]], dropout: float = 0.0) -> TokenSet:
    """The token set of labelled queries; all prompts give a query the same ids."""
    encoder = Encoder()
    if dropout:
        encoder.tokenizer.model.dropout = dropout
    stem, stem_ids = encoder.query_stem(load_prompts("separate")[0])
    encoded = encoder.tokenizer.encode_batch([stem + q for q in queries], add_special_tokens=False)
    if dropout:  # the stem is dropped out as well, so queries are cut by characters instead of tokens
        cut = len(stem.rstrip(" "))
        rows = [[i for i, (_, stop) in zip(e.ids, e.offsets, strict=True) if stop > cut] for e in encoded]
    else:
        rows = [e.ids[len(stem_ids) :] for e in encoded]
    offset = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    flat = np.fromiter((i for row in rows for i in row), dtype=np.int16, count=int(offset[-1]))
    return TokenSet(flat, offset, label_indices(labels))


def training_chunk(number: int) -> TokenSet:
    """A chunk of the training set; asserts that it holds no dev or held-out query."""
    rng = random.Random(f"train-{number}")
    banned = kept_out()
    queries: list[Query] = []
    while len(queries) < CHUNK:
        query = make_query("train", rng)
        if fold(query.text) not in banned:
            queries.append(query)
    assert not any(fold(q.text) in banned for q in queries)
    dropout = 0.1 if number % DROPOUT_CHUNKS == 0 else 0.0
    return tokenise([q.text for q in queries], [q.labels for q in queries], dropout)


def training_set(chunks: int, processes: int) -> TokenSet:
    """The training set, made in parallel; depends on the number of chunks alone."""
    with Pool(processes) as pool:
        parts = pool.map(training_chunk, range(chunks), chunksize=1)
    lengths = np.concatenate([np.diff(p.offset) for p in parts])
    offset = np.concatenate([[0], np.cumsum(lengths)])
    return TokenSet(np.concatenate([p.ids for p in parts]), offset, np.concatenate([p.labels for p in parts]))


def write_set(split: str) -> None:
    """Write the queries of a split, no two alike when folded, and print what is new in them."""
    rng = random.Random(f"{split}-queries")
    seen: dict[str, Query] = {}
    while len(seen) < SIZES[split]:
        query = make_query(split, rng)
        if 0 < len(fold(query.text)) <= LONGEST:
            seen.setdefault(fold(query.text), query)
    with (HERE / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for query in seen.values():
            file.write(json.dumps({"query": query.text, "labels": query.labels}, ensure_ascii=False) + "\n")
    print(split, Counter(kind for q in seen.values() for kind in q.novelty))
    for attribute in ATTRIBUTES:
        counts = Counter(q.labels[attribute] for q in seen.values())
        print(f"  {attribute}: majority {max(counts.values()) / len(seen):.3f}", dict(counts.most_common()))


def write_fresh(n: int, seed: str, path: Path) -> None:
    """Write n queries of the held-out part, none of which is in the committed files, no two alike when folded."""
    rng, seen = random.Random(seed), set(kept_out())
    with path.open("w", encoding="utf-8") as file:
        while n:
            query = make_query("heldout", rng)
            if 0 < len(fold(query.text)) <= LONGEST and fold(query.text) not in seen:
                seen.add(fold(query.text))
                file.write(json.dumps({"query": query.text, "labels": query.labels}, ensure_ascii=False) + "\n")
                n -= 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", type=int, metavar="N", help="write N other queries of the held-out part instead")
    parser.add_argument("--seed", default="advise-2000", help="of these")
    parser.add_argument("--out", type=Path, help="the file for them")
    args = parser.parse_args()
    if args.fresh and not args.out:
        parser.error("--fresh needs --out")
    if args.fresh:
        write_fresh(args.fresh, args.seed, args.out)
        return
    for name in SIZES:
        write_set(name)


if __name__ == "__main__":
    main()
