"""The handle of a prompt set on an engine: ask it, close it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NoReturn

from ..config.prompt import LikelyMistake, PromptConfig
from ..config.words import listed
from ..engine.prefix_cache import Prefix
from ..errors import PlanError
from ..native.trie import trie_rooms
from ..plan.planner import Templates
from ..prompts.compiled import Prompt
from ..prompts.prompt_set import PromptSet
from ..score.adjustment import Adjustment
from ..score.output import Output
from ..score.result import Result
from ..score.scorer import Answers, Scorer
from ..system.closing import Closing
from .core import MAX_QUERIES, Core, TokenizedItem

_BYTES_PER_TOKEN = 4
_N_LONG = 8
"""tokens of a query; from the tokens that it and an empty one feed, `n_fed` estimates how many any query feeds"""


def n_tokens_of(n_bytes: int) -> int:
    """About how many tokens a text of so many bytes has."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


def n_query_tokens(query: str) -> int:
    """About how many tokens a query has."""
    return n_tokens_of(len(query.encode("utf-8", "replace")))


class Labeller(Closing):
    """Base of the objects that answer queries: classifiers, and handles of their prompt sets."""

    @property
    def handle(self) -> LoadedPrompts:
        """The prompt set that is asked."""
        raise NotImplementedError

    def _ask(self, queries: Sequence[str], deadline_s: float | None) -> list[Result]:
        raise NotImplementedError

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query; see `classify_batch`."""
        return self._ask([query], deadline_s)[0]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied, since its model is in this process's memory: make "
            "one in each process, from the same configuration"
        )

    def __repr__(self) -> str:
        """Its prompts, and the model and device that answer."""
        names, core = listed([prompt.name for prompt in self.prompts]), self.handle.core
        closed = "" if self.handle.is_open and not core.executor.is_closed else ", closed"
        model = f"{core.info.description}, {core.info.device}"
        return f"<{type(self).__name__} of {names} ({model}{closed})>"

    def classify_batch(self, queries: Iterable[str], *, deadline_s: float | None = None) -> list[Result]:
        """Label several queries in one decode, or in as few as the limits allow (counts.n_decodes tells).

        deadline_s: if the request has not begun after so many seconds, it is not computed and DeadlineError is raised.
        Raises PlanError, before anything is computed, for a query that is missing, too long or not valid Unicode, with
        its index (`check` finds all of them), and for more than 10,000 queries; BusyError if too many callers wait;
        DecodeError; ScoreError. After an error the classifier works as before.
        """
        if isinstance(queries, str):
            raise PlanError("classify_batch takes a list of queries: give one query to classify")
        asked = list(islice(queries, MAX_QUERIES + 1))  # one more is refused
        try:
            return self._ask(asked, deadline_s)
        except PlanError:
            if len(asked) <= MAX_QUERIES:
                self._name_refused(asked)
            raise

    def _name_refused(self, queries: Sequence[str]) -> None:
        """Raise PlanError for the first query that is refused, with its index."""
        for index, query in enumerate(queries):
            try:
                self.handle.tokenize(query)
            except PlanError as e:
                raise PlanError(f"queries[{index}]: {e}") from None

    def check(self, query: str) -> None:
        """Raise PlanError for a query that `classify` would refuse; nothing is computed."""
        self.handle.core.counts(self.handle, query)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The compiled prompts."""
        return self.handle.compiled.prompts

    @property
    def adjustments(self) -> Sequence[Adjustment]:
        """The calibration of each prompt's scores."""
        return self.handle.answers.adjustments

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """Likely mistakes in the prompts, except kinds that the classifier's configuration ignores."""
        return self.handle.likely_mistakes()


