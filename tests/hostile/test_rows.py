"""Mutated files of labelled rows and calibrations: used as they are, or refused or left out by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostile_rows import Row, sizes
from mutate import ODD, mutated

from qcls_gguf import Config, ConfigError, PromptConfig
from qcls_gguf.config.calibration_file import calibration_text, prompt_hash, read_calibration
from qcls_gguf.data.labelled import read_labelled

_LABELS = {"category": ("dress", "jeans", "light blue"), "colour": ("red", "blue")}
_PROMPTS = tuple(
    PromptConfig(name=name, prompt_template=f"{name} of {{query}}:", labels=labels) for name, labels in _LABELS.items()
)
_CONFIG = Config(prompts=_PROMPTS)
_SHA256 = "0" * 64
_PIECES = (
    *ODD,
    *(b'["key",', b'"category": {}', b'"category": []', b"[[]]", b"{}", b'"tree": null', b"NaN", b"1e999"),
    *(b'{"query": "', b'"labels": {', b'"dress|jeans"', b",,,", b'""', b"|", b"category", b"colour,colour", b'"\n"'),
    *(b"temperature: ", b"bias: ", b"!!int ''", b"&a [*a]", b"model_sha256: ", b"- ", b"? "),
)


def _try(row: Row, case: str, attempt: Callable[[], object]) -> Any:
    """What the attempt gives; None where it was refused."""
    try:
        found = attempt()
    except ConfigError as e:
        row.kinds["refused"] += 1
        text = str(e).replace("\n", "")
        row.check(text.isprintable() and len(text) < 10_000, f"{case}: {text[:500]!r}")
        return None
    except BaseException as e:
        row.wrong.append(f"{case}: {type(e).__name__}: {e}")
        return None
    row.kinds["used"] += 1
    return found


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
        data = _try(row, f"seed {case}", lambda path=path: read_labelled(path, _LABELS))  # type: ignore[misc]
        if data is not None:
            row.kinds["rows used"] += len(data.rows)
            row.kinds["rows left out"] += len(data.bad)
            for each in data.rows:
                good = all(set(labels) <= set(_LABELS[name]) for name, labels in each.labels.items()) and each.labels
                row.check(bool(good), f"seed {case}: {each}")
    assert min(row.kinds["rows used"], row.kinds["rows left out"], row.kinds["refused"]) > row.n // 100


@sizes(500, 50_000)
def test_mutated_calibrations(row: Row, n: int, tmp_path: Path) -> None:
    row.name, row.n = "calibration files (YAML)", n
    path = tmp_path / "calibration.yaml"
    config = replace(_CONFIG, calibration=path)
    entries = {
        prompt.name: {
            "prompt_hash": prompt_hash(prompt),
            "scoring": prompt.scoring,
            "temperature": 1.25,
            "bias": dict.fromkeys(prompt.labels, 0.5),
            "fit": {"n_rows": 100},
        }
        for prompt in _PROMPTS
    }
    whole = calibration_text(_SHA256, entries).encode()
    path.write_bytes(whole)
    assert read_calibration(config)
    for case, rng in row.cases():
        path.write_bytes(mutated(whole, rng, _PIECES))
        found = _try(row, f"seed {case}", lambda: read_calibration(config))
        if found is not None:
            for name, fit in found.prompts.items():
                good = 0.01 <= fit.temperature <= 100 and len(fit.bias or _LABELS[name]) == len(_LABELS[name])
                row.check(good, f"seed {case}: {fit}")
    assert min(row.kinds["used"], row.kinds["refused"]) > row.n // 100
