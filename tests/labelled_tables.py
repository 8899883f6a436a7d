"""Output files of `qcls-gguf label`: read again, and compared with what `classify` answers."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import COMMAND, tiny_rows

from qcls_gguf import Classifier

CONFIG = "mission"
CLOSE = 0.02
"""of probabilities: what other queries in a decode do to the arithmetic"""


HELD_OUT = [row["query"] for row in tiny_rows("heldout")]
QUERIES = HELD_OUT[:30]


def label_command(path: Path, out: Path, *options: str) -> list[str]:
    """The command that labels a file, 8 queries a decode, with one thread."""
    line = [COMMAND, "label", str(path), "--out", str(out), "--config", CONFIG, "--threads", "1", "--batch", "8"]
    return [*line, *options]


def parquet(path: Path, queries: list[str | None], **options: Any) -> Path:
    """Write a table of ids and queries."""
    columns = {"id": pa.array(range(len(queries)), pa.int16()), "query": pa.array(queries, pa.large_string())}
    pq.write_table(pa.table(columns), path, **options)
    return path


def outputs(folder: Path) -> list[str]:
    """The names of the output files."""
    files = [path.name for path in folder.iterdir()] if folder.exists() else []
    return sorted(name for name in files if not name.startswith(".") and name not in ("manifest.json", "done.jsonl"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return [dict(row) for row in csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


def check_like_classify(classifier: Classifier, rows: Sequence[Mapping[str, Any]], digits: int = 17) -> None:
    """Every row has the labels that `classify` gives its query, or none and a reason.

    Where two labels are equally probable but for rounding, either may be the answer.
    """
    for row in rows:
        if row["error"]:
            assert not row["category"]
            continue
        for answer in classifier.classify(row["query"]).results:
            near = {score.label for score in answer.scores if score.probability > answer.probability - CLOSE}
            assert row[answer.prompt] in near, row
            found = float(row[f"{answer.prompt}_probability"])
            assert abs(found - answer.probability) < CLOSE + 10**-digits, row


def query_log(path: Path, n_rows: int, n_queries: int) -> None:
    """A Parquet file like a query log: the n-th query 1/n as often as the first."""
    weight = 1 / np.arange(1, n_queries + 1)
    drawn = np.random.default_rng(1).choice(n_queries, n_rows, p=weight / weight.sum())
    queries = [f"{QUERIES[n % len(QUERIES)]} {n}" for n in range(n_queries)]
    columns = {"id": pa.array(np.arange(n_rows)), "query": pa.array(queries).take(pa.array(drawn))}
    pq.write_table(pa.table(columns), path, row_group_size=131_072)
