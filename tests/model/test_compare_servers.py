"""`qcls-gguf compare` with servers: what is asked of them, what their answers are worth, and how they fail."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import pytest
from comparisons import LARGEST_DIFFERENCE, PROMPTS, QUERIES, Compare, by_name, compare_here, compared
from conftest import MakeModel, WriteConfig
from peer_servers import PeerServer

from qcls_gguf import load_config
from qcls_gguf.compare import Peers, http_peer
from qcls_gguf.compare.http_peer import Connection, is_url
from qcls_gguf.compare.method import PeerError
from qcls_gguf.config.resources import config_path, embedded_model

__all__ = ["compare_here"]  # a fixture


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
    config, queries = load_config(config_path("fashion-8")), ("red dress", "孕妇牛仔裤")
    with PeerServer(kind=kind, path=embedded_model()) as server:
        record = compared(config, kind, queries=queries, peers=peers_of(server))
    assert record["absent"] == []
    method = by_name(record)[kind]
    assert method["agreement"] == {"scoring": 1.0, "joint": 1.0, "n_answers": 16, "n_without_answer": 0}
    assert method["n_log_probabilities"] > 50
    assert method["largest_log_probability_difference"] <= LARGEST_DIFFERENCE["embedded"]
    assert "labels that share first tokens (colour, material) cannot be told apart" in method["note"]
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
        assert "outside the 20 tokens that come back" in method["note"]


def test_labels_outside_the_top_are_no_answers(server: PeerServer, compare_here: Compare) -> None:
    server.n_top = 1
    with server:
        method = by_name(compare_here(server.kind, peers=peers_of(server)))[server.kind]
        server.body = b'{"content": "", "stop_type": "eos", "done_reason": "stop"}'  # with no token to send
        ended = by_name(compare_here(server.kind, peers=peers_of(server)))[server.kind]
    assert (ended["agreement"]["n_answers"], ended["agreement"]["n_without_answer"]) == (0, 15)
    assert "15 of 15 answers came without log-probabilities" in ended["note"]
    assert method["agreement"]["n_without_answer"] > 0
    assert method["largest_tree_difference"] is None
    assert f"outside the {100 if server.kind == 'llama-server' else 20} tokens that come back" in method["note"]


@pytest.mark.parametrize("version", ["0.0.0", "0.13.0"])
def test_ollamas_answers_without_log_probabilities_are_counted(
    version: str, make_model: MakeModel, compare_here: Compare
) -> None:
    with PeerServer(kind="ollama", path=make_model(), ends_on=QUERIES[0], version=version) as server:
        record = compare_here("ollama", peers=peers_of(server))
    assert record["absent"] == []
    method = by_name(record)["ollama"]
    assert method["agreement"]["n_without_answer"] >= len(PROMPTS)
    assert "3 of 15 answers came without log-probabilities (done_reason stop)" in method["note"]
    assert "its weights are the same file, by sha256" in method["note"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"version": "0.11.4"}, "Ollama 0.11.4 has no log-probabilities: they need 0.12.11 or newer"),
        ({"digest": "ab" * 32}, "its weights are another file, sha256 abababababab… where ours is"),
        ({"model_name": "other:latest"}, "`ollama_model` tiny: the server has other:latest"),
    ],
)
def test_an_ollama_that_cannot_be_compared_is_absent(
    fault: dict[str, str], reason: str, make_model: MakeModel, compare_here: Compare
) -> None:
    with PeerServer(kind="ollama", path=make_model(), **fault) as server:  # type: ignore[arg-type]
        (absent,) = compare_here("ollama", peers=peers_of(server))["absent"]
    assert reason in absent["reason"]


def test_servers_get_the_labels_that_a_slot_stands_for(make_model: MakeModel, write_config: WriteConfig) -> None:
    prompts = [replace(PROMPTS[0], template="one of {labels}\nquery: {query}\ncolour:")]
    config = load_config(write_config(make_model(), prompts))
    with PeerServer(kind="llama-server", path=make_model()) as server:
        compared(config, "llama-server", queries=("red",), peers=peers_of(server))
    texts = {request["prompt"] for request in server.requests}
    assert texts == {"one of dress, jeans, shirt, none\nquery: red\ncolour:"}


def test_an_address_of_a_server_has_a_scheme_a_host_and_a_port_that_can_be() -> None:
    assert [is_url(url) for url in ("http://[::1", "http://a:b", "ftp://a", "nonsense")] == [False] * 4
    assert is_url("http://127.0.0.1:11434")


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


def test_too_few_slots_are_told(make_model: MakeModel, compare_here: Compare) -> None:
    with PeerServer(kind="llama-server", path=make_model(), n_slots=2) as server:
        note = by_name(compare_here("llama-server", peers=peers_of(server)))["llama-server"]["note"]
    assert "2 slots for 3 prompts" in note
    assert {request["id_slot"] for request in server.requests} == {0, 1}


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
