"""`qcls-gguf compare`: every method that can run here gives the classifier's answers, and absent ones say why."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from comparisons import (
    COMMAND,
    LABELS,
    LARGEST_DIFFERENCE,
    PROMPTS,
    QUERIES,
    Compare,
    by_name,
    compare_here,
    compared,
    run_compare,
)
from conftest import MakeModel, WriteConfig

from qcls_gguf import load_config
from qcls_gguf.cli.app import app
from qcls_gguf.compare import Peers
from qcls_gguf.compare.document import document
from qcls_gguf.compare.records import QUERIES as UNASKED
from qcls_gguf.compare.records import ComparisonRecord
from qcls_gguf.compare.run import METHODS
from qcls_gguf.config.resources import config_path
from qcls_gguf.model import Model
from qcls_gguf.model.placement import gpus
from qcls_gguf.native.kernel_steps import CPU_PRODUCTS, LANE_ORDER, STEPS
from qcls_gguf.report.html import document_page

__all__ = ["compare_here"]  # a fixture
ROOT = Path(__file__).parents[2]
IN_PROCESS = ("naive", "prefix", "batched")
EXACT = {"flash_attn": False, "kv_type": "f32"}


@pytest.mark.parametrize("runtime", ["exact", "default"])
def test_stock_llama_cpp_gives_our_answers(runtime: str, compare_here: Compare) -> None:
    found = by_name(compare_here(*IN_PROCESS, **(EXACT if runtime == "exact" else {})))
    assert list(found) == ["qcls", *IN_PROCESS]
    for name in IN_PROCESS:
        method = found[name]
        assert method["largest_log_probability_difference"] <= LARGEST_DIFFERENCE[runtime]
        assert method["largest_tree_difference"] <= LARGEST_DIFFERENCE[runtime]
        assert method["n_tree_log_probabilities"] == len(QUERIES) * sum(map(len, LABELS.values()))
        # `tank top` has a second token without a choice, which is not read
        assert method["n_log_probabilities"] == len(QUERIES) * (sum(map(len, LABELS.values())) - 1)
        assert method["agreement"]["n_without_answer"] == 0
        if runtime == "exact":
            assert method["agreement"]["scoring"] == 1.0
    assert found["qcls"]["ratio_to_qcls"] == 1.0
    assert found["qcls"]["largest_tree_difference"] <= LARGEST_DIFFERENCE[runtime]


def test_the_embedded_model_is_labelled_alike_by_all(tmp_path: Path) -> None:
    """The command, with every method that needs no package, its record and its page, which fetches nothing."""
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    methods = [option for name in IN_PROCESS for option in ("--method", name)]
    queries = ("--query", "red dress for girls", "--query", "孕妇牛仔裤")
    done = run_compare(*methods, *queries, "--format", "json", "--out", out, "--html", html, "--quiet")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert json.loads(out.read_text(encoding="utf-8")) == record
    assert ComparisonRecord.model_validate(record).to_dict() == record
    page = html.read_text(encoding="utf-8")
    for method in record["methods"]:
        assert method["agreement"]["scoring"] == 1.0
        assert method["largest_tree_difference"] <= LARGEST_DIFFERENCE["embedded"]
        low, high = method["ratio_range"]
        assert 0 < low <= high
        assert 0 < method["p50_ms"] <= method["p90_ms"]
        assert method["name"] in page
    assert "No queries were given" not in page
    usual = ComparisonRecord.model_validate({**record, "queries": UNASKED})
    assert "No queries were given" in document_page(document(usual))
    assert record["absent"] == []
    assert record["environment"]["n_threads"] == 1
    assert "data:image/svg+xml;base64," in page
    assert set(re.findall(r"""(?:src|href)="?(.{5})""", page)) == {"data:"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--method", "ollama"], 1, "ollama absent: no server: give its URL as --ollama"),
        (["--method", "llama-server"], 1, "llama-server absent: no server: give the URL of one as --llama-server, or"),
        (["--method", "cappr"], 2, "--method cappr: was removed: its probabilities are those of our scoring `mean`"),
        (["--method", "nave"], 2, "--method nave: is not one of qcls, naive, prefix"),
        (["--ollama-model", "x"], 2, "--ollama and --ollama-model belong together"),
        (
            ["--ollama", "127.0.0.1:11434", "--ollama-model", "x"],
            2,
            "--ollama: '127.0.0.1:11434' is not a server's add",
        ),
        (["--queries", os.devnull], 2, "there is no query to compare with"),
        (["--method", "qcls", "--query", "dress " * 300], 2, "more than runtime.max_query_tokens: 256"),
        (["--method", "llama-server", "--spawn-llama-server", "/no/such"], 1, "--spawn-llama-server /no/such: no such"),
        (
            ["--method", "llama-server", "--spawn-llama-server", "false"],
            1,
            "false: its process ended with exit code 1: it wrote no",
        ),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*arguments, *([] if {"--query", "--queries"} & {*arguments} else ["--query", "red dress"])]
    config = str(config_path("mission"))
    found = app(["compare", "--quiet", "--rounds", "1", "--config", config, *given], standalone_mode=False)
    assert found == code
    assert message in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(("kernels", "set_to"), [("stock", "0"), ("ours", "as it was")])
