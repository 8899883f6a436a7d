"""Mutated configurations and labelled rows: used, refused or left out by name, within their time and memory."""

import json
import resource
import sys
import time
from pathlib import Path

import pytest
from hostile_rows import Row, sizes
from mutate import ODD, mutated

from qcls_gguf import ConfigError, load_config
from qcls_gguf.data.labelled import read_labelled

_CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
_WORDS = b"prompts name prompt_template labels label_prefix scoring runtime model path hf_repo calibration prior bias"
_PIECES = (
    *ODD,
    *(word + b": " for word in _WORDS.split()),
    *(b"!!int ''", b"!!set [a]", b"!!binary x", b"!!python/object:os.system x", b"!!omap [a]", b"!!float x", b"! x"),
    *(b"&a [*a]", b"*a", b"&a ", b"<<: *a", b"<<: [", b"? [a]\n: b", b"{? a : b}", b"<<: {a: 1}", b"!<tag:x> "),
    *(b"2024-13-01", b"0x_", b"1:1:1:1", b"0b2", b".nan", b".inf", b"~", b"yes", b"=", b"<<", b"%YAML 9.9\n---\n"),
    *(b"\n---\n", b"\n...\n", b"|2\n", b">-\n", b"%TAG ! tag:x,2000:\n", b"{query}", b"{labels}", b"{", b"}", b"[]"),
)
_MOST_S = 1.0  # of CPU time
_MOST_BYTES = 200 << 20


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@sizes(1_000, 100_000)
def test_a_mutated_configuration_is_loaded_or_refused(
    row: Row, n: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    row.name, row.n = "configurations (YAML)", n
    contents = [path.read_bytes() for path in _CONFIGS]
    file = tmp_path / "config.yaml"
    load_config(_CONFIGS[0])
    before, slowest = _peak_bytes(), 0.0
    for case, rng in row.cases():
        file.write_bytes(mutated(rng.choice(contents), rng, _PIECES)[: 1 << 20])
        start = time.process_time()
        try:
            load_config(file)
            row.kinds["loaded"] += 1
        except ConfigError as e:
            row.kinds["refused"] += 1
            row.check(not any(ord(c) < 32 and c != "\n" for c in str(e)), f"seed {case}: {e!r}")
        except BaseException as e:
            row.wrong.append(f"seed {case}: {type(e).__name__}: {e}")
        slowest = max(slowest, time.process_time() - start)
    if request.node.get_closest_marker("hostile"):  # alone on the machine
        row.check(slowest <= _MOST_S, f"a file took {slowest:.2f} s")
    grown = _peak_bytes() - before
    row.check(grown <= _MOST_BYTES, f"the memory grew by {grown >> 20} MiB")
    row.kinds[f"at most {slowest:.2f} s, {grown >> 20} MiB"] = row.n
    assert row.kinds["loaded"] > row.n // 100
    assert row.kinds["refused"] > row.n // 4


_LABELS = {"category": ("dress", "jeans", "light blue"), "colour": ("red", "blue")}
_ROW_PIECES = (
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
        path.write_bytes(mutated(content, rng, _ROW_PIECES))
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
