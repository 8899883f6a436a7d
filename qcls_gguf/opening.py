"""How the tools open classifiers: through one opener that shares models; some with a single prompt."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from .classifier import Classifier
from .config.load import load_config
from .config.prompt import LikelyMistake
from .config.schema import Config, Variant, check_config, chosen_prompts
from .core.startup import prepare
from .errors import ConfigError
from .model import OpenModels
from .system.lifetimes import Closing, OnStep

OnProgress = Callable[[str, int, int], None]
"""(part of the work, how much of it is done, its total)"""
T = TypeVar("T")
QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "light pink cashmere sweater for date night",
    "wool coat",
    "when does the shop open",
)
"""what is measured where no queries are given"""


def with_one_prompt(config: str | Path | Config, name: str | None = None) -> Config:
    """The configuration with only one of its prompts: the named one, or the only one.

    config: as for Classifier.from_config. Raises ConfigError.
    """
    config = load_config(config) if isinstance(config, str | Path) else check_config(config)
    prompts = chosen_prompts(config, () if name is None else (name,))
    if len(prompts) > 1:
        names = ", ".join(prompt.name for prompt in prompts)
        raise ConfigError(f"the configuration has {len(prompts)} prompts: name one of them: {names}")
    return config.changed(prompts=prompts)


class ClassifierOpener(Closing):
    """Opens classifiers with a command's options, and tells the command how far the work has come.

    Classifiers with the same model file share the open model.
    """

    def __init__(
        self,
        *,
        offline: bool = False,
        on_step: OnStep | None = None,
        on_load: Callable[[float], None] | None = None,
        on_warning: Callable[[LikelyMistake], None] | None = None,
        on_progress: OnProgress = lambda part, done, total: None,
    ) -> None:
        """offline: take a model of the Hugging Face hub from the local cache only. on_step is called after the steps of
        a start-up, on_load with the share of the model that is loaded, 0 to 1, on_warning with a likely mistake, once,
        on_progress as the work goes on.
        """
        self.models = OpenModels(offline=offline, on_load=on_load)
        self._on_step = on_step
        self._on_warning = on_warning
        self._warnings: dict[LikelyMistake, None] = {}
        self.on_progress = on_progress

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """Likely mistakes in the prompts of all classifiers opened so far, without repetitions."""
        return tuple(self._warnings)

    def open(
        self, config: Config, *, audit: bool = False, quiet: bool = False, **variant: Unpack[Variant]
    ) -> Classifier:
        """A classifier, which the caller closes. Raises what Classifier.from_config raises.

        audit: every answer carries its exact scores; quiet: on_step is not called; variant: what of the configuration
        is not as written.
        """
        on_step = None if quiet else self._on_step
        classifier = Classifier.open(prepare(config, self.models, on_step=on_step, audit=audit, **variant))
        for mistake in classifier.warnings:
            if mistake not in self._warnings and self._on_warning:
                self._on_warning(mistake)
            self._warnings[mistake] = None
        return classifier

    def progress(self, part: str, items: Sequence[T]) -> Iterator[T]:
        """The items of a part of the work, one by one; on_progress is called when one is done."""
        for done, item in enumerate(items, 1):
            yield item
            self.on_progress(part, done, len(items))

    def close(self) -> None:
        """Close the models; the classifiers have been closed before."""
        self.models.close()
