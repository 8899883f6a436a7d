"""Distinct queries to answers, several in a decode: the next decodes are planned while one computes.

How many queries a decode should have is measured on a sample of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from ..classifier import Asking, Classifier, handle_of
from ..config.schema import Config
from ..core.core import Tokenized
from ..core.queue import Job
from ..engine.capacity import N_UNTIL_CAPTURED, pays_to_repeat_shapes
from ..errors import PlanError, QclsError, ScoreError
from ..model.header import read_header
from ..opening import ClassifierOpener
from ..plan.planner import RequestPlan
from ..prompts.chat import render_prompts
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.result import Result
from .records import BatchSpeed

MOST = 32
"""queries of a decode: on a GPU a forward over so many is bound by arithmetic, whatever is added"""
_N_AHEAD = 2
"""decodes that are planned while one computes"""
_STATES_BYTES = 2 << 30
"""of the states of a decode's sequences, where nobody asked for so many queries in one"""
_N_MEASURED = 64
_MOST_S = 6.0
_GAIN = 0.97
"""of the time of fewer queries a decode: a smaller gain is within the noise of such a short measurement"""


def with_room(config: Config, n: int) -> Config:
    """The configuration with room for n queries in a decode; none is kept, as hardly one begins like the last."""
    runtime = replace(config.runtime, max_batch=max(config.runtime.max_batch, n), kept_queries=0)
    return replace(config, runtime=runtime)


def most_queries(config: Config, opener: ClassifierOpener) -> int:
    """Queries of a decode at most. Its vocabulary is opened here only if its states may be large."""
    if not read_header(opener.models.path_of(config)).may_have_states:
        return MOST

    with opener.vocabulary_of(config) as vocabulary:
        texts = render_prompts(config.prompts, vocabulary, config.model).prompts
        return most_with_states(compile_prompts(texts, vocabulary), vocabulary.facts.state_bytes)


