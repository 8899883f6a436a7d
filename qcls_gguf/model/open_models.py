"""The open models of a process's classifiers, each opened once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ..config.schema import Config, ModelConfig, QueryTokens
from ..native import ContextMemory, WeightOrder
from ..timing import Ledger
from .find import find_model
from .open import Model


class OpenModels:
    """Opens the model of each configuration once: those of one file and equal settings of the model share it."""

    def __init__(self, *, offline: bool = False, on_load: Callable[[float], None] | None = None) -> None:
        self._offline = offline
        self._on_load = on_load
        self._paths: dict[ModelConfig, Path] = {}
        self._models: dict[tuple[Path, int | str, QueryTokens, WeightOrder], Model] = {}
        self._weight_order = WeightOrder.BY_DEVICE

    def of(
        self,
        config: Config,
        ledger: Ledger | None = None,
        measure: Callable[[Model], ContextMemory] | None = None,
    ) -> Model:
        """The model of a configuration, opened when it is first asked for. Raises ConfigError or ModelError.

        measure: see `Model.open`; of configurations that share a model, the first one's counts.
        """
        key = self.path_of(config), config.runtime.n_gpu_layers, config.runtime.query_tokens, self._weight_order
        if key in self._models:
            if ledger:
                ledger.step("find model", str(self._models[key].path))
                ledger.step("load model", "open already")
            return self._models[key]
        self._models[key] = Model.open(
            config.model,
            config.runtime,
            offline=self._offline,
            on_load=self._on_load,
            ledger=ledger,
            weight_order=self._weight_order,
            measure=measure,
        )
        return self._models[key]

    @contextmanager
    def in_file_order(self) -> Iterator[None]:
        """Models that are opened inside have their weights as the file has them, which llama.cpp's own kernels read."""
        before, self._weight_order = self._weight_order, WeightOrder.FILE
        try:
            yield
        finally:
            self._weight_order = before

    def path_of(self, config: Config) -> Path:
        """The model's file. Raises ConfigError or ModelError."""
        if config.model not in self._paths:
            self._paths[config.model] = find_model(config.model, offline=self._offline).resolve()
        return self._paths[config.model]

    def __len__(self) -> int:
        return len(self._models)

    def close(self) -> None:
        """Close every model."""
        while self._models:
            self._models.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
