"""`qcls-gguf compare`: every way that can be had here gives the classifier's answers, and absent ones say why."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import MakeModel, WriteConfig
from oracle import PromptSpec
from peer_servers import PeerServer

from qcls_gguf import load_config
from qcls_gguf.cli.app import app
from qcls_gguf.compare import http_peer
from qcls_gguf.compare.connection import Connection
from qcls_gguf.compare.run import Comparison, PeerKernels, compare
from qcls_gguf.compare.way import PeerError
from qcls_gguf.compare.ways import WAYS, Peers
from qcls_gguf.config.resources import config_path, embedded_model
from qcls_gguf.errors import ConfigError
from qcls_gguf.native.kernel_steps import STEPS

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
IN_PROCESS = ("naive", "prefix", "batched")
EXACT = {"flash_attn": False, "kv_type": "f32"}
LARGEST_DIFFERENCE = {"exact": 5e-5, "default": 0.03, "embedded": 0.2}
"""Between log-probabilities; those of test_oracle.py. Measured: 5e-6, 0.009 and, with Q8_0 weights, 0.07."""

TEMPLATE = "<|im_start|>user\nanalyze the {topic} intent of dar{query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {
    "category": ("dress", "jeans", "shirt", "none"),
    "color": ("light blue", "light pink", "red", "tank top", "none"),
    "item": ("jump", "jumper", "jumpsuit", "dress"),
}
PROMPTS = [
    PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels) for name, labels in LABELS.items()
]
QUERIES = ("red dress for girl", "k blue", "", "红色连衣裙", "win <|im_end|>")
"""`dar` + `k` is another token than `dar` before the usual beginnings: it breaks the cached prefix."""

Compare = Callable[..., dict[str, Any]]


@pytest.fixture
def compare_here(make_model: MakeModel, write_config: WriteConfig) -> Compare:
    """Compares on a random model with F32 weights, in one round."""

    def run(*ways: str, peers: Peers | None = None, **runtime: Any) -> dict[str, Any]:
        config = load_config(write_config(make_model(), PROMPTS, **runtime))
        wanted = Comparison(
            config=config, queries=QUERIES, ways=ways, n_rounds=1, n_warm=0, peers=peers or Peers(), offline=True
        )
        return compare(wanted)

    return run


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "compare", "--rounds", "1", "--warm-up", "0", "--threads", "1", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {way["name"]: way for way in record["ways"]}


@pytest.mark.parametrize("runtime", ["exact", "default"])
def test_stock_llama_cpp_gives_our_answers(runtime: str, compare_here: Compare) -> None:
    found = by_name(compare_here(*IN_PROCESS, **(EXACT if runtime == "exact" else {})))
    assert list(found) == ["qcls", *IN_PROCESS]
    for name in IN_PROCESS:
        way = found[name]
        assert way["largest_log_probability_difference"] <= LARGEST_DIFFERENCE[runtime]
        assert way["largest_tree_difference"] <= LARGEST_DIFFERENCE[runtime]
        assert way["n_tree_log_probabilities"] == len(QUERIES) * sum(map(len, LABELS.values()))
        # `tank top` has a second token without a choice, which is not read
        assert way["n_log_probabilities"] == len(QUERIES) * (sum(map(len, LABELS.values())) - 1)
        assert way["agreement"]["n_without_answer"] == 0
        if runtime == "exact":
            assert way["agreement"]["scoring"] == 1.0
    assert found["qcls"]["ratio_to_qcls"] == 1.0
    assert found["qcls"]["largest_tree_difference"] <= LARGEST_DIFFERENCE[runtime]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The command on the embedded model, every way asked for that needs no package, and an HTML report."""
    folder = tmp_path_factory.mktemp("compare")
    ways = [option for name in IN_PROCESS for option in ("--way", name)]
    queries = ("--query", "red dress for girls", "--query", "孕妇牛仔裤")
    done = run(
        *ways, *queries, "--format", "json", "--out", folder / "out.json", "--html", folder / "out.html", "--quiet"
    )
    return done, folder


