"""The handle of a prompt set on an engine: ask it, close it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import NoReturn

import numpy as np

from ..config.fitted import Calibration
from ..config.prompt import LikelyMistake, PromptConfig
from ..config.words import listed
from ..engine.prefix_cache import Prefix, Tokens
from ..errors import DecodeError, PlanError, QueryError
from ..native.arithmetic import trie_arrays
from ..plan.planner import Templates
from ..prompts.compiled import Prompt
from ..prompts.prompt_set import PromptSet
from ..score.adjustment import adjustments_of
from ..score.result import Counts, PromptResult, Result
from ..score.rows import Output
from ..score.scorer import AnswerMaker, Scorer
from ..statistics import Float32Array, FloatArray
from ..system.lifetimes import Closing
from .core import MAX_QUERIES, Core, TokenizedItem, counts_of

PIECE = 64
"""tokens of a prefix that are decoded between two turns: about as many as a request of several prompts feeds"""
_BYTES_PER_TOKEN = 4


def estimated_tokens(n_bytes: int) -> int:
    """About how many tokens a text of so many bytes has."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


class PromptHandle(Closing):
    """A prompt set on an engine: its prefixes are cached, its label rows loaded and its plans made. Usable from several
    threads.
    """

    def __init__(
        self, core: Core, compiled: PromptSet, held: Sequence[Prefix], sources: Sequence[PromptConfig] | None = None
    ) -> None:
        """Use Classifier.prompt_set. Its answers are not calibrated yet.

        held: the cached prefixes of the prompts, in their order; sources: the configured prompts as they were written,
        None for a set that came at run time.
        """
        engine, tokens = core.engine, compiled.label_tokens.tolist()
        self.compiled = compiled
        self.prompts: Sequence[Prompt] = compiled.prompts
        """The compiled prompts."""
        self.held = held
        self.is_open = True
        """False once a set that came at run time was closed; of a Classifier its executor tells."""
        self.core = core
        self._sources = sources
        holders = [prefix.holder for prefix in held]
        capacity = engine.capacity
        if sources is not None:  # more sequences are for questions alone
            n_leaves = sum(prompt.trie.n_leaves for prompt in compiled.fed)
            capacity = replace(capacity, n_seqs=min(capacity.n_seqs, core.config.runtime.max_batch * n_leaves))
        self.templates = Templates(compiled, holders, capacity, engine.model.facts.n_vocab)
        scale, cap, has_bias = engine.context.output_steps
        bias = engine.model.output_rows.biases(tokens) if has_bias else None
        self.scorer = Scorer(
            [prompt.trie for prompt in compiled.fed],
            engine.model.output_rows.of(tokens),
            exact=compiled.exact,
            output=Output(scale=scale, cap=cap, bias=bias),
            arithmetic=trie_arrays,
            reads_labels=compiled.reads_labels,
        )
        self.answer_maker = AnswerMaker(compiled.prompts, self.scorer, compiled.orders)
        self.n_prefixes = len(set(compiled.prefixes))
        self.n_edges = sum(len(prompt.trie.edges) for prompt in compiled.fed)
        self._n_fed: int | None = None  # tokens that an empty query feeds
        self._n_copies = len({(prompt.prefix, prompt.before) for prompt in compiled.fed})  # of a query, that are fed

    def __reduce__(self) -> NoReturn:
        what = f"a {type(self).__name__} cannot be pickled or copied, since its model is in this process's memory"
        raise TypeError(f"{what}: make one in each process, from the same configuration")

    def __repr__(self) -> str:
        """Its prompts, and the model and device that answer."""
        names, core = listed([prompt.name for prompt in self.prompts]), self.core
        closed = "" if self.is_open and not core.executor.is_closed else ", closed"
        return f"<{type(self).__name__} of {names} ({core.info.description}, {core.info.device}{closed})>"

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query; see `classify_batch`."""
        return self.core.ask([(self, query)], deadline_s)[0]

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop.

        A task that is cancelled before its turn is not computed. Raises as `classify_batch` does.
        """
        return (await self.core.ask_async([(self, query)], deadline_s))[0]

    def classify_batch(self, queries: Iterable[str], *, deadline_s: float | None = None) -> list[Result]:
        """Label several queries in one decode, or in as few as the limits allow (counts.n_decodes tells).

        deadline_s: if the request has not begun after so many seconds, it is not computed and DeadlineError is raised.
        Raises QueryError, before anything is computed, for a query that is missing, too long or not valid Unicode, with
        its index (`check` finds all of them), and for more than 10,000 queries; BusyError if too many callers wait;
        PlanError; DecodeError; ScoreError. After an error the classifier works as before.
        """
        if isinstance(queries, str):
            raise QueryError("classify_batch takes a list of queries: give one query to classify")
        asked = list(islice(queries, MAX_QUERIES + 1))  # one more is refused
        try:
            return self.core.ask([(self, query) for query in asked], deadline_s)
        except PlanError:
            for index, query in enumerate(asked if len(asked) <= MAX_QUERIES else ()):
                try:
                    self.tokenize(query)
                except QueryError as e:
                    raise QueryError(f"queries[{index}]: {e}") from None
            raise

    def check(self, query: str) -> Counts:
        """The counts of `classify` for a query; nothing is computed. Raises PlanError as it does."""
        return counts_of(1, self.core.run(self.core.plan, [self.tokenize(query)]))

    def tokenize(self, query: str) -> TokenizedItem:
        """A query with its tokens, for `Core.plan`; any thread may call it. Raises QueryError."""
        self.core.check([(self, query)])
        return self.core.tokenize(self, query)

    def estimated_fed(self, query: str) -> int:
        """About how many tokens a query feeds."""
        if self._n_fed is None:
            size = self.templates.size_of_query(0)
            n_after = sum(len(prompt.closing) + len(prompt.trie.fed) for prompt in self.compiled.fed)
            self._n_fed = size[1] if size else n_after
        n_tokens = estimated_tokens(len(query.encode("utf-8", "replace")))
        return self._n_fed + self._n_copies * min(n_tokens, self.core.config.runtime.max_query_tokens)

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """Likely mistakes in the prompts, except kinds that the classifier's configuration ignores."""
        from ..prompts.likely_mistakes import likely_mistakes  # answers do without it

        sources, core = self._sources or self.compiled.settings, self.core
        return likely_mistakes(sources, self.compiled, core.engine.model, core.config)

    def calibrate(self, calibration: Calibration | None) -> None:
        """Calibrate the answers from now on, as the settings or a calibration file say. For the executor thread.

        Raises ConfigError for a content-free query that cannot be labelled.
        """

        def raw_scores(query: str) -> dict[str, FloatArray]:
            (result,) = self.core.answer([(self, query)])
            return {answer.prompt: np.array([score.score for score in answer.scores]) for answer in result.results}

        self.answer_maker.adjust(adjustments_of(self.compiled.settings, calibration, raw_scores))

    def answers_and_states(
        self, queries: Sequence[str], depths: tuple[int, ...]
    ) -> tuple[Sequence[tuple[PromptResult, ...]], Float32Array]:
        """The answers to all queries, and (n_queries, n_prompts, n_depths, n_embd) the states at the prompts' ends.

        depths: layers, ascending, below the last one; after them comes the final-norm hidden state. The scoring of
        every prompt has to read its end. For the executor thread. Raises as `classify_batch` does, and ModelError for a
        model that shows no such states.
        """
        engine = self.core.engine
        engine.set_depths(depths)
        plan = self.core.plan([self.core.tokenize(self, query) for query in queries])
        hidden, rows, fast_path, _, _ = self.core.decode(plan)
        by_item = rows.reshape(len(queries), -1)
        ends = by_item[:, self.scorer.first_edge[: len(self.prompts)]]
        columns = map(engine.layout.columns, (*depths, engine.model.facts.n_layer))
        states = np.stack([hidden[:, of_depth][ends] for of_depth in columns], axis=2)
        return self.answer_maker.of(hidden, engine.layout, by_item, fast_path, queries), states

    def subset(self, names: Sequence[str]) -> "PromptHandle":
        """Some prompts as a set of their own with the same calibration, until it is closed. For any thread.

        Raises DecodeError if the classifier was closed.
        """
        chosen, core = tuple(prompt for prompt in self.prompts if prompt.name in names), self.core
        orders = tuple(prompt for prompt in self.compiled.orders if prompt.name in names)
        prompts = replace(self.compiled, prompts=chosen, orders=orders)
        calibrated = zip(self.prompts, self.answer_maker.adjustments, strict=True)
        adjustments = [adjustment for prompt, adjustment in calibrated if prompt.name in names]

        def load() -> PromptHandle:
            handle = _added(core, prompts, core.engine.hold(prompts.prefixes))
            handle.answer_maker.adjust(adjustments)
            return handle

        return core.run(load)

    def close(self) -> None:
        """Unpin its prefixes; later requests to it raise DecodeError. May be called again.

        Does nothing in a forked process.
        """
        executor = self.core.executor
        if executor.is_of_this_process and not executor.is_closed:
            self.core.run(self._remove)

    def _remove(self) -> None:
        if self.is_open:
            self.is_open = False
            self.core.remove(self)


