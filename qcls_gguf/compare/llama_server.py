"""llama-server over HTTP: a request for each prompt, in a slot of its own that keeps the prompt's prefix."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from typing import ClassVar

from ..config.words import JsonObject
from . import Peers
from .child_process import Program
from .http_peer import Connection, HttpPeer
from .method import AbsentError, PeerError, Workload

_START_S = 600.0
_POLL_S = 0.1
_ANSWER_S = 10.0


class LlamaServer(HttpPeer):
    """`/completion` with one token to predict and the log-probabilities of the likeliest tokens."""

    path: ClassVar = "/completion"
    log_probs_key: ClassVar = "completion_probabilities"
    end_key: ClassVar = "stop_type"
    n_top: ClassVar = 100

    def __init__(self, workload: Workload, peers: Peers) -> None:
        self._spawned: Program | None = None
        try:
            if peers.llama_server is not None:
                url = peers.llama_server
            elif peers.spawn_llama_server is not None:
                url = self._spawn(peers.spawn_llama_server, workload)
            else:
                raise AbsentError(
                    "no server: give the URL of one as `llama_server`, or a program as `spawn_llama_server` (cmake "
                    "-DQCLS_PEERS=ON builds one, see docs/building.md)"
                )
            super().__init__(workload, url)
        except BaseException:
            self._end_spawned()
            raise

    def _spawn(self, binary: Path, workload: Workload) -> str:
        """Start a server; its address once it is ready. Raises AbsentError."""
        program = shutil.which(binary)
        if program is None:
            raise AbsentError(f"`spawn_llama_server` {binary}: no such program")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        n = len(workload.prompts)
        # One cache for all slots lets prompts of unequal length share a decode; with it, idle slots are emptied unless
        # the cache in main memory is off (tools/server/server-context.cpp).
        options = {
            "--model": workload.model.path,
            "--host": "127.0.0.1",
            "--port": port,
            "--parallel": n,
            "--ctx-size": n * max(256, workload.n_longest + 8),
            "--cache-ram": 0,
            "--threads": workload.n_threads,
            "--threads-batch": workload.n_threads,
            "--n-gpu-layers": workload.model.n_gpu_layers,
            "--cache-type-k": workload.runtime.kv_type,
            "--cache-type-v": workload.runtime.kv_type,
            "--flash-attn": {None: "auto", True: "on", False: "off"}[workload.flash_attn],
        }
        words = [str(word) for option in options.items() for word in option]
        self._spawned = server = Program([program, *words, "--kv-unified", "--no-webui"])
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_S
        while True:
            connection = Connection(url, _ANSWER_S)
            try:
                connection.request("GET", "/health")
                return url
            except PeerError as e:
                if server.process.poll() is not None:
                    raise AbsentError(f"`spawn_llama_server` {binary}: {server.state()}") from e
                if time.monotonic() > deadline:
                    raise AbsentError(f"{binary} was not ready within {_START_S:g} s: {server.state()}") from e
            finally:
                connection.close()
            time.sleep(_POLL_S)

    def check_server(self, connection: Connection) -> None:
        properties = connection.request("GET", "/props")
        n_slots = properties.get("total_slots") if isinstance(properties, dict) else None
        if not isinstance(n_slots, int) or n_slots < 1:
            raise PeerError("/props names no total_slots: it is no llama-server, or one without slots")
        self._n_slots = n_slots

    def body(self, index: int, text: str) -> JsonObject:
        return {
            **{"prompt": text, "n_predict": 1, "n_probs": self.n_top, "temperature": 0},
            **{"id_slot": index % self._n_slots, "cache_prompt": True},
        }

    def remarks(self) -> list[str]:
        remarks, n = super().remarks(), len(self.workload.prompts)
        if self._n_slots < n:
            remarks.append(
                f"the server has {self._n_slots} slots for {n} prompts, which evict each other's prefixes: "
                f"start it with --parallel {n}"
            )
        if self._spawned is None:
            remarks.append(f"model, settings and kernels are those of {self.url}; whether they are ours is not checked")
        return remarks

    def close(self) -> None:
        super().close()
        self._end_spawned()

    def _end_spawned(self) -> None:
        if self._spawned is not None:
            self._spawned.close()
