"""`qcls-gguf learn` on small models: what it writes answers as it says, and what it refuses."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from cases import cases, written
from commands import change, invoked
from conftest import MakeModel, WriteConfig
from gguf_parts import with_nan_embedding
from labelled_tables import rows_of
from oracle import PromptSpec
from oracle_prompts import EXACT

from qcls_gguf import Classifier, PromptHandle, QclsError
from qcls_gguf.learning import learn as learn_module
from qcls_gguf.learning.passes import StateRows, state_rows
from qcls_gguf.learning.report import RequestCost

TEXT = "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
LABELS = ("red", "light blue", "none")
PROMPTS = [PromptSpec(name=name, template=f"{TEXT}{name}:", labels=LABELS) for name in ("color", "shade")]
WORDS = {"red": "red", "light blue": "blue", "none": "small"}
N = 90


@pytest.fixture
def config(write_config: WriteConfig) -> Path:
    return write_config({"n_layer": 5}, PROMPTS, question_prefixes=0, **EXACT)  # as with heads, to leave layers out


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows whose last word tells the colour; the shade is that of a coin."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(N):
        label = LABELS[index % 3]
        rows.append({"query": f"{rng.choice(['dress', 'coat', 'skirt'])} {index} {WORDS[label]}", "color": label,
                     "shade": LABELS[rng.integers(3)]})  # fmt: skip
    return write_rows(tmp_path / "labelled.csv", rows)


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def run(*arguments: object) -> tuple[int, Any, str]:
    """(exit code, record, what it says beside that)."""
    result = invoked("learn", "--format", "json", *arguments)
    return result.exit_code, json.loads(result.stdout) if result.stdout else None, result.stderr


def test_what_rows_tell_is_learnt_and_what_they_do_not_is_not(config: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads.npz"
    code, record, said = run("--data", data, "--config", config, "--out", out)
    color, shade = record["prompts"]["color"], record["prompts"]["shade"]
    assert code == 0, said
    assert color["kept"]
    assert color["learnt"]["accuracy"] > 0.9 > color["zero_shot"]["accuracy"]
    assert not shade["kept"]
    assert "90 labelled rows for 3 labels: 100 to 300 are usual" in shade["reason"]
    assert f"written: {out}; left out: shade" in said
    assert (record["depths"], 0.8 < color["of_half"] <= color["learnt"]["accuracy"]) == ([2, 3, 4, 5], True)
    for each in (color, shade):
        n_wrong = round((1 - each["learnt"]["accuracy"]) * N)
        matrix = np.array(each["learnt"]["confusion_matrix"])
        assert matrix.sum() - matrix.trace() == n_wrong

    change(config, heads=str(out))
    with Classifier.from_config(config) as classifier:
        answers = [(classifier.classify(row["query"]).results, row) for row in rows_of(data)]
        named = [classifier.classify(label).results[0].label for label in LABELS]
    assert named == [*LABELS]  # though no row has the words light and none
    assert {answer.depth for (answer, _), _ in answers} == {color["depth"]}
    assert {answer.depth for (_, answer), _ in answers} == {None}

    evaluated = json.loads(invoked("eval", "-c", config, "--data", data, "-f", "json").stdout)
    assert evaluated["n_known"] == N
    assert evaluated["words"]["color"] == color["words"] > 0.9
    shown = invoked("eval", "-c", config, "--data", data).stdout
    learnt = invoked("learn", "-c", config, "--data", data, "--out", tmp_path / "again.npz", "--prompt", "color").stdout
    assert "stated for queries of which 33% are red, 33% are light blue, 33% are none" in " ".join(learnt.split())
    assert f"heads were learnt from the queries of {N} rows" in " ".join(shown.split())
    assert "color: a linear model of words" in " ".join(shown.split())
    right = sum(answer.label == row["color"] for (answer, _), row in answers)
    assert right / N >= color["learnt"]["accuracy"] - 0.02


def test_a_file_is_written_whole_and_not_over_another(config: Path, data: Path, tmp_path: Path) -> None:
    out = written(tmp_path / "heads.npz", "other")
    code, _, said = run("--data", data, "--config", config, "--out", out)
    assert (code, out.read_text()) == (2, "other")
    assert "is there already" in said
    code, record, _ = run("--data", data, "-c", config, "--out", out, "--force", "--prompt", "color", "--depth", 3)
    assert (code, list(record["prompts"]), record["depths"]) == (0, ["color"], [3, 5])
    assert out.read_bytes().startswith(b"PK")


@cases(
    ([("a dress", "red")] * 30, "all 30 rows have one label, 'red'"),
    ([(f"a {n}", LABELS[n % 3]) for n in range(19)], "19 labelled rows for 3 labels: 100 to 300 are usual"),
)
def test_why_nothing_can_be_learnt(rows: list[tuple[str, str]], reason: str, config: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.csv", [{"query": query, "color": label} for query, label in rows])
    out = tmp_path / "heads.npz"
    code, record, said = run("--data", data, "--config", config, "--out", out, "--prompt", "color")
    assert code == 1
    assert reason in record["prompts"]["color"]["reason"]
    assert record["prompts"]["color"]["learnt"] is None
    assert "nothing written" in said
    assert not out.exists()


def test_labels_without_rows_keep_their_texts(config: Path, data: Path, tmp_path: Path) -> None:
    """Beside those that are learnt; not where the head would have to stand alone."""
    rows = [row for row in rows_of(data) if row["color"] != "none"]
    some, out = write_rows(tmp_path / "some.csv", rows), tmp_path / "heads.npz"
    arguments = ("--data", some, "--config", config, "--prompt", "color", "--out", out)
    code, record, said = run(*arguments)
    color = record["prompts"]["color"]
    assert (code, color["kept"], color["reads_labels"], color["unlearnt"]) == (0, True, True, ["none"]), said
    change(config, heads=str(out))
    with Classifier.from_config(config) as classifier, np.load(out) as file:
        assert not file["weight0"][:, 2].any()
        scores = classifier.classify("small").results[0].scores
        assert 0 < scores[2].probability < 1
        assert sum(score.probability for score in scores) == pytest.approx(1, abs=1e-5)


def test_a_single_prompts_own_text_is_tried_first(
    config: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its labels' scores are not read of all rows; a head of it reads no labels."""
    monkeypatch.setattr(learn_module, "_OWN_TOKENS", 100)
    record = run("--data", data, "--config", config, "--prompt", "color", "--out", tmp_path / "heads.npz")[1]
    color = record["prompts"]["color"]
    assert record["text"] == f"{TEXT}color:"
    assert (color["kept"], color["text"], color["reads_labels"], color["n_compared"]) == (True, None, False, 60)
    both = run("--data", data, "--config", config, "--out", tmp_path / "both.npz")[1]
    assert both["text"] == f"{TEXT}{{name}}:"


