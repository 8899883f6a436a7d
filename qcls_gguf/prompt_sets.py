"""The prompt sets that an engine holds: adding, calibrating and removing them. One thread at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .active_set import ActiveSet
from .config.calibration_file import Calibration
from .engine.engine import Engine
from .engine.prefix_cache import Prefix
from .pipeline import Pipeline
from .plan.tree import Int32Array
from .prompts.prompt_set import PromptSet
from .score.calibration import adjustments_of


class PromptSets:
    """Prompt sets on one engine. The engine's rows contain the logits that exact scorings among them need."""

    def __init__(self, engine: Engine, pipeline: Pipeline, label_tokens: Int32Array) -> None:
        """label_tokens: the tokens whose logits are in the engine's rows when it is opened."""
        self._engine = engine
        self._pipeline = pipeline
        self._label_tokens = label_tokens
        self._are_set = True  # whether the engine's rows and the scorers have the same label tokens
        self._active: list[ActiveSet] = []

    def add(self, prompts: PromptSet, held: Sequence[Prefix] | None = None) -> ActiveSet:
        """Add a set; its answers are not calibrated until `calibrate`. held: its prefixes, if the engine has them.

        Raises PlanError if the engine has no room for its prefixes, and DecodeError; then nothing changes.
        """
        prefixes = self._engine.hold(prompts.prefixes) if held is None else held
        try:
            active = ActiveSet(prompts, self._engine, prefixes, self._label_tokens)
            self._active.append(active)
            self._use_label_tokens()
        except BaseException:
            self._active = [each for each in self._active if each.held is not prefixes]
            self._engine.release(prefixes)
            self._use_label_tokens()  # as they were
            raise
        return active

    def calibrate(self, active: ActiveSet, calibration: Calibration | None) -> None:
        """Calibrate a set's answers from now on, as its settings or a calibration file say.

        Raises ConfigError for a content-free query that cannot be labelled.
        """

        def raw_scores(query: str) -> dict[str, npt.NDArray[np.float64]]:
            (result,) = self._pipeline.run([(active, query)])
            return {each.prompt: np.array([score.score for score in each.scores]) for each in result.results}

        active.answers.adjust(adjustments_of(active.prompts.settings, calibration, raw_scores))

    def remove(self, active: ActiveSet) -> None:
        """Remove a set and release its room; later requests to it raise an error."""
        active.is_open = False
        self._active.remove(active)
        self._engine.release(active.held)
        try:
            self._use_label_tokens()
        except BaseException:  # such as an interrupt, after which some scorers may not match the rows
            self._use_label_tokens()
            raise

    def _use_label_tokens(self) -> None:
        exact = [active for active in self._active if active.prompts.exact]
        tokens = np.array(sorted({token for each in exact for token in each.prompts.label_tokens.tolist()}), np.int32)
        if not (self._are_set and np.array_equal(tokens, self._label_tokens)):
            self._are_set = False
            self._engine.set_label_tokens(tokens)
            self._label_tokens = tokens
        for active in exact:
            active.scorer.use_label_tokens(tokens)
        self._are_set = True
