"""`qcls-gguf advise` on the embedded model: what it finds, what it writes, and what it says of bad input."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, invoked

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, load_config
from qcls_gguf.advising.advise import AdviceSettings, advise
from qcls_gguf.advising.comparison import STAGE_FILE
from qcls_gguf.advising.records import AdviceRecord, CandidateRecord
from qcls_gguf.opening import ClassifierOpener

MISSION, FASHION = (load_config(ROOT / "configs" / f"{name}.yaml") for name in ("mission", "fashion-8"))
HELD_OUT = (ROOT / "models" / "tiny" / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
N = 20
LIMIT = 0.85


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The command, run once: what it was asked and what came of it."""

    record: AdviceRecord
    rows: Path
    out: Path
    page: str
    said: str


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The advice for the eight prompts, with the common text that was written by hand as one more candidate."""
    folder = tmp_path_factory.mktemp("advice")
    rows, out, html = folder / "rows.jsonl", folder / "out.yaml", folder / "advice.html"
    rows.write_text("\n".join(HELD_OUT[:N]), encoding="utf-8")
    out.write_text("old", encoding="utf-8")
    options = ["--min-agreement", LIMIT, "--also", "fashion-8-joint", "--force", "--format", "json"]
    run = invoked("advise", "--data", rows, *options, "--write", out, "--html", html)
    assert run.exit_code == 0, run.stderr
    record = AdviceRecord.model_validate_json(run.stdout)
    return Done(record=record, rows=rows, out=out, page=html.read_text(encoding="utf-8"), said=run.stderr)


def advised(**settings: Any) -> AdviceRecord:
    with ClassifierOpener() as opener:
        return advise(AdviceSettings(**{"min_agreement": LIMIT, **settings}), opener)


def by_name(record: AdviceRecord) -> dict[str, CandidateRecord]:
    return {each.name: each for each in record.candidates}


def test_a_common_text_for_the_eight_prompts_is_found_and_recommended(done: Done) -> None:
    found = by_name(done.record)
    assert list(found) == ["present", "fashion-8-joint", "joint", "joint-own", "short-cue", "joint short-cue"]
    present, joint, best = found["present"], found["joint"], done.record.best
    assert best is not None
    assert joint.meets_limit
    assert best.meets_limit
    assert not found["joint-own"].meets_limit
    assert joint.n_tokens == found["fashion-8-joint"].n_tokens
    assert joint.n_tokens < 0.35 * present.n_tokens
    assert joint.time_share < 1
    assert present.accuracy is not None
    assert joint.accuracy == pytest.approx(present.accuracy, abs=0.05)
    assert done.record.n_compared == done.record.data.n_rows == N
    assert all(f'<td class="text">{name}</td>' in done.page for name in found)
    assert done.record.reason.partition(";")[0] in done.page


def test_what_it_writes_answers_as_it_said(done: Done) -> None:
    assert f"written: {done.out}" in done.said
    best = done.record.best
    assert best is not None
    assert done.out.read_text(encoding="utf-8") == best.yaml
    n_same, n_tokens = dict.fromkeys(best.prompts, 0), 0
    with Classifier.from_config(done.out) as after, Classifier.from_config(FASHION) as before:
        for row in HELD_OUT[:N]:
            query = json.loads(row)["query"]
            answers = after.classify(query)
            n_tokens += answers.counts.n_tokens_new
            for name, label in before.classify(query).labels.items():
                n_same[name] += answers.labels[name] == label
    assert n_same == {name: round(N * each.agreement) for name, each in best.prompts.items()}
    assert best.n_tokens == n_tokens / N
    n_other = sum(min(10, N - n) for n in n_same.values())
    assert len(best.changed) == n_other


def test_another_model_is_compared_and_what_cannot_be_opened_is_said(done: Done, tmp_path: Path) -> None:
    small, nothing = (
        dataclasses.replace(MISSION, model=ModelConfig(path=path), path=path.with_suffix(".yaml"))
        for path in (ROOT / "models" / "fashion-tiny-Q4_K_M.gguf", tmp_path / "nothing.gguf")
    )
    record = advised(config=MISSION, queries=done.rows, also=(small, nothing))
    found = by_name(record)
    (note,) = record.notes
    assert note.startswith("nothing is not asked: ")
    assert "no such file" in note.lower()
    other = found["fashion-tiny-Q4_K_M"]
    assert other.model.quantization == "Q4_K_M"
    assert other.least_agreement > 0.8
    assert "fashion-tiny-Q4_K_M.gguf" in (other.yaml or "")
    assert "accuracy" not in other.to_dict()
    with pytest.raises(ConfigError, match="`also` mission: is the name of another candidate: rename the file"):
        advised(config=MISSION, queries=done.rows, also=(MISSION, MISSION))


def test_bad_rows_are_left_out_for_all_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text("red dress\n\xff\n" + "word " * 300 + "\nblue jeans\nred dress\n", encoding="latin-1")
    record = advised(config=MISSION, queries=path)
    assert (record.n_compared, record.data.n_rows, record.data.n_bad) == (2, 2, 2)
    assert [row.line for row in record.data.bad] == [2, 3]
    assert "max_query_tokens" in record.data.bad[1].reason
    path.write_text("word " * 300)
    with pytest.raises(ConfigError, match=r"none of 1 row can be used: line 1: .*max_query_tokens"):
        advised(config=MISSION, queries=path)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"query":\n')
    for rows, words in (
        ({"queries": path}, "`queries` .*has no rows that can be used: line 1: .*is not valid JSON"),
        ({"data": path}, "`data` .*has no rows that can be used: line 1: is not valid JSON"),
        ({}, "give either labelled rows as `data`, or rows without labels as `queries`"),
    ):
        with pytest.raises(ConfigError, match=words):
            advised(config=MISSION, **rows)


def test_one_prompt_has_no_common_text_and_other_candidates_are_compared(done: Done) -> None:
    config = Config(prompts=MISSION.prompts[:1])
    record = advised(config=config, queries=done.rows, cascade=0.99)
    assert record.notes == (
        "no text for all prompts can be derived: there is only one prompt",
        "no cascade: 20 rows are too few to prove an agreement of 99.00% with 95% confidence: 598 are needed at least, "
        "half of them to propose thresholds",
    )
    assert list(by_name(record)) == ["present", "short-cue"]
    assert record.recommended is None


def test_a_cascade_is_fitted_compared_on_unseen_rows_and_can_be_used(done: Done, tmp_path: Path) -> None:
    record = advised(config=FASHION, data=done.rows, cascade=0.7)
    *others, found = record.candidates
    assert found.cascade is not None
    assert found.name == f"cascade of {found.cascade.stage}"
    assert record.n_compared == N // 2
    assert found.n_tokens < others[0].n_tokens
    out = tmp_path / "out.yaml"
    out.write_text(found.yaml or "", encoding="utf-8")
    (tmp_path / STAGE_FILE).write_text(found.cascade.yaml, encoding="utf-8")
    n_first = 0
    with Classifier.from_config(out) as classifier:
        for row in HELD_OUT[:N]:
            for answer in classifier.classify(json.loads(row)["query"]).results:
                if answer.stage == Path(STAGE_FILE).stem:
                    n_first += 1
                    assert answer.probability >= found.cascade.thresholds[answer.prompt]
    assert 0 < n_first <= 8 * N
