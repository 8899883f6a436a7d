"""`qcls-gguf bench`: its record, its requests against the planner, its clock, its refusals. No time is asserted."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from qcls_gguf.bench.records import BenchmarkRecord
from qcls_gguf.cli.app import app
from qcls_gguf.system.timing import STAGES

ROOT = Path(__file__).parents[2]
SEPARATE, JOINT = (str(ROOT / "configs" / name) for name in ("fashion-8.yaml", "fashion-8-joint.yaml"))
QUANTILES = ["min", "p50", "p90", "p99"]


def bench(*arguments: object) -> Result:
    """The command in this process, with a light probe: a start of the interpreter takes longer than what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("COPY_BYTES", 1 << 20), ("PROBE_SIDE", 256), ("PROBE_COLUMNS", 32), ("BUDGET_S", 0.02)):
            patch.setattr(f"qcls_gguf.bench.roofline.{name}", value)
        return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@dataclass(frozen=True)
class Written:
    """What one run of the command wrote."""

    record: dict[str, Any]
    page: str
    stderr: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("bench")
    html = folder / "report.html"
    done = bench(
        *("-c", SEPARATE, "-c", JOINT, "--query-tokens", 2, "--batch", 1, "--batch", 2, "-n", 3, "--warm-up", 1),
        *("--repeat", 2, "--format", "json", "--html", html, "--quiet"),
    )
    assert done.exit_code == 0, done.stderr
    return Written(json.loads(done.stdout), html.read_text(), done.stderr)


def test_a_record_has_every_part(written: Written) -> None:
    record = written.record
    assert BenchmarkRecord.model_validate(record).to_dict() == record
    assert written.stderr == ""
    assert "No queries were given: these are made of words about clothes" in written.page
    assert [each["name"] for each in record["workloads"]] == [
        f"{name}, 2 tokens, batch {batch}" for batch in (1, 2) for name in ("fashion-8", "fashion-8-joint")
    ]
    for each in record["classifiers"]:
        assert each["n_prompts"] == 8
        assert each["first_request_ms"] > 0
        for name in ("bytes_per_s", "operations_per_s", "weight_bytes", "n_weights_per_token", "n_weights_per_row"):
            assert 0 < each["roofline"][name] < math.inf
        assert each["roofline"]["method"]["matmul_type"] == "Q8_0"


def test_a_workload_has_its_numbers(written: Written) -> None:
    for each in written.record["workloads"]:
        assert each["n_requests"] == 6
        assert list(each["stage_ms"]) == list(STAGES)
        for times in (each["total_ms"], *each["stage_ms"].values()):
            assert list(times) == QUANTILES
            assert list(times.values()) == sorted(times.values())
        assert each["total_ms"]["min"] >= sum(times["min"] for times in each["stage_ms"].values())
        assert each["tokens"]["least"] == each["tokens"]["new"]
        assert len(each["p50_runs_ms"]) == 2
        assert each["p50_spread"] >= 0
        assert 0 <= each["graph_reuse_rate"] <= 1
        assert each["roofline_ratio"] == pytest.approx(each["total_ms"]["p50"] / each["roofline_ms"])


def test_the_page_stands_alone(written: Written) -> None:
    assert written.page.count("data:image/svg+xml;base64,") == 1  # stages
    assert "http" not in written.page
    for text in ("fashion-8-joint, 2 tokens, batch 2", "graphs reused"):
        assert text in written.page


def test_a_device_that_cannot_be_measured_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe refuses; what was measured before is shown without a roofline."""
    page = tmp_path / "report.html"
    arguments = ["--query-tokens", "1", "-n", "1", "--repeat", "1", "--html", str(page), "--quiet"]
    monkeypatch.setattr("qcls_gguf.bench.roofline.COPY_BYTES", 1 << 37)
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "not measured: probe: n_bytes is 137438953472: it must be between" in shown
    for text in ("fashion-8, 1 token, batch 1", "stages, p50 ms", "graphs reused", "p50/roofline"):
        assert text in shown
    assert "not measured" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1", "--batch", "9"], "--batch 9: .*max_batch: 4"),
        (["--query-tokens", "257"], "max_query_tokens: 256"),
        (["--full"], "--full was removed: give -c mission"),
        (["--queries", "x.txt", "--html", "x.txt"], "--html x.txt: is the file of --queries: name another"),
        (["--queries", "missing.txt"], "no such file"),
        (["--queries", "x", "--query-tokens", "2"], "both given"),
        (["--html", "missing/report.html"], "--html missing/report.html: cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: str) -> None:
    done = bench(*arguments, "-n", 1, "--repeat", 1, "--quiet")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert re.search(message, done.stderr)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "has no queries"),
        ("red\n", ["--batch", "2"], "1 different queries are too few for --batch 2"),
        ("red\n" + "x " * 600, [], "query 2: the query has 600 tokens"),
        ("red\n\udcff\n", [], "line 2 is not valid UTF-8"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused(text: str, options: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = bench("--queries", path, *options, "--quiet")
    assert done.exit_code == 2
    assert re.search(message, done.stderr)
