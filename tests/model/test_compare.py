"""`qcls-gguf compare`: every method gives the classifier's answers, absent and failing ones say why.

`qcls-gguf bench`: its record, its page, its turns. No time is asserted.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

import pytest
from cases import cases
from commands import invoked, printed
from conftest import ROOT, MakeModel, WriteConfig
from oracle import PromptSpec
from peer_servers import PeerServer

from qcls_gguf import Classifier, Config, Model, load_config
from qcls_gguf.bench.benchmark import BenchmarkRecord, BenchmarkSettings, benchmark
from qcls_gguf.compare import servers
from qcls_gguf.compare.method import ComparisonSettings, Method, PeerError
from qcls_gguf.compare.run import METHODS, ComparisonRecord, compare, comparison_document
from qcls_gguf.compare.servers import Connection
from qcls_gguf.config.resources import config_path, embedded_model
from qcls_gguf.model.placement import gpus
from qcls_gguf.native.device import CPU_PRODUCTS, LANE_ORDER, STEPS
from qcls_gguf.opening import QUERIES as UNASKED
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.report.document import document_page
from qcls_gguf.score.result import STAGES

IN_PROCESS = ("naive", "prefix", "batched")
EXACT = {"flash_attn": False, "kv_type": "f32"}
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


def compared(config: Config, *methods: str, **options: Any) -> dict[str, Any]:
    """The record of one round, as JSON has it."""
    settings = {"queries": QUERIES, "rounds": 1, "warm_up": 0, **options}
    with ClassifierOpener(offline=True) as opener:
        return compare(ComparisonSettings(config=config, methods=methods, **settings), opener).to_dict()


@pytest.fixture
def compare_here(write_config: WriteConfig) -> Compare:
    """Compares on a random model with F32 weights; runtime settings as keywords."""

    def run(*methods: str, peers: Mapping[str, str] | None = None, **runtime: Any) -> dict[str, Any]:
        return compared(load_config(write_config("qwen3", PROMPTS, **runtime)), *methods, **(peers or {}))

    return run


def by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The methods of a record."""
    return {method["name"]: method for method in record["methods"]}


@pytest.mark.parametrize("runtime", ["exact", "default"])
def test_stock_llama_cpp_gives_our_answers(runtime: str, compare_here: Compare) -> None:
    found = by_name(compare_here(*IN_PROCESS, **(EXACT if runtime == "exact" else {})))
    assert list(found) == ["qcls", *IN_PROCESS]
    for name in IN_PROCESS:
        method = found[name]
        assert method["n_without_answer"] == 0
        if runtime == "exact":
            assert method["as_scoring"] == 1.0
    assert found["qcls"]["ratio_to_qcls"] == 1.0


def test_the_embedded_model_is_labelled_alike_by_all(tmp_path: Path) -> None:
    """The command, its record and its page, which fetches nothing."""
    html = tmp_path / "out.html"
    methods = [option for name in IN_PROCESS for option in ("--method", name)]
    queries = ("--query", "red dress for girls", "--query", "孕妇牛仔裤")
    short = ("--rounds", "1", "--threads", "1", "--quiet")
    record = json.loads(printed("compare", *methods, *queries, *short, "--format", "json", "--html", html))
    assert ComparisonRecord.model_validate(record).to_dict() == record
    page = html.read_text(encoding="utf-8")
    for method in record["methods"]:
        assert method["as_scoring"] == 1.0
        low, high = method["ratio_range"]
        assert 0 < low <= high
        assert 0 < method["p50_ms"] <= method["p90_ms"]
        assert method["name"] in page
    assert "No queries were given" not in page
    usual = ComparisonRecord.model_validate({**record, "queries": UNASKED})
    assert "No queries were given" in document_page(comparison_document(usual))
    assert (record["absent"], record["environment"]["n_threads"]) == ([], 1)
    assert set(re.findall(r"""(?:src|href)="?(.{5})""", page)) <= {"data:"}


