"""`qcls-gguf advise` on the embedded model: what it finds, what it writes, and what it says of bad input."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeModel
from jsonschema import Draft202012Validator

from qcls_gguf import Classifier, ConfigError, load_config
from qcls_gguf.advising.advise import advise
from qcls_gguf.advising.cascading import STAGE_FILE
from qcls_gguf.advising.html import advice_html
from qcls_gguf.advising.records import AdviceRecord, CandidateRecord
from qcls_gguf.advising.settings import AdviceSettings
from qcls_gguf.advising.table import advice_tables
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.report.record import json_schema
from qcls_gguf.report.results import console

ROOT = Path(__file__).parents[2]
MISSION, FASHION = (load_config(ROOT / "configs" / f"{name}.yaml") for name in ("mission", "fashion-8"))
HELD_OUT = (ROOT / "models" / "tiny" / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
N = 20
LIMIT = 0.85


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The command, run once: what it was asked and what came of it."""

    record: AdviceRecord
    rows: Path
    out: Path
    kept: Path
    said: str


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The advice for the eight prompts, with the common text that was written by hand as one more candidate."""
    folder = tmp_path_factory.mktemp("advice")
    rows, out, kept = folder / "rows.jsonl", folder / "out.yaml", folder / "answers.jsonl"
    rows.write_text("\n".join(HELD_OUT[:N]), encoding="utf-8")
    out.write_text("old", encoding="utf-8")
    words = ["--queries", rows, "--min-agreement", LIMIT, "--latency-sample", "2", "--also", "fashion-8-joint",
             "--resume", kept, "--write", out, "--force", "--format", "json"]  # fmt: skip
    command = [COMMAND, "advise", *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    record = AdviceRecord.model_validate_json(run.stdout)
    return Done(record=record, rows=rows, out=out, kept=kept, said=run.stderr)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A few queries."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(HELD_OUT[:6]), encoding="utf-8")
    return path


def advised(**settings: Any) -> AdviceRecord:
    settings = {"n_latency": 2, "min_agreement": LIMIT, **settings}
    with ClassifierOpener() as opener:
        return advise(AdviceSettings(**settings), opener)


def by_name(record: AdviceRecord) -> dict[str, CandidateRecord]:
    return {each.name: each for each in record.candidates}


@pytest.fixture(scope="module")
def eight(done: Done) -> AdviceRecord:
    """Its record."""
    return done.record


def test_a_common_text_for_the_eight_prompts_is_found_and_recommended(eight: AdviceRecord) -> None:
    found = by_name(eight)
    joint, original = found["joint"], found["original"]
    assert joint.state == "tried"
    assert joint.tokens_share is not None
    assert joint.tokens_share <= 0.35
    assert joint.meets_limit
    best = found[eight.recommended or ""]  # several have a common text: which of them is the fastest, the clock decides
    assert best.meets_limit
    assert best.tokens_share is not None
    assert best.tokens_share < 1
    assert original.accuracy is not None
    assert joint.accuracy is not None
    assert abs(joint.accuracy - original.accuracy) < 0.05
    assert joint.tokens_share == found["fashion-8-joint"].tokens_share


def test_what_is_worse_or_feeds_more_is_told(eight: AdviceRecord) -> None:
    own, query_first = by_name(eight)["joint-own"], by_name(eight)["query-first"]
    assert own.prompts["category"].clearly_worse
    assert not own.meets_limit
    assert query_first.state == "not tried"
    assert query_first.note == (
        f"feeds {query_first.n_tokens:.1f} tokens a request, the original {eight.candidates[0].n_tokens:.1f}"
    )


def test_the_planned_tokens_are_those_that_are_fed(eight: AdviceRecord) -> None:
    with Classifier.from_config(FASHION) as classifier:
        fed = [classifier.classify(json.loads(row)["query"]).counts.n_tokens_new for row in HELD_OUT[:N]]
    assert eight.candidates[0].n_tokens == pytest.approx(sum(fed) / N)


def test_the_record_is_what_its_schema_says_and_can_be_shown(eight: AdviceRecord) -> None:
    Draft202012Validator(json_schema(AdviceRecord)).validate(json.loads(eight.to_json()))
    with console().capture() as captured:
        console().print(advice_tables(eight))
    del captured
    page = advice_html(eight)
    for each in eight.candidates:
        assert f'<td class="text">{each.name}</td>' in page
    assert page.count("<img") == 1
    assert "http" not in page.replace("http://www.w3.org", "").replace("https://json-schema.org", "")


def test_a_prompt_that_loses_by_joining_stays_apart(done: Done, tmp_path: Path) -> None:
    """At a limit of 1 every prompt with another answer loses; no answer is computed again."""
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(done.kept.read_bytes())
    record = advised(config=FASHION, queries=done.rows, resume=kept, min_agreement=1.0, n_latency=0)
    joint = by_name(record)["joint"]
    losers = [name for name, each in joint.prompts.items() if each.n_agree < each.n]
    assert 0 < len(losers) < 7
    apart = by_name(record)[f"joint but {', '.join(losers)}"]
    assert apart.meets_limit
    assert apart.least_agreement == 1.0
    assert joint.n_tokens is not None
    assert apart.n_tokens is not None
    assert joint.n_tokens < apart.n_tokens < (record.candidates[0].n_tokens or 0)
    assert kept.read_bytes() == done.kept.read_bytes()


def test_what_it_writes_answers_as_it_said(done: Done) -> None:
    assert f"written: {done.out}" in done.said
    best = by_name(done.record)[done.record.recommended or ""]
    assert done.out.read_text(encoding="utf-8") == best.yaml
    n_same = dict.fromkeys(best.prompts, 0)
    with Classifier.from_config(done.out) as after, Classifier.from_config(FASHION) as before:
        for row in HELD_OUT[:N]:
            query = json.loads(row)["query"]
            answers = after.classify(query).labels
            for name, label in before.classify(query).labels.items():
                n_same[name] += answers[name] == label
    assert n_same == {name: each.n_agree for name, each in best.prompts.items()}


def test_a_second_run_goes_on_from_what_was_kept(done: Done) -> None:
    lines = done.kept.read_bytes().splitlines()
    assert {each.state for each in done.record.candidates} >= {"original", "tried", "not tried"}
    again = advised(
        config=FASHION, queries=done.rows, resume=done.kept, also=(load_config("fashion-8-joint"),), n_latency=0
    )
    assert done.kept.read_bytes().splitlines() == lines
    assert [(each.name, each.prompts) for each in again.candidates] == [
        (each.name, each.prompts) for each in done.record.candidates
    ]


def test_models_of_a_ladder_are_tried_and_what_cannot_be_is_said(
    rows: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    ladder = tmp_path / "ladder.yaml"
    paths = ["none.gguf", make_model(), ROOT / "models" / "fashion-tiny-Q4_K_M.gguf"]
    lines = [*(f"path: {path}" for path in paths), "hf_repo: none/there"]
    ladder.write_text("models:\n" + "".join(f"  - {line}\n" for line in lines))
    record = advised(config=MISSION, queries=rows, models=ladder, n_latency=1)
    found = by_name(record)
    notes = [each.note or "" for each in record.candidates if each.state == "not tried"]
    assert any("none.gguf" in note and "no such file" in note.lower() for note in notes), notes
    assert any("has another vocabulary" in note for note in notes), notes
    assert "there is not on disk, and is fetched only with `fetch`" in notes
    small = found["original, fashion-tiny-Q4_K_M"]
    assert small.state == "tried"
    assert small.quantization == "Q4_K_M"
    assert small.least_agreement is not None
    assert small.least_agreement > 0.8
    assert small.latency is not None
    assert small.yaml is not None
    assert "fashion-tiny-Q4_K_M.gguf" in small.yaml


def test_bad_rows_are_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text("red dress\n\xff\n" + "word " * 300 + "\nblue jeans\n", encoding="latin-1")
    record = advised(config=MISSION, queries=path, n_latency=0)
    assert record.queries.n_queries == 2
    assert [row.line for row in record.queries.bad] == [2, 3]
    assert "max_query_tokens" in record.queries.bad[1].reason
    assert (record.candidates[0].n_tokens or 0) < 30  # the query that was refused does not count
    path.write_text("word " * 300)
    with pytest.raises(ConfigError, match="none of 1 queries can be used"):
        advised(config=MISSION, queries=path)
    for name, text, words in [
        ("q.jsonl", '{"query":\n', "`queries` .*q.jsonl: has no queries that can be used: line 1 is not valid JSON"),
        ("q.csv", "text\nred\n", "`queries` .*q.csv: has no column 'query': the columns are 'text'; name the one"),
        ("e.txt", "\n", "`queries` .*e.txt: has no queries that can be used: give one a line"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=words):
            advised(config=MISSION, queries=tmp_path / name)
    for path, words in [(tmp_path / "none.txt", "no such file"), (tmp_path, "cannot be read: name a plain file")]:
        with pytest.raises(ConfigError, match=f"`queries` .*: {words}"):
            advised(config=MISSION, queries=path)


def test_one_prompt_has_no_common_text_and_other_candidates_are_tried(rows: Path) -> None:
    config = dataclasses.replace(MISSION, prompts=MISSION.prompts[:1])
    record = advised(config=config, queries=rows, n_latency=0)
    assert record.notes[0] == "no text for all prompts can be derived: there is only one prompt"
    assert "short-cue" in by_name(record)
    assert record.recommended is None


def test_a_given_configuration_has_to_ask_for_the_same(rows: Path) -> None:
    with pytest.raises(ConfigError, match="mission: has the prompts category, audience, not"):
        advised(config=FASHION, queries=rows, also=(MISSION,))


def test_a_cascade_is_fitted_timed_and_can_be_used(done: Done, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(done.kept.read_bytes())
    record = advised(config=FASHION, queries=done.rows, resume=kept, cascade=0.7, n_latency=1)
    (found,) = (each for each in record.candidates if each.cascade is not None)
    assert found.cascade is not None
    assert found.latency is not None
    thresholds = {name: each.threshold for name, each in found.cascade.prompts.items()}
    assert any(threshold is not None for threshold in thresholds.values())
    for each in found.cascade.prompts.values():
        assert each.n == N // 2
        assert each.threshold is None or each.least_agreement >= 0.7
    assert found.n_tokens is not None
    assert found.n_tokens < (record.candidates[0].n_tokens or 0)
    out = tmp_path / "out.yaml"
    out.write_text(found.yaml or "", encoding="utf-8")
    (tmp_path / STAGE_FILE).write_text(found.cascade.yaml, encoding="utf-8")
    tokens = []
    with Classifier.from_config(out) as classifier:
        rows = {json.loads(row)["query"] for row in HELD_OUT[:N]}
        for query in rows:
            result = classifier.classify(query)
            tokens.append(result.counts.n_tokens_new)
            for answer in result.results:
                threshold = thresholds[answer.prompt]
                is_first = answer.stage == Path(STAGE_FILE).stem
                assert is_first == (threshold is not None and is_first and answer.probability >= threshold)
    assert max(tokens) > min(tokens)


def test_too_few_queries_for_a_guarantee_are_told(done: Done, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(done.kept.read_bytes())
    record = advised(config=FASHION, queries=done.rows, resume=kept, cascade=0.99, n_latency=0)
    assert record.notes[0] == (
        f"no cascade is fitted: {N} queries are too few to prove an agreement of 99.00% with 95% confidence: "
        "598 are needed at least, half of them to propose thresholds"
    )
    assert not any(each.cascade for each in record.candidates)