def most_with_states(prompts: PromptSet, state_bytes: int) -> int:
    """Queries of a decode at most, where recurrent layers keep state_bytes of each of its sequences."""
    if not state_bytes:
        return MOST
    n_leaves = sum(prompt.trie.n_leaves for prompt in prompts.prompts)
    return max(1, min(MOST, _STATES_BYTES // (n_leaves * state_bytes)))


@dataclass(frozen=True, slots=True)
class Decode:
    """Queries of one decode with its plan, which is None for a cascade: it asks its stages as it goes."""

    queries: Sequence[Tokenized]
    plan: RequestPlan | None

    @property
    def n_decodes(self) -> int:
        """Decodes that the queries take, as far as that is known."""
        return 1 if self.plan is None else len(self.plan.decodes)

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and tokens, which decide whether a device has seen such a decode."""
        return len(self.queries), 0 if self.plan is None else self.plan.n_tokens


class Decoder:
    """The steps of answering queries, for one thread that plans decodes while another one computes them.

    The only place that tokenises, plans and computes; whoever else asks the prompts meanwhile waits for its turn.
    """

    def __init__(self, prompts: Asking) -> None:
        self._prompts = prompts
        self._handle = handle_of(prompts)
        model = self._handle.core.engine.model
        self._has_states = model.has_states
        self.pays_to_pad = pays_to_repeat_shapes(self._handle.config.runtime, model.n_gpu_layers)
        """whether decodes that are filled up to one of a few token counts, so that shapes repeat, save time"""

    def classify(self, query: str) -> Result:
        """Answer a query by itself. Raises as `Classifier.classify` does."""
        return self._prompts.classify(query)

    def tokenize(self, query: str) -> Tokenized:
        """Raises PlanError for a query that is too long."""
        return self._handle.tokenize(query)

    def plan(self, queries: Sequence[Tokenized], *, padded: bool) -> Decode:
        """Plan the decode of some queries, which may turn out to take several."""
        is_cascade = isinstance(self._prompts, Classifier) and self._prompts.is_cascade
        return Decode(queries, None if is_cascade else self._handle.plan(queries, padded=padded))

    def plans(self, queries: Sequence[Tokenized], *, padded: bool) -> Iterator[Decode]:
        """Plan queries in one decode, or, if they do not fit, in decodes of half as many, or of a quarter, ….

        Halves rather than as many queries as fit: their number is part of a decode's shape.
        """
        decode = self.plan(queries, padded=padded)
        if len(queries) > 1 and decode.n_decodes > 1:
            middle = len(queries) // 2
            yield from self.plans(queries[:middle], padded=padded)
            yield from self.plans(queries[middle:], padded=padded)
        else:
            yield decode

    def submit(self, decode: Decode) -> Job[list[Result]]:
        """Compute a decode when those before it are done; a cascade does so at once."""
        if decode.plan is not None:
            return self._handle.submit(decode.queries, decode.plan)
        job = Job[list[Result]]()
        try:
            job.finish(self._prompts.classify_batch([each.query for each in decode.queries]))
        except (PlanError, ScoreError) as e:
            job.finish(None, e)
        return job

    def ordered(self, queries: Sequence[str], size: int) -> list[int]:
        """The order in which queries go into decodes of a size.

        Queries that begin alike stand together: a decode computes what they have in common once. One by one, those of
        one length do, whose decodes have one shape; and so they do always with a model with states, which computes
        sequences of one length together.
        """
        by_length = size == 1 or self._has_states
        return sorted(range(len(queries)), key=lambda at: (len(queries[at]), "") if by_length else (0, queries[at]))


class BatchLabeller:
    """Labels many queries with prompts that nobody else asks meanwhile."""

    def __init__(self, prompts: Asking, size: int, *, padded: bool | None = None) -> None:
        """size: queries of a decode. padded: whether decodes are filled up, so that shapes repeat; None: if that pays,
        but not one by one, which is to compute what `classify` does.
        """
        self._decoder = Decoder(prompts)
        self._size = size
        self._padded = size > 1 and self._decoder.pays_to_pad if padded is None else padded

    def label(self, queries: Sequence[str]) -> Iterator[list[tuple[int, Result | str]]]:
        """The results with the queries' places, or the reasons why queries have none; a decode's at a time, in no
        particular order.
        """
        running: deque[tuple[Sequence[int], Decode, Job[list[Result]]]] = deque()
        refused: list[tuple[int, Result | str]] = []
        try:
            for places, decode in self._decodes(queries, refused):
                running.append((places, decode, self._decoder.submit(decode)))
                if len(running) > _N_AHEAD:
                    yield self._results(*running.popleft())
            while running:
                yield self._results(*running.popleft())
        finally:
            for _, _, job in running:
                job.is_given_up = True
        if refused:
            yield refused

    def _decodes(
        self, queries: Sequence[str], refused: list[tuple[int, Result | str]]
    ) -> Iterator[tuple[Sequence[int], Decode]]:
        places: list[int] = []
        batch: list[Tokenized] = []
        order = self._decoder.ordered(queries, self._size)
        for place in order:
            try:
                batch.append(self._decoder.tokenize(queries[place]))
                places.append(place)
            except PlanError as e:
                refused.append((place, str(e)))
            if len(batch) == self._size or (batch and place == order[-1]):
                for decode in self._decoder.plans(batch, padded=self._padded):
                    n = len(decode.queries)
                    yield places[:n], decode
                    places = places[n:]
                batch = []

    def _results(
        self, places: Sequence[int], decode: Decode, computing: Job[list[Result]]
    ) -> list[tuple[int, Result | str]]:
        try:
            return list(zip(places, computing.result(), strict=True))
        except (PlanError, ScoreError):  # it does not say of which query
            return [(place, self._one(each.query)) for place, each in zip(places, decode.queries, strict=True)]

    def _one(self, query: str) -> Result | str:
        try:
            return self._decoder.classify(query)
        except (PlanError, ScoreError) as e:
            return str(e)


def measure_batches(prompts: Asking, queries: Sequence[str], most: int = MOST) -> list[BatchSpeed]:
    """How fast some of the queries are labelled one by one and 2, 4, 8, … in a decode; the sizes run in turns.

    All sizes, one by one too, take the queries in the order of a run with several in a decode. Batches that a decode
    does not hold are halved, as in a run; sizes of which these are most are left out. Stops after some seconds, with
    the sizes that were measured. Where decodes are padded, those of each shape are timed once the shape is known to the
    device, as it is to most decodes of a run.
    """
    decoder = Decoder(prompts)
    usable = _usable(decoder, queries)
    sizes = [1]
    while sizes[-1] * 2 <= min(most, len(usable)):
        sizes.append(sizes[-1] * 2)
    blocks = [usable[start : start + sizes[-1]] for start in range(0, len(usable), sizes[-1])]
    n_queries: Counter[int] = Counter()
    n_tokens: Counter[int] = Counter()
    seconds: defaultdict[int, float] = defaultdict(float)
    known: set[tuple[int, int]] = set()
    began = perf_counter()
    for round_, block in enumerate([blocks[0], *blocks] if usable else []):  # the first one warms up
        for size in list(sizes):
            padded = decoder.pays_to_pad and size > 1
            batches = [block[start : start + size] for start in range(0, len(block) - size + 1, size)]
            if round_ == 0 and size > 1:
                n_whole = sum(decoder.plan(batch, padded=padded).n_decodes == 1 for batch in batches)
                if 2 * n_whole <= len(batches):
                    sizes.remove(size)
                    continue
            for decode in (each for batch in batches for each in decoder.plans(batch, padded=padded)):
                if decoder.pays_to_pad and decode.shape not in known:
                    known.add(decode.shape)
                    for _ in range(N_UNTIL_CAPTURED):
                        decoder.submit(decoder.plan(decode.queries, padded=padded)).result()
                start_s = perf_counter()
                results = decoder.submit(decode).result()
                if round_:
                    seconds[size] += perf_counter() - start_s
                    n_queries[size] += len(results)
                    n_tokens[size] += results[0].counts.n_tokens_new
        if round_ and perf_counter() - began > _MOST_S:
            break
    return [
        BatchSpeed(size=size, n_queries=n, n_tokens=n_tokens[size], queries_per_s=n / seconds[size])
        for size, n in sorted(n_queries.items())
    ]


def _usable(decoder: Decoder, queries: Sequence[str]) -> list[Tokenized]:
    """Some of the queries, in the order of a run with several in a decode."""
    usable: list[Tokenized] = []
    for query in queries:
        try:
            usable.append(decoder.tokenize(query))
        except QclsError:
            continue
        if len(usable) == _N_MEASURED:
            break
    return [usable[place] for place in decoder.ordered([each.query for each in usable], MOST)]


def best_size(speeds: Sequence[BatchSpeed]) -> int:
    """The largest size that pays, by the measured times."""
    best = None
    for each in speeds:
        if best is None or best.queries_per_s < each.queries_per_s * _GAIN:
            best = each
    return best.size if best else 1