def test_the_embedded_model_is_labelled_alike_by_all(
    embedded: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = embedded
    assert done.returncode == 0, done.stderr
    for way in json.loads(done.stdout)["ways"]:
        assert way["agreement"]["scoring"] == 1.0
        assert way["largest_tree_difference"] <= LARGEST_DIFFERENCE["embedded"]


def test_json_has_the_keys_that_help_names(embedded: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = embedded
    record = json.loads(done.stdout)
    assert json.loads((folder / "out.json").read_text(encoding="utf-8")) == record
    assert list(record) == [
        "environment", "config", "model", "n_prompts", "n_queries", "queries", "rounds", "warm_up", "seed",
        "peer_kernels", "ways", "absent",
    ]  # fmt: skip
    for way in record["ways"]:
        assert list(way) == [
            "name", "about", "p50_ms", "p90_ms", "ratio_to_qcls", "ratio_range", "agreement",
            "largest_log_probability_difference", "n_log_probabilities", "largest_tree_difference",
            "n_tree_log_probabilities", "note",
        ]  # fmt: skip
        low, high = way["ratio_range"]
        assert 0 < low <= high
        assert 0 < way["p50_ms"] <= way["p90_ms"]
    assert record["absent"] == []
    assert record["model"]["sha256"]
    assert record["environment"]["n_threads"] == 1
    shown = subprocess.run([COMMAND, "compare", "--help"], capture_output=True, text=True, check=True).stdout
    for key in {*record, *record["ways"][0], "reason", "asked_for", "started", "n_without_answer"}:
        assert f'"{key}"' in shown, key


def test_the_report_fetches_nothing(embedded: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = embedded
    page = (folder / "out.html").read_text(encoding="utf-8")
    for name in ("qcls", *IN_PROCESS):
        assert name in page
    assert "data:image/svg+xml;base64," in page
    assert set(re.findall(r"""(?:src|href)="?(.{5})""", page)) == {"data:"}


def test_what_is_absent_is_listed_with_the_reason(compare_here: Compare) -> None:
    record = compare_here("torch", "llama-server", "ollama")
    absent = {each["name"]: each for each in record["absent"]}
    assert list(absent) == ["torch", "llama-server", "ollama"]
    assert "`spawn_llama_server`" in absent["llama-server"]["reason"]
    assert "URL as `ollama`" in absent["ollama"]["reason"]
    assert all(each["asked_for"] and not each["started"] for each in absent.values())
    assert list(by_name(record)) == ["qcls"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--way", "ollama"], 1, "ollama absent: no server: give its URL as --ollama"),
        (["--way", "nave"], 2, "--way nave: is not one of qcls, naive, prefix"),
        (["--ollama-model", "x"], 2, "--ollama and --ollama-model belong together"),
        (["--hf-folder", "nowhere"], 2, "--hf-folder nowhere: has no config.json"),
        (["--out", "/no/such/folder/x.json"], 2, "--out /no/such/folder/x.json: cannot be written"),
        (["--way", "qcls", "--query", "dress " * 300], 2, "more than runtime.max_query_tokens: 256"),
        (["--way", "llama-server", "--spawn-llama-server", "/no/such"], 1, "--spawn-llama-server /no/such: no such"),
        (["--way", "llama-server", "--spawn-llama-server", "false"], 1, "false ended with 1: it wrote nothing"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*arguments, *([] if "--query" in arguments else ["--query", "red dress"])]
    config = str(config_path("mission.yaml"))
    found = app(["compare", "--quiet", "--rounds", "1", "--config", config, *given], standalone_mode=False)
    assert found == code
    assert message in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(("kernels", "set_to"), [(PeerKernels.stock, "0"), (PeerKernels.ours, "as it was")])
def test_peers_start_with_the_kernels_asked_for(
    kernels: PeerKernels, set_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\necho kernels=${STEPS[0].variable}\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv(STEPS[0].variable, "as it was")
    wanted = Comparison(
        config=load_config(config_path("mission.yaml")),
        queries=QUERIES[:1],
        ways=("llama-server",),
        n_rounds=1,
        peers=Peers(spawn_llama_server=program),
        peer_kernels=kernels,
    )
    record = compare(wanted)
    assert record["absent"][0]["reason"].endswith(f"ended with 3: kernels={set_to}")
    assert record["peer_kernels"] == kernels
    assert os.environ[STEPS[0].variable] == "as it was"


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python (extra peers) is not here")
def test_llama_cpp_python_gives_our_answers() -> None:
    done = run(
        "--quiet", "--format", "json", "--way", "llama-cpp-python", "--query", "red dress", "--query", "羊毛 大衣"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    way = by_name(json.loads(done.stdout))["llama-cpp-python"]
    assert way["agreement"] == {"scoring": 1.0, "joint": 1.0, "n_answers": 16, "n_without_answer": 0}
    assert way["largest_tree_difference"] <= LARGEST_DIFFERENCE["embedded"]


@pytest.mark.skipif(importlib.util.find_spec("cappr") is None, reason="cappr is not installed")
def test_cappr_gives_our_log_probabilities() -> None:
    config = str(ROOT / "configs" / "mission.yaml")
    done = run("--quiet", "--format", "json", "--config", config, "--way", "cappr", "--query", "red dress")
    assert done.returncode == 0, done.stderr + done.stdout
    way = by_name(json.loads(done.stdout))["cappr"]
    assert way["n_log_probabilities"] == 16
    assert way["largest_log_probability_difference"] <= LARGEST_DIFFERENCE["embedded"]


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "transformers")),
    reason="torch and transformers are not installed",
)
def test_torch_runs_with_the_shape_of_the_file() -> None:
    done = run("--quiet", "--format", "json", "--way", "torch", "--synthetic", "--query", "red dress")
    assert done.returncode == 0, done.stderr + done.stdout
    way = by_name(json.loads(done.stdout))["torch"]
    assert way["agreement"] is None
    assert "not comparable" in way["note"]


@pytest.mark.skipif("QCLS_LLAMA_SERVER" not in os.environ, reason="QCLS_LLAMA_SERVER names no llama-server")
def test_llama_server_itself_gives_our_answers() -> None:
    binary = os.environ["QCLS_LLAMA_SERVER"]
    done = run(
        "--quiet", "--format", "json", "--way", "llama-server", "--spawn-llama-server", binary, "--query", "red dress"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    way = by_name(json.loads(done.stdout))["llama-server"]
    assert way["agreement"]["scoring"] == 1.0
    assert way["largest_log_probability_difference"] <= LARGEST_DIFFERENCE["embedded"]


def peers_of(server: PeerServer) -> Peers:
    if server.kind == "ollama":
        return Peers(ollama=server.url, ollama_model="tiny")
    return Peers(llama_server=server.url)


@pytest.fixture(params=["llama-server", "ollama"])
def server(request: pytest.FixtureRequest, make_model: MakeModel) -> PeerServer:
    """A server of the wire format, on the random model; not entered yet."""
    return PeerServer(kind=request.param, path=make_model())


@pytest.mark.parametrize("kind", ["llama-server", "ollama"])
def test_a_server_is_read_as_far_as_it_tells(kind: Literal["llama-server", "ollama"]) -> None:
    config, queries = load_config(config_path("fashion-8.yaml")), ("red dress", "孕妇牛仔裤")
    with PeerServer(kind=kind, path=embedded_model()) as server:
        record = compare(
            Comparison(config=config, queries=queries, ways=(kind,), n_rounds=1, n_warm=0, peers=peers_of(server))
        )
    assert record["absent"] == []
    way = by_name(record)[kind]
    assert way["agreement"] == {"scoring": 1.0, "joint": 1.0, "n_answers": 16, "n_without_answer": 0}
    assert way["n_log_probabilities"] > 50
    assert way["largest_log_probability_difference"] <= LARGEST_DIFFERENCE["embedded"]
    shared = "labels that share first tokens (colour, material) cannot be told apart: that would need 3 more requests"
    assert shared in way["note"]
    assert len(server.requests) == 2 * len(queries) * len(config.prompts)  # the answers, then one round
    templates = {request["prompt"].split("query: ")[0] for request in server.requests}
    assert len(templates) == len(config.prompts)
    request = server.requests[0]
    if kind == "llama-server":
        assert request["path"] == "/completion"
        assert (request["n_predict"], request["n_probs"], request["cache_prompt"]) == (1, 100, True)
        slots = {(request["id_slot"], request["prompt"].split("query: ")[0]) for request in server.requests}
        assert len(slots) == len(templates)
    else:
        assert request["path"] == "/api/generate"
        asked = request["raw"], request["stream"], request["logprobs"], request["top_logprobs"]
        assert asked == (True, False, True, 20)
        assert (request["options"]["num_predict"], request["keep_alive"]) == (1, "30m")
        assert "outside the 20 tokens that come back" in way["note"]
        assert "Ollama returns no more than 20" in way["note"]


def test_labels_outside_the_top_are_no_answers(server: PeerServer, compare_here: Compare) -> None:
    server.n_top = 1
    with server:
        way = by_name(compare_here(server.kind, peers=peers_of(server)))[server.kind]
    assert way["agreement"]["n_without_answer"] > 0
    assert way["largest_tree_difference"] is None
    assert f"outside the {100 if server.kind == 'llama-server' else 20} tokens that come back" in way["note"]


def test_an_answer_that_ends_the_turn_has_no_probabilities(make_model: MakeModel, compare_here: Compare) -> None:
    """llama-server leaves them out where it has no text to send."""
    with PeerServer(kind="llama-server", path=make_model()) as server:
        server.body = b'{"content": "", "stop_type": "eos"}'
        record = compare_here("llama-server", peers=peers_of(server))
    assert record["absent"] == []
    agreement = by_name(record)["llama-server"]["agreement"]
    assert (agreement["n_answers"], agreement["n_without_answer"]) == (0, 15)


def test_servers_get_the_labels_that_a_slot_stands_for(make_model: MakeModel, write_config: WriteConfig) -> None:
    prompts = [replace(PROMPTS[0], template="one of {labels}\nquery: {query}\ncolour:")]
    config = load_config(write_config(make_model(), prompts))
    with PeerServer(kind="llama-server", path=make_model()) as server:
        compare(Comparison(config=config, queries=("red",), ways=("llama-server",), n_rounds=1, peers=peers_of(server)))
    texts = {request["prompt"] for request in server.requests}
    assert texts == {"one of dress, jeans, shirt, none\nquery: red\ncolour:"}


def test_an_abstention_of_ours_is_no_winner_that_peers_could_miss(
    make_model: MakeModel, write_config: WriteConfig
) -> None:
    config = load_config(write_config(make_model(), PROMPTS))
    sure = replace(config, prompts=tuple(replace(p, min_confidence=1.0, fallback="unsure") for p in config.prompts))
    record = compare(Comparison(config=sure, queries=QUERIES, ways=("batched",), n_rounds=1, n_warm=0))
    ways = by_name(record)
    assert ways["qcls"]["agreement"]["joint"] > 0.5
    assert ways["batched"]["agreement"]["scoring"] == 1.0


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "ftp://a", "nonsense"])
def test_what_is_no_address_is_refused(url: str) -> None:
    done = run("--llama-server", url)
    assert done.returncode == 2
    assert "is not a server's address" in done.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 500, "body": b'{"error": {"message": "loading"}}'}, "HTTP 500: .*loading"),
        ({"body": b"<html>"}, "the answer is not JSON"),
        ({"body": b"{}"}, "answer has no (completion_probabilities|logprobs)"),
        ({"body": b'{"logprobs": [{}], "completion_probabilities": [{}]}'}, "with top_logprobs"),
        ({"delay_s": 0.4}, "no answer within 0.2 s"),
    ],
)
def test_a_server_that_fails_is_listed(
    fault: dict[str, Any], message: str, server: PeerServer, compare_here: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault.items():
        setattr(server, name, value)
    monkeypatch.setattr(http_peer, "TIMEOUT_S", 0.2 if "delay_s" in fault else 30.0)
    with server:
        record = compare_here(server.kind, peers=peers_of(server))
    (absent,) = record["absent"]
    assert (absent["name"], absent["started"]) == (server.kind, True)
    assert re.search(message, absent["reason"])


def test_a_server_of_another_kind_is_no_peer(server: PeerServer, compare_here: Compare) -> None:
    other = "ollama" if server.kind == "llama-server" else "llama-server"
    with server:
        peers = (
            Peers(llama_server=server.url) if other == "llama-server" else Peers(ollama=server.url, ollama_model="x")
        )
        (absent,) = compare_here(other, peers=peers)["absent"]
    assert "no usable server: GET" in absent["reason"]
    assert "HTTP 404" in absent["reason"]


def test_too_few_slots_and_an_unknown_model_are_told(make_model: MakeModel, compare_here: Compare) -> None:
    with PeerServer(kind="llama-server", path=make_model(), n_slots=2) as server:
        note = by_name(compare_here("llama-server", peers=peers_of(server)))["llama-server"]["note"]
        assert "2 slots for 3 prompts" in note
        assert {request["id_slot"] for request in server.requests} == {0, 1}
    with PeerServer(kind="ollama", path=make_model(), model_name="other:latest") as server:
        (absent,) = compare_here("ollama", peers=peers_of(server))["absent"]
        assert absent["reason"] == "`ollama_model` tiny: the server has other:latest"


def test_a_connection_is_kept_and_opened_anew_where_it_was_closed(make_model: MakeModel) -> None:
    with PeerServer(kind="llama-server", path=make_model()) as server:
        for hang_up, n_connections in ((False, 1), (True, 4)):
            server.hang_up, server.n_connections = hang_up, 0
            connection = Connection(server.url, 30.0)
            for _ in range(4):
                assert connection.request("GET", "/health") == {"status": "ok"}
            connection.close()
            assert server.n_connections == n_connections
        url = server.url
    with pytest.raises(PeerError, match=rf"GET {url}/health: .*refused"):
        Connection(url, 30.0).request("GET", "/health")


def test_a_comparison_without_queries_is_refused(make_model: MakeModel, write_config: WriteConfig) -> None:
    config = load_config(write_config(make_model(), PROMPTS))
    with pytest.raises(ConfigError, match="there is no query to compare with"):
        compare(Comparison(config=config, queries=()))


def test_every_way_is_in_the_help() -> None:
    shown = subprocess.run([COMMAND, "compare", "--help"], capture_output=True, text=True, check=True).stdout
    for name in WAYS:
        assert re.search(rf"^ *{name}  ", shown, re.MULTILINE), name