def load_prompts(core: Core, compiled: PromptSet, calibration: Calibration | None) -> PromptHandle:
    """Add a prompt set while requests are answered.

    Long prefixes are decoded in pieces between turns, so that other callers wait for one piece at most. Raises
    PlanError where its prefixes do not fit, ConfigError for a content-free query that cannot be labelled, and
    DecodeError; then nothing has changed.
    """
    begun: list[Prefix] = []  # only the executor thread changes these two lists
    loaded: list[PromptHandle] = []

    def load() -> None:
        held = None
        with suppress(PlanError):
            held = core.engine.hold(compiled.prefixes)
        # The pieces are evicted after the whole prefixes are cached, and before where both do not fit.
        core.engine.forget(begun)
        begun.clear()
        handle = _added(core, compiled, core.engine.hold(compiled.prefixes) if held is None else held)
        loaded.append(handle)
        handle.calibrate(calibration)

    def undo() -> None:
        core.engine.forget(begun)
        for handle in loaded:
            handle._remove()

    try:
        for tokens in dict.fromkeys(compiled.prefixes):
            n_before = len(begun)
            while core.run(_has_grown, core, tokens, begun, n_before):
                pass
        core.run(load)
        return loaded[0]
    except BaseException:  # an interrupt leaves an action that still runs: it ends before this one
        with suppress(DecodeError):  # the classifier was closed, and its engine with it
            core.run(undo)
        raise


def _added(core: Core, compiled: PromptSet, held: Sequence[Prefix]) -> PromptHandle:
    """The handle of a set whose prefixes the engine holds; these are released where this fails. For the executor
    thread.
    """
    try:
        handle = PromptHandle(core, compiled, held)
        core.add(handle)
    except BaseException:
        core.engine.release(held)
        raise
    return handle


def _has_grown(core: Core, tokens: Tokens, begun: list[Prefix], n_before: int) -> bool:
    """Cache one more piece of a prefix, unless it is the last one; returns whether it did.

    begun: the pinned beginnings of prefixes; first n_before of other ones, then at most one of this prefix, which the
    longer beginning replaces. Returns False also if it does not fit.
    """
    engine = core.engine
    n_cached = engine.cache.match(tokens)[1]
    if len(tokens) - n_cached <= PIECE:
        return False
    try:
        longer = engine.hold([tokens[: n_cached + PIECE]])
    except PlanError:
        return False
    engine.forget(begun[n_before:])
    begun[n_before:] = longer
    return True
