"""How the tools open classifiers: every tool takes one opener, and opens all its classifiers with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .classifier import Classifier
from .config.schema import Config

OnStep = Callable[[str, str, float], None]
"""(name of a step of the start-up, what it did, milliseconds)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierOpener:
    """Opens classifiers with the options that a command was given."""

    offline: bool = False
    """take a model of the Hugging Face hub from the local cache only"""
    on_step: OnStep | None = None
    """called after each step of a start-up"""
    on_load: Callable[[float], None] | None = None
    """called with the share of the model that is loaded, 0 to 1"""

    def open(self, config: Config, *, audit: bool = False, quiet: bool = False) -> Classifier:
        """A classifier, which the caller closes. Raises what Classifier.from_config raises.

        audit: every answer carries its exact scores; quiet: on_step and on_load are not called.
        """
        return Classifier.from_config(
            config,
            offline=self.offline,
            on_step=None if quiet else self.on_step,
            on_load=None if quiet else self.on_load,
            audit=audit,
        )