class LoadedPrompts(Labeller):
    """A prompt set on an engine: its prefixes are cached, its label rows loaded and its plans made. Usable from several
    threads.
    """

    def __init__(
        self,
        core: Core,
        compiled: PromptSet,
        held: Sequence[Prefix],
        sources: Sequence[PromptConfig] | None = None,
    ) -> None:
        """Use Classifier.prompt_set. held: the cached prefixes of the prompts, in their order; sources: of the
        configured set, which is closed with its classifier, the prompts as written.
        """
        engine, tokens = core.engine, compiled.label_tokens.tolist()
        self.compiled = compiled
        self.held = held
        self.is_open = True
        self.is_configured = sources is not None
        """whether it is the configured set, or a set of some of it"""
        self.core = core
        self._sources = sources
        self.templates = Templates(
            compiled, [prefix.holder for prefix in held], engine.capacity, engine.model.facts.n_vocab
        )
        steps = engine.context.output_steps
        bias = engine.model.output_rows.biases(tokens) if steps.has_bias else None
        self.scorer = Scorer(
            [prompt.trie for prompt in compiled.prompts],
            engine.model.output_rows.of(tokens),
            core.label_tokens if compiled.exact else None,
            output=Output(scale=steps.scale, cap=steps.cap, bias=bias),
            arithmetic=trie_rooms,
            reads_labels=compiled.reads_labels,
        )
        self.answers = Answers(compiled.prompts, self.scorer)
        self.n_prefixes = len(set(compiled.prefixes))
        self.n_edges = sum(len(prompt.trie.edges) for prompt in compiled.prompts)
        # (tokens that an empty query feeds, tokens that each token of a query adds)
        self._fed: tuple[int, float] | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether it is never `joined`: its answers take more than its tokens and the rows of its labels."""
        return self.is_configured or self.compiled.exact

    def joined(self, sets: Sequence[LoadedPrompts]) -> LoadedPrompts:
        """This set and others as one, for as long as all of them are open and rows hold what they do now."""
        prompts = tuple([prompt for each in sets for prompt in each.compiled.prompts])
        held = [prefix for each in sets for prefix in each.held]
        joint = LoadedPrompts(self.core, PromptSet(prompts=prompts, exact=False), held)
        joint.answers.adjust([adjustment for each in sets for adjustment in each.answers.adjustments])
        joint.answers.use_columns(self.core.engine.columns)
        return joint

    @property
    def handle(self) -> LoadedPrompts:
        """Itself."""
        return self

    def _ask(self, queries: Sequence[str], deadline_s: float | None) -> list[Result]:
        return self.core.ask([(self, query) for query in queries], deadline_s)

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop.

        A task that is cancelled before its turn is not computed. Raises as `classify_batch` does.
        """
        return (await self.core.ask_async([(self, query)], deadline_s))[0]

    def tokenize(self, query: str) -> TokenizedItem:
        """A query with its tokens, for `Core.plan`; any thread may call it. Raises PlanError."""
        self.core.check([(self, query)])
        return self.core.tokenize(self, query)

    def n_fed(self, query: str) -> int:
        """About how many tokens a query feeds."""
        if self._fed is None:
            short, long = (self.templates.size_of_query(n) for n in (0, _N_LONG))
            if short and long:
                self._fed = short[1], (long[1] - short[1]) / _N_LONG
            else:
                prompts = self.compiled.prompts
                self._fed = sum(len(each.closing) + len(each.trie.fed) for each in prompts), float(len(prompts))
        n_fixed, per_token = self._fed
        return n_fixed + int(per_token * min(n_query_tokens(query), self.core.config.runtime.max_query_tokens))

    def likely_mistakes(self) -> tuple[LikelyMistake, ...]:
        """Likely mistakes in the prompts; see `warnings`."""
        from ..prompts.likely_mistakes import likely_mistakes  # answers do without it

        return likely_mistakes(
            self._sources or self.compiled.settings,
            self.compiled,
            self.core.engine.model,
            settings=self.core.config.model,
            ignored=self.core.config.ignore_warnings,
        )

    def close(self) -> None:
        """Unpin its prefixes; later requests to it raise DecodeError. May be called again.

        Does nothing for the configured set, which is closed with its classifier, and in a forked process.
        """
        executor = self.core.executor
        if self._sources is None and executor.is_of_this_process and not executor.is_closed:
            self.core.run(self._remove)

    def _remove(self) -> None:
        if self.is_open:
            self.core.remove(self)