@contextmanager
def failing(where: str, seen: list[str | None]) -> Iterator[Method]:
    """A method that fails where it is told to, and has seen the kernels' switch when it was opened."""

    steps = chain(["open"], repeat("answers", len(QUERIES)), repeat("rounds"))

    def ask(query: str) -> list[str | None]:
        if next(steps) == where:
            raise KeyError("blk.0")
        return [None for _ in PROMPTS]

    seen.append(os.environ.get(STEPS["direct"]))
    ask("")
    yield Method(ask)


@pytest.mark.parametrize("where", ["open", "answers", "rounds"])
def test_a_method_that_fails_is_listed(where: str, compare_here: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is opened with stock kernels, whatever is set."""
    seen: list[str | None] = []
    monkeypatch.setitem(METHODS, "ollama", (lambda workload: failing(where, seen), "a method of the test's"))
    monkeypatch.setenv(STEPS["direct"], "as it was")
    record = compare_here("ollama", "naive")
    why = {"name": "ollama", "reason": "KeyError: 'blk.0'", "asked_for": True, "started": where != "open"}
    assert record["absent"] == [why]
    assert ([method["name"] for method in record["methods"]], seen) == (["qcls", "naive"], ["0"])
    assert os.environ[STEPS["direct"]] == "as it was"


def test_an_abstention_of_ours_is_no_winner_that_peers_could_miss(write_config: WriteConfig) -> None:
    config = load_config(write_config("qwen3", PROMPTS))
    sure = config.changed(prompts=tuple(p.changed(min_confidence=1.0, fallback="unsure") for p in config.prompts))
    assert {each["as_scoring"] for each in compared(sure, "batched")["methods"]} == {1.0}


def test_stock_kernels_are_not_measured_on_rearranged_weights(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
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
    config = load_config(write_config({"weight_type": "Q8_0", "n_ff": 512}, PROMPTS, n_gpu_layers="auto"))
    record = compared(config, "batched")
    assert record["model"]["n_lane_ordered"] == 0
    assert loaded == ([("0", "0")] if gpus() else [("1", "1"), ("1", "0")])
    loaded.clear()
    compared(config, "qcls")
    assert loaded == [("1", "1")]


# --- servers ---------------------------------------------------------------------------------------------------------


def peers_of(server: PeerServer) -> dict[str, str]:
    if server.kind == "ollama":
        return {"ollama": server.url, "ollama_model": "tiny"}
    return {"llama_server": server.url}


@pytest.fixture(params=["llama-server", "ollama"])
def server(request: pytest.FixtureRequest, make_model: MakeModel) -> PeerServer:
    """A server of the wire format, on the random model; not entered yet."""
    return PeerServer(kind=request.param, path=make_model())


@pytest.mark.parametrize("kind", ["llama-server", "ollama"])
def test_a_server_is_read_as_far_as_it_tells(kind: Literal["llama-server", "ollama"]) -> None:
    config, queries = load_config(config_path("fashion-8")), ("red dress", "孕妇牛仔裤")
    with PeerServer(kind=kind, path=embedded_model(), n_slots=7) as server:
        record = compared(config, kind, queries=queries, **peers_of(server))
    assert record["absent"] == []
    method = by_name(record)[kind]
    assert (method["as_scoring"], method["n_without_answer"]) == (1.0, 0)
    assert "labels that share first tokens (colour, material) cannot be told apart" in method["note"]
    assert len(server.requests) == 2 * len(queries) * len(config.prompts)  # the answers, then one round
    templates = {request["prompt"].split("query: ")[0] for request in server.requests}
    assert len(templates) == len(config.prompts)
    request = server.requests[0]
    if kind == "llama-server":
        assert request["path"] == "/completion"
        assert (request["n_predict"], request["n_probs"], request["cache_prompt"]) == (1, 100, True)
        slots = {(request["id_slot"], request["prompt"].split("query: ")[0]) for request in server.requests}
        assert (len(slots), {slot for slot, _ in slots}) == (len(templates), set(range(7)))
        assert "7 slots for 8 prompts" in method["note"]
    else:
        assert request["path"] == "/api/generate"
        asked = request["raw"], request["stream"], request["logprobs"], request["top_logprobs"]
        assert asked == (True, False, True, 20)
        assert (request["options"]["num_predict"], request["keep_alive"]) == (1, "30m")
        for words in ("outside the 20 tokens that come back", "its weights are the same file, by sha256"):
            assert words in method["note"]


def test_labels_outside_the_top_are_no_answers(server: PeerServer, compare_here: Compare) -> None:
    server.n_top = 1
    with server:
        method = by_name(compare_here(server.kind, peers=peers_of(server)))[server.kind]
        server.body = b'{"content": "", "stop_type": "eos", "done_reason": "stop"}'  # with no token to send
        ended = by_name(compare_here(server.kind, peers=peers_of(server)))[server.kind]
    assert ended["n_without_answer"] == 15
    assert "the likeliest one ends the text, in 15 of 15 answers" in ended["note"]
    assert method["n_without_answer"] > 0
    assert f"outside the {100 if server.kind == 'llama-server' else 20} tokens that come back" in method["note"]


@cases(
    ("ollama", {"digest": "ab" * 32}, "its weights are another file, sha256 abababababab… where ours is"),
    ("ollama", {"model_name": "other:latest"}, "POST .*/api/show: HTTP 404: .*not found"),
    ("llama-server", {}, "POST http://127.0.0.1"),
)
def test_an_ollama_that_cannot_be_compared_is_absent(
    kind: Any, fault: dict[str, str], reason: str, make_model: MakeModel, compare_here: Compare
) -> None:
    with PeerServer(kind=kind, path=make_model(), **fault) as server:  # type: ignore[arg-type]
        peers = {"ollama": server.url, "ollama_model": "tiny"}
        (absent,) = compare_here("ollama", peers=peers)["absent"]
    assert re.search(reason, absent["reason"])


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "http://a:0", "ftp://a", "nonsense"])
def test_an_address_of_a_server_has_a_scheme_a_host_and_a_port_that_can_be(url: str) -> None:
    with pytest.raises(PeerError, match="give one such as http"):
        Connection(url, 1.0)


@cases(
    ({"status": 500, "body": b'{"error": {"message": "loading"}}'}, "HTTP 500: .*loading"),
    ({"body": b"<html>"}, "the answer is not JSON"),
    ({"body": b"[" * 100_000}, "the answer is not JSON"),
    ({"body": b"9" * 4301}, "the answer is not JSON"),
    ({"body": b"\xff\xfe\x00"}, "the answer is not JSON"),
    ({"body": b"{}"}, "answer has no (completion_probabilities|logprobs)"),
    ({"body": b'{"logprobs": [{}], "completion_probabilities": [{}]}'}, "with top_logprobs"),
    ({"delay_s": 0.4}, "no answer within 0.2 s"),
)
def test_a_server_that_fails_is_listed(
    fault: dict[str, Any], message: str, server: PeerServer, compare_here: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault.items():
        setattr(server, name, value)
    monkeypatch.setattr(servers, "TIMEOUT_S", 0.2 if "delay_s" in fault else 30.0)
    with server:
        record = compare_here(server.kind, peers=peers_of(server))
    (absent,) = record["absent"]
    assert (absent["name"], absent["started"]) == (server.kind, True)
    assert re.search(message, absent["reason"])


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


# `qcls-gguf bench`: its record, its page, its turns. No time is asserted.


SEPARATE, JOINT = (str(ROOT / "configs" / name) for name in ("fashion-8.yaml", "fashion-8-joint.yaml"))


def test_a_record_and_its_page_have_the_numbers(tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    asked = ["-c", SEPARATE, "-c", JOINT, "--batch", 1, "--batch", 2, "-n", 3]
    done = invoked("bench", *asked, "--repeat", 2, "--format", "json", "--html", html, "--quiet")
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
