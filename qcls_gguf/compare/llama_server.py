"""llama-server over HTTP: a request for each prompt, in a slot of its own that keeps the prompt's prefix."""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from .http_peer import HttpMethod
from .method import AbsentError, PeerError, Workload, WorkloadPrompt

if TYPE_CHECKING:
    from .connection import Connection

_START_S = 600.0
_POLL_S = 0.1
_ANSWER_S = 10.0


class LlamaServer(HttpMethod):
    """`/completion` with one token to predict and the log-probabilities of the likeliest tokens."""

    name: ClassVar[str] = "llama-server"
    about: ClassVar[str] = (
        "HTTP, a request a prompt at once, slots pinned, prompts cached, one token with log-probabilities"
    )
    n_top = 100
    remedy_outside = "a larger n_probs would return them"

    def __init__(self, workload: Workload, url: str | None = None, binary: Path | None = None) -> None:
        super().__init__(workload)
        self._url = url
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._n_slots = len(workload.prompts)

    def start(self) -> None:
        url = self._url
        if url is None:
            if self._binary is None:
                raise AbsentError(
                    "no server: give the URL of one as `llama_server`, or a program as `spawn_llama_server` (cmake "
                    "-DQCLS_PEERS=ON builds one, see docs/building.md)"
                )
            url = self._spawn(self._binary)
        self.open(url)

    def _spawn(self, binary: Path) -> str:
        from .connection import Connection

        program = shutil.which(binary)
        if program is None:
            raise AbsentError(f"`spawn_llama_server` {binary}: no such program")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        n = len(self.workload.prompts)
        # One cache for all slots lets prompts of unequal length share a decode; with it, idle slots are emptied unless
        # the cache in main memory is off (tools/server/server-context.cpp).
        options: list[str | int | Path] = [
            "--model", self.workload.model_path, "--host", "127.0.0.1", "--port", port, "--parallel", n,
            "--ctx-size", n * max(256, self.workload.n_longest + 8), "--kv-unified", "--cache-ram", 0,
            "--threads", self.workload.n_threads, "--threads-batch", self.workload.n_threads,
            "--n-gpu-layers", self.workload.n_gpu_layers, "--no-webui",
            "--cache-type-k", self.workload.runtime.kv_type, "--cache-type-v", self.workload.runtime.kv_type,
            "--flash-attn", {None: "auto", True: "on", False: "off"}[self.workload.flash_attn],
        ]  # fmt: skip
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the server runs
        self._process = subprocess.Popen(
            [program, *map(str, options)], stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_S
        while True:
            connection = Connection(url, _ANSWER_S)
            try:
                connection.request("GET", "/health")
                return url
            except PeerError as e:
                if self._process.poll() is not None:
                    raise AbsentError(f"{binary} ended with {self._process.returncode}: {self._last_words()}") from e
                if time.monotonic() > deadline:
                    raise AbsentError(f"{binary} was not ready within {_START_S:g} s: {self._last_words()}") from e
            finally:
                connection.close()
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        assert self._log is not None, "the server was started here"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it wrote nothing"

    def check_server(self, connection: Connection) -> None:
        properties = connection.request("GET", "/props")
        n_slots = properties.get("total_slots") if isinstance(properties, dict) else None
        if not isinstance(n_slots, int) or n_slots < 1:
            raise PeerError("/props names no total_slots: it is no llama-server, or one without slots")
        self._n_slots = n_slots

    def top(self, connection: Connection, index: int, prompt: WorkloadPrompt, text: str) -> dict[int, float]:
        answer = connection.request(
            "POST",
            "/completion",
            {
                "prompt": text,
                "n_predict": 1,
                "n_probs": self.n_top,
                "temperature": 0,
                "id_slot": index % self._n_slots,
                "cache_prompt": True,
            },
        )
        if answer.get("stop_type") and "completion_probabilities" not in answer:
            return {}  # the server sends none where the token that it picked has no text, or ends the turn
        try:
            entries = answer["completion_probabilities"][0]["top_logprobs"]
            log_probs = {int(entry["id"]): float(entry["logprob"]) for entry in entries}
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise PeerError(f"llama-server's answer has no completion_probabilities with top_logprobs: {e!r}") from e
        # a probability of 0 comes as the lowest float
        return {token: p for token, p in log_probs.items() if math.isfinite(p) and p > -1e30}

    def remarks(self) -> list[str]:
        remarks = super().remarks()
        n = len(self.workload.prompts)
        if self._n_slots < n:
            remarks.append(
                f"the server has {self._n_slots} slots for {n} prompts, which evict each other's prefixes: "
                f"start it with --parallel {n}"
            )
        if self._url is not None:
            remarks.append(
                f"model, settings and kernels are those of {self._url}; whether they are ours is not checked"
            )
        return remarks

    def close(self) -> None:
        super().close()
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log:
            self._log.close()
