"""The sha256 of a model file, computed while the file is loaded."""

from __future__ import annotations

import threading
from pathlib import Path

from ..errors import ModelError
from ..system.threads import start
from .identity import ModelIdentity, identify


class Hashing:
    """Hashes the model file beside its loading: both read it, and a large file is hashed for seconds."""

    def __init__(self, path: Path) -> None:
        self._identity: ModelIdentity | None = None
        self._error: ModelError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(path,), name="qcls-gguf hashing")
        start(self._thread, ModelError, f"to hash {path}")

    def _run(self, path: Path) -> None:
        try:
            self._identity = identify(path, on_progress=self._go_on)
        except ModelError as e:
            self._error = e

    def _go_on(self, _n_done: int, _size_bytes: int) -> None:
        if self._stop.is_set():
            raise ModelError("the model was closed before its file was hashed")

    def stop(self) -> None:
        """End it, done or not; may be called again."""
        self._stop.set()
        self._thread.join()

    def identity(self) -> ModelIdentity:
        """Size and sha256, when the file is hashed. Raises ModelError."""
        self._thread.join()
        if self._identity is None:
            raise self._error or ModelError("the model file could not be hashed")
        return self._identity