def test_a_label_that_is_too_long_for_a_query_is_no_row(write_config: WriteConfig, tmp_path: Path) -> None:
    labels = (*LABELS[:2], " ".join(["small"] * 40))
    config = write_config({"n_layer": 5}, [PromptSpec(name="color", template=TEXT, labels=labels)], max_query_tokens=16)
    rows = [{"query": f"coat {WORDS[LABELS[n % 3]]} {n}", "color": labels[n % 3]} for n in range(60)]
    code, record, said = run(
        "-d", write_rows(tmp_path / "rows.csv", rows), "-c", config, "--out", tmp_path / "heads.npz"
    )
    assert (code, record["prompts"]["color"]["unlearnt"]) == (0, []), said


def test_a_prompt_without_rows_is_left_as_it_is(config: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.csv", [{"query": f"dress {n}", "color": LABELS[n % 3]} for n in range(30)])
    record = run("--data", data, "--config", config, "--out", tmp_path / "heads.npz")[1]
    assert record["prompts"]["shade"]["zero_shot"] is None
    assert record["prompts"]["shade"]["reason"] == "0 labelled rows for 3 labels: 100 to 300 are usual"


def test_contradictions_are_counted(config: Path, tmp_path: Path) -> None:
    rows = [("a", "red"), ("a", "none"), ("b", "none"), ("b", "none"), ("c", "light blue")] * 3
    data = write_rows(tmp_path / "rows.csv", [{"query": query, "color": label} for query, label in rows])
    assert run("--data", data, "--config", config, "--out", tmp_path / "h.npz")[1]["data"]["n_contradictions"] == 1
    assert "1 query with different labels in several rows" in invoked("eval", "--data", data, "--config", config).stdout


def test_rows_beyond_memory_are_left(config: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--data", data, "--config", config, "--out", tmp_path / "heads.npz")
    monkeypatch.setattr(learn_module, "_MOST_CELLS", 3 * (N - 10))
    record = run(*arguments)[1]
    assert (record["data"]["n_rows"], record["prompts"]["color"]["n_rows"]) == (N, N - 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    code, record, said = run(*arguments, "--force")
    assert (code, record) == (2, None)
    assert "states take 0 MiB" in said


def test_an_interrupted_work_goes_on(config: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were read, after the labels' names, are not read again; what is written is the same."""
    out = tmp_path / "heads.npz"
    n_read: list[int] = []

    def counted(self: PromptHandle, queries: list[str], depths: tuple[int, ...]) -> Any:
        n_read.append(len(queries))
        if len(n_read) == 3:
            raise QclsError
        return answers_and_states(self, queries, depths)

    answers_and_states = PromptHandle.answers_and_states
    arguments = ("--data", data, "--config", config, "--out", out, "--prompt", "color")
    assert run(*arguments)[0] == 0
    whole = out.read_bytes()
    monkeypatch.setattr(PromptHandle, "answers_and_states", counted)
    assert run(*arguments, "--force")[0] == 1
    n_read[:] = [0, 0, 0]
    code, _, said = run(*arguments, "--force")
    assert code == 0, said
    assert (sum(n_read), out.read_bytes()) == (2 * N - 32 + len(LABELS), whole)
    assert not Path(f"{out}.part").exists()


def test_states_not_finite_are_refused(make_model: MakeModel, write_config: WriteConfig, tmp_path: Path) -> None:
    """The embedding of `~` is not a number."""
    damaged = with_nan_embedding(make_model(), "~", tmp_path / "nan.gguf")
    rows = [{"query": f"dress {'~' if index == 20 else index}", "color": LABELS[index % 3]} for index in range(30)]
    data, out = write_rows(tmp_path / "rows.csv", rows), tmp_path / "heads.npz"
    code, record, said = run("--data", data, "--config", write_config(damaged, PROMPTS, **EXACT), "--out", out)
    assert (code, record, out.exists()) == (1, None, False)
    assert "not finite" in said


@cases(
    (["red=0.8"], [0.8, 0.1, 0.1], "80% are red, 10% are"),
    (["FILE"], [0.9, 0.05, 0.05], "are red, "),
    (["red=0.8", "none=0.3"], None, "`shares` none=0.3: shares lie between 0 and 1"),
    (["green=0.8"], None, "'green' is no label"),
    (["red=much"], None, "red=much: shares lie"),
    (["red=0.8", "red=0.7"], None, "different labels"),
    (["FILE", "red=0.8"], None, "one file of queries, or"),
)
def test_gains_hold_for_shares_of_labels(
    given: list[str], shares: list[float] | None, said: str, config: Path, data: Path, tmp_path: Path
) -> None:
    """In numbers, or as queries that have them, here nine tenths of them red."""
    queries = [f"dress {n} {'small' if n % 20 == 0 else 'blue' if n % 20 == 1 else 'red'}" for n in range(200, 400)]
    (tmp_path / "log.txt").write_text("\n".join(queries))
    words = [word for text in given for word in ("--shares", text.replace("FILE", str(tmp_path / "log.txt")))]
    out, arguments = tmp_path / "heads.npz", ("--data", data, "--config", config, "--prompt", "color")
    result = invoked("learn", *arguments, "--out", out, *words)
    if shares is None:
        assert result.exit_code == 2
        assert said.replace("`shares`", "--shares") in result.stderr
        return
    assert said in " ".join(result.stdout.split())
    code, record, _ = run(*arguments, "--out", out, "--force", *words)
    assert code == 0
    color = record["prompts"]["color"]
    np.testing.assert_allclose(list(color["shares"].values()), shares, atol=0.06)


@pytest.fixture
def log(data: Path, tmp_path: Path) -> Path:
    """The queries of the rows without their labels, one of them twice."""
    queries = [row["query"] for row in rows_of(data)]
    return written(tmp_path / "log.txt", "\n".join([*queries, queries[0], ""]))


def test_a_log_without_labels_teaches_the_prompts_answers(config: Path, log: Path, tmp_path: Path) -> None:
    """What is stated of held-out answers holds for the file's, which need one text for all prompts."""
    out, queries = tmp_path / "heads.npz", log.read_text().split("\n")[:N]
    code, record, said = run("--queries", log, "--config", config, "--out", out, "--least-agreement", 0.5)
    assert (code, record["n_queries"], record["n_left_out"], record["data"]) == (0, N, 1, None), said
    assert record["before"]["layers"] == 5
    assert record["after"]["tokens"] <= record["before"]["tokens"]
    with Classifier.from_config(config) as texts:
        before = [texts.classify(query).labels for query in queries]
    kept = [name for name, prompt in record["prompts"].items() if prompt["kept"]]
    assert kept
    for name in kept:
        assert record["prompts"][name]["text"] == record["text"].replace("{name}", name)
        assert record["prompts"][name]["agreement"] >= 0.5
    change(config, heads=str(out))
    with Classifier.from_config(config) as classifier:
        after = [classifier.classify(query) for query in queries]
        assert classifier.engine.layout.last_layer in (0, record["after"]["layers"])
    for name in kept:
        same = np.mean([was[name] == now.labels[name] for was, now in zip(before, after, strict=True)])
        assert same >= record["prompts"][name]["agreement"] - 0.05


def test_costlier_heads_are_not_kept(config: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of one prompt of two, whose other text is read, too."""
    monkeypatch.setattr(learn_module, "_cost", lambda *_: RequestCost(tokens=1000, layers=5))
    code, record, _ = run("--queries", log, "--config", config, "--out", tmp_path / "h.npz", "--least-agreement", 0)
    assert (code, record["after"]) == (1, record["before"])
    assert not any(prompt["kept"] for prompt in record["prompts"].values())
    assert "would cost more" in record["prompts"]["shade"]["reason"]


@cases((1, 0, "; requests cost less with it"), (1000, 1, "; requests would cost no less with it"))
def test_an_unproven_head_is_kept_where_requests_cost_less(
    tokens: int, code: int, reason: str, config: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the colour, which rows tell; not of the shade, about which they say nothing."""
    monkeypatch.setattr(learn_module, "SIGNIFICANT", 0.0)
    monkeypatch.setattr(learn_module, "_cost", lambda *_: RequestCost(tokens=tokens, layers=5))
    ended, record, _ = run("--data", data, "--config", config, "--out", tmp_path / "heads.npz", "--depth", 3)
    color, shade = record["prompts"]["color"], record["prompts"]["shade"]
    assert (ended, color["kept"], shade["kept"]) == (code, code == 0, False)
    assert color["reason"].endswith(reason)
    assert record["after"]["tokens"] == (tokens if code == 0 else record["before"]["tokens"])


def test_labelled_rows_decide_beside_a_log(config: Path, data: Path, log: Path, tmp_path: Path) -> None:
    arguments = ("--config", config, "--out", tmp_path / "heads.npz", "--prompt", "shade", "--least-agreement", 1)
    code, record, _ = run("--queries", log, "--data", data, *arguments)
    shade = record["prompts"]["shade"]
    assert (record["n_queries"], record["data"]["n_rows"], shade["n_compared"]) == (0, N, N)
    assert shade["kept"] == (code == 0)
    assert f"points on {N} held-out rows" in shade["reason"]
    assert shade["p"] is None


def test_another_configuration_teaches(
    config: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By prompt and label, in whatever order it has them; the prompts themselves are then not asked."""
    asked: list[bool] = []

    def counted(handle: PromptHandle, queries: Sequence[str], *rest: Any) -> StateRows:
        asked.append(bool(queries))
        return state_rows(handle, queries, *rest)

    monkeypatch.setattr(learn_module, "state_rows", counted)
    tree = yaml.safe_load(config.read_text())
    for prompt in tree["prompts"]:
        prompt["labels"] = prompt["labels"][::-1]
    tree["prompts"] = tree["prompts"][::-1]
    teacher = written(tmp_path / "teacher.yaml", yaml.safe_dump(tree))
    arguments = (
        "--queries", log, "--config", config, "--prompt", "shade", "--least-agreement", 0, "--common-text", "{query}:",
    )  # fmt: skip
    heads = []
    for number, more in enumerate([[], ["--teacher", teacher]]):
        code, _, said = run(*arguments, *more, "--out", tmp_path / f"{number}.npz")
        assert code == 0, said
        heads.append(np.load(tmp_path / f"{number}.npz")["weight0"])
    np.testing.assert_allclose(heads[1], heads[0], atol=0.05 * np.abs(heads[0]).max())
    assert asked == [True, True, False, True]
    tree["prompts"][0]["labels"] = ["red", "none"]
    teacher.write_text(yaml.safe_dump(tree))
    code, record, said = run(*arguments, "--teacher", teacher, "--out", tmp_path / "2.npz")
    assert (code, record) == (2, None)
    assert "has no prompt shade with the same labels" in said
