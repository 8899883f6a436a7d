"""Mutated files of labelled rows: used as they are, or refused or left out by name."""

import json
from pathlib import Path

from hostile_rows import Row, sizes
from mutate import ODD, mutated

from qcls_gguf import ConfigError
from qcls_gguf.data.labelled import read_labelled

_LABELS = {"category": ("dress", "jeans", "light blue"), "colour": ("red", "blue")}
_PIECES = (
    *ODD,
    *(b'"category": {}', b'"category": []', b"[[]]", b"{}", b"NaN", b"1e999"),
    *(b'{"query": "', b'"labels": {', b'"dress|jeans"', b",,,", b'""', b"|", b"category", b"colour,colour", b'"\n"'),
)


@sizes(500, 50_000)
def test_mutated_labelled_files(row: Row, n: int, tmp_path: Path) -> None:
    row.name, row.n = "labelled files (JSON lines, CSV)", n
    rows = [{"query": f"query {n}", "labels": {"category": ["dress", "jeans"], "colour": "red"}} for n in range(8)]
    files = {
        tmp_path / "rows.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        tmp_path / "rows.csv": b"query,category,colour\n" + b'"red, dress",dress|jeans,red\nblue,light blue,\n' * 4,
    }
    for case, rng in row.cases():
        path, content = rng.choice(list(files.items()))
        path.write_bytes(mutated(content, rng, _PIECES))
        try:
            data = read_labelled(path, _LABELS)
        except ConfigError as e:
            row.kinds["refused"] += 1
            text = str(e).replace("\n", "")
            row.check(text.isprintable() and len(text) < 10_000, f"seed {case}: {text[:500]!r}")
            continue
        except BaseException as e:
            row.wrong.append(f"seed {case}: {type(e).__name__}: {e}")
            continue
        row.kinds["rows used"] += len(data.rows)
        row.kinds["rows left out"] += len(data.bad)
        for each in data.rows:
            good = all(set(labels) <= set(_LABELS[name]) for name, labels in each.labels.items()) and each.labels
            row.check(bool(good), f"seed {case}: {each}")
    assert min(row.kinds["rows used"], row.kinds["rows left out"], row.kinds["refused"]) > row.n // 100