def test_peers_start_with_the_kernels_asked_for(
    kernels: Literal["stock", "ours"], set_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\necho kernels=${STEPS['direct']}\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv(STEPS["direct"], "as it was")
    record = compared(
        load_config(config_path("mission")),
        "llama-server",
        queries=QUERIES[:1],
        peers=Peers(spawn_llama_server=program, kernels=kernels),
    )
    assert record["absent"][0]["reason"].endswith(f"ended with exit code 3: kernels={set_to}")
    assert record["peer_kernels"] == kernels
    assert os.environ[STEPS["direct"]] == "as it was"


def needs(is_here: bool, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_here, reason=f"{what} is not here")


LLAMA_SERVER = os.environ.get("QCLS_LLAMA_SERVER", "")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        pytest.param("llama-cpp-python", [], marks=needs(bool(find_spec("llama_cpp")), "llama-cpp-python")),
        pytest.param(
            "llama-server",
            ["--spawn-llama-server", LLAMA_SERVER],
            marks=needs(bool(LLAMA_SERVER), "a llama-server named by QCLS_LLAMA_SERVER"),
        ),
    ],
)
def test_other_programs_give_our_answers(method: str, options: list[str]) -> None:
    queries = ["--query", "red dress", "--query", "羊毛 大衣"]
    done = run_compare("--quiet", "--format", "json", "--method", method, *options, *queries)
    assert done.returncode == 0, done.stderr + done.stdout
    found = by_name(json.loads(done.stdout))[method]
    assert found["agreement"]["scoring"] == 1.0
    assert found["largest_log_probability_difference"] <= LARGEST_DIFFERENCE["embedded"]
    if method == "llama-cpp-python":
        assert found["largest_tree_difference"] <= LARGEST_DIFFERENCE["embedded"]


def test_an_abstention_of_ours_is_no_winner_that_peers_could_miss(
    make_model: MakeModel, write_config: WriteConfig
) -> None:
    config = load_config(write_config(make_model(), PROMPTS))
    sure = replace(config, prompts=tuple(replace(p, min_confidence=1.0, fallback="unsure") for p in config.prompts))
    record = compared(sure, "batched")
    methods = by_name(record)
    assert methods["qcls"]["agreement"]["joint"] > 0.5
    assert methods["batched"]["agreement"]["scoring"] == 1.0


def test_stock_kernels_are_not_measured_on_rearranged_weights(
    make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU all read the file's order, on a CPU the others have a copy of the model in it."""
    loaded = []
    real = Model.open

    def opened(*arguments: Any, **options: Any) -> Any:
        loaded.append((os.environ[LANE_ORDER], os.environ[CPU_PRODUCTS]))
        return real(*arguments, **options)

    monkeypatch.setattr(Model, "open", opened)
    monkeypatch.setenv(LANE_ORDER, "1")
    monkeypatch.setenv(CPU_PRODUCTS, "1")
    path = make_model(weight_type="Q8_0", n_embd=256, n_ff=512)
    config = load_config(write_config(path, PROMPTS, n_gpu_layers="auto"))
    record = compared(config, "batched")
    assert record["environment"]["n_lane_ordered"] == record["model"]["n_lane_ordered"] == 0
    assert loaded == ([("0", "0")] if gpus() else [("1", "1"), ("1", "0")])
    loaded.clear()
    compared(config, "qcls")
    assert loaded == [("1", "1")]


def test_every_method_is_in_the_help() -> None:
    shown = subprocess.run([COMMAND, "compare", "--help"], capture_output=True, text=True, check=True).stdout
    for name in METHODS:
        assert re.search(rf"^ *{name}  ", shown, re.MULTILINE), name
