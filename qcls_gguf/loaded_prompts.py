"""The methods that answer queries by one prompt set: of a classifier, and of the sets that are added to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal, NoReturn, Self, overload

from .active_set import ActiveSet
from .config.likely_mistake import LikelyMistake
from .config.prompt import PromptConfig
from .config.schema import Config
from .decodes import Tokenized
from .engine.call import Taker
from .errors import PlanError, QclsError
from .model import Model
from .pipeline import MAX_QUERIES, Prepared
from .prompt_sets import PromptSets
from .prompts.compiled import Prompt
from .requests import Requests
from .score.adjustment import Adjustment
from .score.result import Result

OnErrors = Literal["raise", "return"]
"""what a call for several queries does with the error of one"""


class Answering:
    """Answers queries by one prompt set. Usable from several threads."""

    def __init__(
        self, requests: Requests, active: ActiveSet, sources: Sequence[PromptConfig], config: Config, model: Model
    ) -> None:
        """sources: the set's prompts as written in the configuration; config: the classifier's."""
        self.active = active
        self._requests = requests
        self._sources = sources
        self._config = config
        self._model = model

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied, since its model is in this process's memory: make "
            "one in each process, from the same configuration"
        )

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query; see `classify_batch`."""
        return self._requests.ask([(self.active, query)], deadline_s)[0]

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["raise"] = "raise"
    ) -> list[Result]: ...

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["return"]
    ) -> list[Result | QclsError]: ...

    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: OnErrors = "raise"
    ) -> list[Result] | list[Result | QclsError]:
        """Label several queries in one decode, or in as few as the limits allow (counts.n_decodes tells).

        deadline_s: if the request has not begun after so many seconds, it is not computed and DeadlineError is raised.
        Raises PlanError, before anything is computed, for a query that is too long or not valid Unicode, and for more
        than 10,000 queries; BusyError if too many callers wait; DecodeError; ScoreError. After an error the classifier
        works as before. errors="return": the list has an error in place of the result of each query that cannot be
        labelled; errors of the whole call are still raised (BusyError, DeadlineError, a closed classifier, too many
        queries).
        """
        if isinstance(queries, str):
            raise PlanError("classify_batch takes a list of queries: give one query to classify")
        items = [(self.active, query) for query in islice(queries, MAX_QUERIES + 1)]  # one without an end is refused
        if errors == "raise":
            return self._requests.ask(items, deadline_s)
        if errors != "return":
            raise PlanError(f"errors: {errors!r} is not raise or return")
        return self._requests.ask_each(items, deadline_s)

    @property
    def has_steps(self) -> bool:
        """Whether `classify_batch` equals `tokenize`, `prepare` and `compute` in turn; false for a cascade."""
        return self._requests.has_steps

    def tokenize(self, query: str) -> Tokenized:
        """The first of the steps of `classify_batch`; see Requests.tokenize."""
        return self._requests.tokenize((self.active, query))

    def prepare(self, tokenized: Sequence[Tokenized], *, on_rungs: bool = False) -> Prepared:
        """The second step. on_rungs: pad the decode to one of a few token counts, so that shapes repeat."""
        return self._requests.prepare(tokenized, on_rungs=on_rungs)

    @property
    def has_states(self) -> bool:
        """Whether the model has recurrent layers, which compute sequences of one length together."""
        return self._model.has_states

    @property
    def pays_on_rungs(self) -> bool:
        """Whether such padding saves time on this device."""
        return self._requests.pays_on_rungs

    def compute(self, prepared: Prepared) -> list[Result]:
        """The third step."""
        return self._requests.compute(prepared)

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop: a thread of the classifier computes.

        A task that is cancelled before its turn is not computed. Raises as `classify_batch` does.
        """
        return (await self._requests.ask_async([(self.active, query)], deadline_s))[0]

    def classify_for(self, taker: Taker[Sequence[Result]], query: str, *, deadline_s: float | None = None) -> None:
        """`aclassify` for callers without a task, which receive the result later: see Requests.ask_for."""
        self._requests.ask_for(taker, [(self.active, query)], deadline_s)

    def check(self, query: str) -> None:
        """Raise PlanError for a query that `classify` would refuse; nothing is computed."""
        self._requests.check(self.active, query)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The compiled prompts."""
        return self.active.prompts.prompts

    @property
    def adjustments(self) -> Sequence[Adjustment]:
        """The calibration of each prompt's scores."""
        return self.active.answers.adjustments

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """Likely mistakes in the prompts, except kinds that the classifier's configuration ignores."""
        from .prompts.likely_mistakes import likely_mistakes  # answers do without it

        return likely_mistakes(
            self._sources,
            self.active.prompts,
            self._model,
            chat_template=self._config.model.chat_template,
            ignored=self._config.ignore_warnings,
        )


class LoadedPrompts(Answering):
    """A prompt set that a classifier holds ready. Usable from several threads."""

    def __init__(
        self,
        requests: Requests,
        active: ActiveSet,
        sources: Sequence[PromptConfig],
        config: Config,
        model: Model,
        sets: PromptSets | None,
    ) -> None:
        """Use Classifier.prompt_set. sets: the sets from which `close` removes it; None: closed with its classifier."""
        super().__init__(requests, active, sources, config, model)
        self._sets = sets

    def close(self) -> None:
        """Release the room of its prefixes; later requests to it raise DecodeError. May be called again.

        Does nothing for the configured set, which is closed with its classifier.
        """
        if self._sets is None or not self._requests.is_of_this_process:
            return
        self._requests.check_process()
        self._requests.batcher.run_alone(self._remove, self._sets)

    def _remove(self, sets: PromptSets) -> None:
        if self.active.is_open and not self._requests.batcher.is_closed:
            sets.remove(self.active)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
