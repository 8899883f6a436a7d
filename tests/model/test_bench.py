"""`qcls-gguf bench`: its record, its page, its turns. No time is asserted."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import invoked
from conftest import ROOT

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.benchmark import BenchmarkRecord, BenchmarkSettings, benchmark
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.score.result import STAGES

SEPARATE, JOINT = (str(ROOT / "configs" / name) for name in ("fashion-8.yaml", "fashion-8-joint.yaml"))


def test_a_record_and_its_page_have_the_numbers(tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    asked = ["-c", SEPARATE, "-c", JOINT, "--batch", 1, "--batch", 2, "-n", 3]
    done = invoked("bench", *asked, "--warm-up", 1, "--repeat", 2, "--format", "json", "--html", html, "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    record, page = json.loads(done.stdout), html.read_text()
    assert BenchmarkRecord.model_validate(record).to_dict() == record
    assert "No queries were given: these are about clothes and short" in page
    assert "http" not in page
    assert [each["name"] for each in record["workloads"]] == [
        f"{name}, batch {batch}" for batch in (1, 2) for name in ("fashion-8", "fashion-8-joint")
    ]
    assert all(6e6 < classifier["weight_bytes"] < 7e6 for classifier in record["classifiers"])
    for each in record["workloads"]:
        assert each["name"] in page
        assert list(each["stage_ms"]) == list(STAGES)
        for times in (each["total_ms"], *each["stage_ms"].values()):
            assert list(times.values()) == sorted(times.values())
        assert each["total_ms"]["min"] >= sum(times["min"] for times in each["stage_ms"].values())
        assert 0 <= each["graph_reuse_rate"] <= 1


def test_requests_are_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    real = Classifier.classify_batch

    def spy(self: Classifier, queries: Any, **options: Any) -> Any:
        asked.append((len(self.prompts), len(queries)))
        return real(self, queries, **options)

    monkeypatch.setattr(Classifier, "classify_batch", spy)
    configs = (load_config("mission"), load_config("fashion-8"))
    numbers: Any = {"queries": ("red", "blue"), "batches": (1, 2), "n_requests": 2, "n_warm_up": 1, "n_repeats": 1}
    with ClassifierOpener() as opener:
        record = benchmark(BenchmarkSettings(configs=configs, **numbers), opener)
    assert asked == [(2, 1), (8, 1), *[(2, 1), (8, 1)] * 3, *[(2, 2), (8, 2)] * 3]
    assert len(record.workloads) == 4
