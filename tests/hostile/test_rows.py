"""Mutated files of kept scores, labelled rows and calibrations: used as they are, or refused or left out by name."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile_rows import Row, sizes
from mutate import ODD, mutated

from qcls_gguf import Config, ConfigError, ModelInfo, PromptConfig
from qcls_gguf.config.calibration_file import calibration_text, prompt_hash, read_calibration
from qcls_gguf.data.labelled import read_labelled
from qcls_gguf.evaluation.kept_scores import KeptScores, PromptScores, RowScores

_LABELS = {"category": ("dress", "jeans", "light blue"), "colour": ("red", "blue")}
_PROMPTS = tuple(
    PromptConfig(name=name, prompt_template=f"{name} of {{query}}:", labels=labels) for name, labels in _LABELS.items()
)
_CONFIG = Config(prompts=_PROMPTS)
_SHA256 = "0" * 64
_MODEL = ModelInfo(
    path="m.gguf", sha256=_SHA256, quantization="F32", description="", size_bytes=1, n_gpu_layers=0, device="CPU",
    llama_cpp_commit="", source_digest="", backend="CPU", package_version="0",
)  # fmt: skip
_QUERIES = [f"query {n}" for n in range(12)]
_PIECES = (
    *ODD,
    *(b'["key",', b'"category": {}', b'"category": []', b"[[]]", b"{}", b'"tree": null', b"NaN", b"1e999"),
    *(b'{"query": "', b'"labels": {', b'"dress|jeans"', b",,,", b'""', b"|", b"category", b"colour,colour", b'"\n"'),
    *(b"temperature: ", b"bias: ", b"!!int ''", b"&a [*a]", b"model_sha256: ", b"- ", b"? "),
)


def _scores(n: int) -> RowScores:
    prompts = {}
    for name, labels in _LABELS.items():
        tree = [-0.125 * (n + 1) - index for index in range(len(labels))]
        prompts[name] = PromptScores(tree=tree, joint=[2 * each for each in tree], mean=tree, label_mass=0.5)
    return prompts


def _kept(path: Path) -> KeptScores:
    return KeptScores(path, _CONFIG, _MODEL, exact=True)


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


@sizes(500, 100_000)
def test_mutated_kept_scores_are_whole_or_not_believed(row: Row, n: int, tmp_path: Path) -> None:
    row.name, row.n = "kept scores (resume)", n
    path = tmp_path / "kept.jsonl"
    with _kept(path) as kept:
        for index, query in enumerate(_QUERIES):
            kept.add(query, _scores(index))
    whole = path.read_bytes()
    with _kept(path) as kept:
        wanted = [kept.get(query) for query in _QUERIES]
    assert wanted == [_scores(index) for index in range(len(_QUERIES))]
    for case, rng in row.cases():
        path.write_bytes(mutated(whole, rng, _PIECES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = _try(row, f"seed {case}", lambda: _kept(path))
        if kept is not None:
            with kept:
                found = [kept.get(query) for query in _QUERIES]
            row.kinds["rows kept"] += sum(each is not None for each in found)
            row.kinds["rows to score again"] += sum(each is None for each in found)
            broken = [each for each in found if each is not None and not _is_whole(each)]
            row.check(not broken, f"seed {case}: {broken}")
    assert min(row.kinds["rows kept"], row.kinds["rows to score again"]) > row.n


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        [],
        None,
        {"category": {"tree": [0.0]}},
        {"category": {"tree": [0.0, "0", 1.0]}, "colour": {"tree": [0.0, 1.0]}},
        {"category": {"tree": [0.0, 0.0]}, "colour": {"tree": [0.0, 1.0]}},
        {"category": {"tree": [0.0, 0.0, 0.0], "joint": []}, "colour": {"tree": [0.0, 1.0]}},
        {"category": {"tree": [0.0, 0.0, float("nan")]}, "colour": {"tree": [0.0, 1.0]}},
        {"category": {"tree": [[]]}, "colour": {"tree": 3}},
        "deep",
    ],
)
def test_a_row_of_another_shape_is_scored_again(prompts: Any, tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with _kept(path) as kept:
        for query in _QUERIES[:2]:
            kept.add(query, _scores(1))
    first, second = path.read_bytes().splitlines(keepends=True)
    text = "[" * 100_000 + "]" * 100_000 if prompts == "deep" else json.dumps(prompts)
    path.write_bytes(f'["{json.loads(first)[0]}", {text}]\n'.encode() + second)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _kept(path) as kept:
            assert kept.get(_QUERIES[0]) is None
            assert kept.get(_QUERIES[1]) == _scores(1)


def _is_whole(scores: RowScores) -> bool:
    """Whether there are finite scores for every label of every prompt."""
    return scores.keys() == _LABELS.keys() and all(
        len(values) == len(_LABELS[name]) and all(map(math.isfinite, values))
        for name, each in scores.items()
        for values in (each.tree, each.joint or each.tree, each.mean or each.tree)
    )


def test_damaged_lines_are_counted_and_scored_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with _kept(path) as kept:
        for index, query in enumerate(_QUERIES):
            kept.add(query, _scores(index))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"-0.5", b"-0.a", 1)
    path.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match=r"^`resume` .*: damaged lines: 1; their rows are scored again$"):
        kept = _kept(path)
    with kept:
        assert kept.get(_QUERIES[3]) is None
        kept.add(_QUERIES[3], _scores(3))
    with pytest.warns(UserWarning, match="damaged lines: 1"), _kept(path) as kept:
        assert kept.get(_QUERIES[3]) == _scores(3)


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
