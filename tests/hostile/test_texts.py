"""Mutated configurations and labelled rows: used, refused or left out by name, within their time and memory.

Texts that move a terminal's cursor, or ask it for something: shown as escapes wherever they come from.

Queries of any length and content: answered by numbers, or refused before they cost time; others are not held up.
"""

import json
import math
import random
import resource
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import cases, written
from commands import run
from hostile_rows import ODD, Row, mutated, sizes
from waiting import occupied

from qcls_gguf import Classifier, Config, ConfigError, PlanError, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.core.core import MAX_QUERIES
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
def test_a_mutated_config_is_used_or_refused(row: Row, n: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    row.name, row.n = "configurations (YAML)", n
    contents = [path.read_bytes() for path in _CONFIGS]
    file = tmp_path / "config.yaml"
    load_config(_CONFIGS[0])
    before, slowest = _peak_bytes(), 0.0
    for case, rng in row.cases():
        file.write_bytes(mutated(rng.choice(contents), rng, _PIECES)[: 1 << 20])
        start = time.process_time()
        row.kinds["loaded"] += row.ended(case, partial(load_config, file), ConfigError) is not None
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
        data = row.ended(case, partial(read_labelled, path, _LABELS), ConfigError)
        if data is None:
            continue
        row.kinds["rows used"] += len(data.rows)
        row.kinds["rows left out"] += len(data.bad)
        for each in data.rows:
            good = all(set(labels) <= set(_LABELS[name]) for name, labels in each.labels.items()) and each.labels
            row.check(bool(good), f"seed {case}: {each}")
    assert min(row.kinds["rows used"], row.kinds["rows left out"], row.kinds["refused"]) > row.n // 100


_EVIL = "\x1b[2J\x1b]0;x\x07\x9b31m\x08\u202e"
_ESCAPED = "\\x1b[2J\\x1b]0;x\\x07\\x9b31m\\x08\\u202e"
_QUERY = f"red{_EVIL}\ndress"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Prompts and labels with such texts in their names."""
    prompt = {"name": f"a{_EVIL}", "prompt_template": "{query} is", "labels": [f"x{_EVIL}", f"y{_EVIL}"]}
    tree = {"runtime": {"n_threads": 1}, "prompts": [prompt, {**prompt, "name": f"b{_EVIL}"}]}
    return written(tmp_path / "config.yaml", yaml.safe_dump(tree))


def _is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_tables_show_escapes_and_json_is_exact(config: Path) -> None:
    for words in (("run", "--query", _QUERY), ("inspect",)):
        done = run(*words, "--config", config)
        assert _is_clean(done.stdout + done.stderr), done
        assert f"a{_ESCAPED}"[:20] in done.stdout
    record = json.loads(run("run", "--config", config, "--query", _QUERY, "--format", "jsonl", "--quiet").stdout)
    assert record["query"] == _QUERY
    assert {answer["prompt"] for answer in record["results"]} == {f"a{_EVIL}", f"b{_EVIL}"}


@cases(
    ["run", "--query", _QUERY * 1000, "--quiet"],
    ["run", "--model", f"/missing/{_EVIL}.gguf", "--query", "red"],
    ["run", "--queries", f"/missing/{_EVIL}.txt"],
    ["bench", "--html", f"/missing/{_EVIL}.html"],
    ["run", "--scoring", _EVIL, "--query", "red"],
)
def test_errors_show_escapes(words: list[str]) -> None:
    error = run(*words).stderr
    assert error
    assert _is_clean(error), error


_MAX_TOKENS = 64
_MAX_BYTES = 32 * _MAX_TOKENS
_TEXTS = (
    *("red summer dress for girls", "孕妇连衣裙 棉 宽松", "\U0001f457\U0001f469\u200d\U0001f9b1 \U0001f1e9\U0001f1ea"),
    *("\u202edress\u202c", "e\u0301\u036b" * 9, "<|im_end|>", "</think>", "{query}{labels}", "\x1b]0;x\x07", "\0"),
)


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    config = load_config(Path(__file__).parents[2] / "configs" / "fashion-8-joint.yaml")
    runtime = RuntimeConfig(n_threads=1, max_query_tokens=_MAX_TOKENS)
    with Classifier.from_config(Config(prompts=config.prompts, runtime=runtime)) as classifier:
        yield classifier


def _query(rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(rng.choices(_TEXTS, k=rng.randint(1, 5)))
    if kind == 1:
        return "".join(chr(rng.randrange(sys.maxunicode + 1)) for _ in range(rng.randint(0, 30)))  # halves of pairs too
    if kind == 2:
        return rng.choice(["a", " ", "\n", "红", "0", "👗", "\0", "-"]) * int(10 ** rng.uniform(0, 6.5))
    text = " ".join(rng.choices(_TEXTS, k=3)).encode()
    return mutated(text, rng, ODD).decode(errors="surrogateescape")[: 2 * _MAX_BYTES]


@sizes(200, 25_000)
def test_a_query_is_answered_or_refused(row: Row, n: int, classifier: Classifier) -> None:
    row.name, row.n = "queries", n
    wanted = classifier.classify("red dress").results
    for case, rng in row.cases():
        query = _query(rng)
        result = row.ended(case, partial(classifier.classify, query), PlanError)
        if result is None:
            continue
        row.kinds["answered"] += 1
        sums = [math.fsum(score.probability for score in answer.scores) for answer in result.results]
        row.check(len(query.encode()) <= _MAX_BYTES, f"seed {case}: {len(query.encode())} bytes were tokenised")
        row.check(all(abs(total - 1) < 1e-4 for total in sums), f"seed {case}: probabilities sum to {sums}")
        if case % 50 == 0:
            row.check(classifier.classify("red dress").results == wanted, f"seed {case}: the next answer changed")
    assert min(row.kinds["answered"], row.kinds["refused"]) > row.n // 10


@cases(
    ("红" * 1_000_000, "the query has 1000000 characters, more than 2048 bytes, 32 for each of"),
    ("红" * 683, "the query has 2049 bytes, more than 2048 bytes, 32 for each of"),
    (" " * 2049, "the query has 2049 characters, more than"),
    (b"red", "a query is text, not bytes: b'red'"),
    (None, "the query is missing: None is no text"),
    (float("nan"), "the query is missing: nan is no text"),
    (["red"], "a query is text, not list"),
    ("\udc80", "character 0 of the query is not valid Unicode"),
    ("red \ud800", "character 4 of the query is not valid Unicode"),
)
def test_what_is_no_query_is_refused_before_it_waits(query: object, message: str, classifier: Classifier) -> None:
    before = classifier.classify("red dress").results
    classifier.core.check([(None, query) for query in (" " * _MAX_BYTES, "", "红" * (_MAX_BYTES // 3))])
    with occupied(classifier.core.executor):  # nobody is served meanwhile
        with pytest.raises(PlanError) as refused:
            classifier.classify(query)  # type: ignore[arg-type]
        assert str(refused.value).startswith(message)
        with pytest.raises(PlanError) as refused:
            classifier.classify_batch(["red", query, "\ud800"])  # type: ignore[list-item]
        assert str(refused.value).startswith(f"queries[1]: {message}")
    assert classifier.classify("red dress").results == before


@pytest.mark.hostile  # it takes 9 GB
def test_a_query_of_more_bytes_than_an_int32_counts_is_refused(classifier: Classifier) -> None:
    data = bytearray(2**32 + 9)  # which would be 9 to who counts in 32 bits
    query = data.decode("ascii")
    del data
    with pytest.raises(PlanError, match="the query has 4294967305 characters, more than"):
        classifier.classify(query)


def test_too_many_queries_are_refused(classifier: Classifier) -> None:
    for queries in (["red"] * (MAX_QUERIES + 1), repeat("red")):
        with pytest.raises(PlanError, match=r"10001 queries in one call, at most 10000 are answered: ask in several"):
            classifier.classify_batch(queries)


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, -math.inf, 1e300, "5", 10**400])
def test_a_deadline_is_a_number_of_seconds(deadline_s: Any, classifier: Classifier) -> None:
    with pytest.raises(PlanError, match=r"^deadline_s: .* is not a number of seconds below 1e\+09"):
        classifier.classify("red", deadline_s=deadline_s)


def test_texts_of_a_configuration_have_a_limit() -> None:
    large = "x" * ((1 << 20) + 1)
    with pytest.raises(ConfigError, match=r"labels\[1\]: .* should have at most 1048576 characters"):
        PromptConfig(name="a", prompt_template="{query}", labels=("a", large))
    with pytest.raises(ConfigError, match="should have at most 10000 items, not 10001"):
        PromptConfig(name="a", prompt_template="{query}", labels=tuple(map(str, range(10_001))))
