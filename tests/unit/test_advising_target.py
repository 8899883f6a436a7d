"""Predictions for another machine, ladders, queries, and what is recommended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qcls_gguf import ConfigError
from qcls_gguf.advising.ladder import model_name, read_ladder
from qcls_gguf.advising.plan_tokens import PlannedRequest
from qcls_gguf.advising.queries import read_trial_queries
from qcls_gguf.advising.recommend import pareto, recommendation
from qcls_gguf.advising.records import CandidateRecord, Latency, Predicted, PromptAgreement
from qcls_gguf.advising.target import predict_t4, read_target
from qcls_gguf.statistics import wilson

ROOT = Path(__file__).parents[2]
N_8B = 6.9456e9
LABELS = {"colour": ("red", "blue"), "size": ("S", "M")}


def request_of(*decodes: int) -> PlannedRequest:
    return PlannedRequest(decodes=decodes)


def test_the_table_of_a_t4_is_that_of_the_page() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    table = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith(("| tokens | 8", "| Q4", "| Q8", "| sust"))
    ]
    tokens = [int(n) for n in table[0][1:]]
    for name, isolated, sustained in (("Q4_K_M", table[1], table[2]), ("Q8_0", table[3], table[4])):
        assert isolated[0].startswith(name)
        for n, low, high in zip(tokens, isolated[1:], sustained[1:], strict=True):
            found = predict_t4([request_of(n)], name, N_8B)
            assert found is not None
            assert (found.low_ms, found.high_ms) == pytest.approx(
                (float(low.partition("–")[0]), float(high.partition("–")[2]))
            )


def test_a_t4_of_other_tokens_weights_and_decodes() -> None:
    between = predict_t4([request_of(85)], "Q4_K_M", N_8B)
    twice, beyond = predict_t4([request_of(64, 64)], "Q4_K_M", N_8B), predict_t4([request_of(320)], "Q4_K_M", N_8B)
    small = predict_t4([request_of(64)], "Q4_K_M", N_8B / 10)
    assert between
    assert twice
    assert beyond
    assert small
    assert 20 < between.low_ms < 26
    assert 46 < between.high_ms < 73
    assert (twice.low_ms, twice.high_ms) == (40, 92)
    assert (beyond.low_ms, beyond.high_ms) == (80, 206)
    assert (small.low_ms, small.high_ms) == pytest.approx((2.3 + 1.77, 4.4 + 4.16))
    assert predict_t4([request_of(64)], "Q5_K_M", N_8B) is None


def report(**changes: Any) -> str:
    sizes = [
        {"n_tokens": n, "ms": {"min": ms, "p50": ms + 1, "p90": ms + 2}, "tokens_per_s": 1.0, "n_decodes": 5,
         "roofline_ms": None, "roofline_ratio": None}
        for n, ms in ((8, 10.0), (16, 20.0))
    ]  # fmt: skip
    forward = {"prompt": "x", "n_cached": 4, "n_outputs": 2, "sizes": sizes}
    model = {"device": "Tesla T4", "quantization": "Q4_K_M", "description": "qwen3 8B"}
    return json.dumps({"forward": forward, "classifiers": [{"model": model}], **changes})


def test_a_measured_target_predicts_by_its_decodes(tmp_path: Path) -> None:
    path = tmp_path / "t4.json"
    path.write_text(report())
    found = read_target(path).predict([request_of(8), request_of(12), request_of(32)])
    assert (found.low_ms, found.high_ms) == (15, 17)  # the medians


@pytest.mark.parametrize("text", ["", "[]", report(forward=None), report(classifiers=[]), "[" * 100_000, "\0"])
def test_what_is_no_record_of_decodes_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t4.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no record of `qcls-gguf bench` with `forward`"):
        read_target(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_target(tmp_path / "none.json")


def test_a_ladder_is_a_list_of_models(tmp_path: Path) -> None:
    path = tmp_path / "ladder.yaml"
    path.write_text(
        "models:\n  - path: a.gguf\n  - hf_repo: Qwen/Qwen3-4B-GGUF\n    quantization: Q4_K_M\n  - ollama: qwen3:8b\n"
        "  - hf_repo: a/b@refs/pr/1:q/c.gguf\n  - hf_repo: a/b:Q8_0\n    revision: v2\n"
    )
    found = read_ladder(path)
    assert found[0].path == tmp_path / "a.gguf"
    assert [model_name(each) for each in found] == [
        *("a", "Qwen3-4B-GGUF:Q4_K_M", "ollama:qwen3:8b", "b@refs/pr/1:q/c.gguf", "b@v2:Q8_0")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the key models"),
        ("models: []", "models: expected a list of at least one model"),
        ("models: [{pth: x}]", r"models\[0\].pth: unknown key, did you mean path"),
        ("models: [{path: x, hf_repo: y}]", "path and hf_repo are both given"),
        ("model: []", "unknown key, did you mean models"),
    ],
)
def test_a_wrong_ladder_says_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ladder.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_ladder(path)


def read(path: Path) -> Any:
    return read_trial_queries(path, LABELS, query_column=None, seed=1)


def test_queries_come_with_the_labels_they_have_each_text_once(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = ['{"query": "a", "labels": {"colour": "red"}}', '{"query": "b"}', "", '{"query": "a"}', "{",
            '{"query": "c", "labels": {"colour": "rd"}}', '{"query": " "}']  # fmt: skip
    path.write_text("\n".join(rows))
    found = read(path)
    assert {row.query: (row.line, dict(row.labels)) for row in found.rows} == {
        "a": (1, {"colour": ("red",)}),
        "b": (2, {}),
        "c": (6, {}),
    }
    assert [row.line for row in found.bad] == [5, 6]
    assert "did you mean 'red'" in found.bad[1].reason


def test_lines_and_tables_of_queries(tmp_path: Path) -> None:
    lines, table = tmp_path / "q.txt", tmp_path / "q.csv"
    lines.write_text("a\n\nb\n\xff", encoding="latin-1")
    assert sorted(row.query for row in read(lines).rows) == ["a", "b"]
    assert [row.line for row in read(lines).bad] == [4]
    table.write_text("query,colour,note\na,red,x\nb,,y\n")
    assert {row.query: dict(row.labels) for row in read(table).rows} == {"a": {"colour": ("red",)}, "b": {}}


@pytest.mark.parametrize("text", ["", "\n\n", "\xff\n"])
def test_a_file_without_queries_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="has no queries that can be used"):
        read(path)


def candidate(name: str, ms: float, n_agree: int, **changes: Any) -> CandidateRecord:
    agreement = PromptAgreement(
        n=1000,
        n_agree=n_agree,
        agreement=n_agree / 1000,
        agreement_ci=wilson(n_agree, 1000),
        clearly_worse=False,
        n_labelled=0,
    )
    values: dict[str, Any] = {
        "name": name, "why": "", "state": "original" if name == "original" else "tried", "note": None, "model": "m",
        "quantization": "Q8_0", "n_tokens": ms, "tokens_share": 1.0, "n_decodes": 1.0, "n_queries": 1000,
        "n_non_finite": 0, "prompts": {"colour": agreement}, "least_agreement": n_agree / 1000,
        "meets_limit": n_agree >= 980, "is_proven": n_agree >= 990,
        "latency": Latency(mean_ms=ms, p50_ms=ms, p99_ms=ms, n=9), "predicted": None, "memory": None,
        "original_latency": Latency(mean_ms=20, p50_ms=20, p99_ms=20, n=9),
        "is_pareto": False, "disagreements": (), "yaml": None,
    }  # fmt: skip
    return CandidateRecord(**{**values, **changes})


ORIGINAL = candidate("original", 20.0, 1000)


def test_the_fastest_that_keeps_the_limit_is_recommended() -> None:
    found = [ORIGINAL, candidate("bad", 1.0, 900), candidate("good", 5.0, 985), candidate("best", 9.0, 995)]
    best, reason = recommendation(found, 0.98, by_target=False)
    assert best is found[2]
    assert "not yet proven" in reason
    assert "4.0 × as long" in reason
    best, reason = recommendation([ORIGINAL, found[3]], 0.98, by_target=False)
    assert best is found[3]
    assert "every prompt's 95 % interval lies above the limit" in reason
    assert pareto(found) == {"original", "bad", "good", "best"}
    assert pareto([*found, candidate("beaten", 9.5, 990)]) == {"original", "bad", "good", "best"}


def test_candidates_are_compared_by_the_original_in_the_same_turns() -> None:
    """The second was timed when the machine was four times as slow."""
    slow = Latency(mean_ms=80, p50_ms=80, p99_ms=80, n=9)
    found = [ORIGINAL, candidate("a", 5.0, 985), candidate("b", 16.0, 985, original_latency=slow)]
    best, reason = recommendation(found, 0.98, by_target=False)
    assert best is found[2]
    assert "16.00 ms a request here, the original in turns with it 80.00 ms (5.0 × as long)" in reason
    assert pareto(found) == {"original", "b"}


def test_the_original_is_kept_where_nothing_is_faster_or_good_enough() -> None:
    best, reason = recommendation([ORIGINAL, candidate("bad", 1.0, 900)], 0.98, by_target=False)
    assert best is None
    assert "no candidate keeps 98.0% of the answers" in reason
    best, reason = recommendation([ORIGINAL, candidate("slow", 21.0, 1000)], 0.98, by_target=False)
    assert best is None
    assert "is faster here" in reason


def test_a_target_decides_where_all_have_a_prediction() -> None:
    def on(low: float) -> Predicted:
        return Predicted(target="T4", low_ms=low, high_ms=low + 2)

    found = [candidate("original", 20.0, 1000, predicted=on(9)), candidate("here", 5.0, 995, predicted=on(8)),
             candidate("there", 6.0, 995, predicted=on(3))]  # fmt: skip
    best, reason = recommendation(found, 0.98, by_target=True)
    assert best is found[2]
    assert "on the target, predicted" in reason
    assert recommendation([*found[:2], candidate("there", 6.0, 995)], 0.98, by_target=True)[0] is found[1]
