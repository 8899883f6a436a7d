"""The classifiers that a benchmark measures: started, asked once, and as many at a time as the memory holds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

from ..classifier import Classifier
from ..config.schema import Config
from ..config.scoring import EXACT_SCORINGS
from ..errors import ConfigError, PlanError
from ..model.placement import room_bytes, used_gpus
from ..opening import ClassifierOpener, without_kept_queries
from ..prompts.compiled import Tokenizer
from ..report.environment import gpu_free_bytes, rss_bytes
from ..system.control_groups import available_bytes
from .records import Memory
from .workloads import QuerySet, mixed_queries

_MARGIN = 1.2  # of memory, for what a second classifier needs beyond the first


@dataclass(slots=True, kw_only=True)
class MeasuredClassifier:
    """A classifier under measurement, and what its start and single requests took."""

    name: str
    classifier: Classifier
    query_sets: tuple[QuerySet, ...]
    first_request_ms: float
    """of the first request after the start: the first batch of the first queries"""
    memory: Memory
    after_idle_ms: list[float] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether its decodes compute logits."""
        return any(prompt.scoring in EXACT_SCORINGS for prompt in self.classifier.config.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySource:
    """Where the queries of a benchmark come from, and how many of them a request has."""

    queries: QuerySet | None
    """those of a file; None: queries are made"""
    lengths: Sequence[range]
    """tokens of the queries that are made, a set of queries for each range"""
    first_batch: int
    """queries of the first request"""
    largest_batch: int

    def sets(self, tokenizer: Tokenizer) -> tuple[QuerySet, ...]:
        """The sets of queries. Raises ConfigError where queries of a length cannot be made."""
        if self.queries:
            return (self.queries,)
        return tuple(mixed_queries(tokenizer, lengths) for lengths in self.lengths)


def config_names(configs: Sequence[Config]) -> list[str]:
    """A name for each configuration: its file's, with a number where that is not the first of the name."""
    names: list[str] = []
    for config in configs:
        stem = config.path.stem if config.path else "config"
        n = sum(name == stem or name.startswith(f"{stem} (") for name in names)
        names.append(f"{stem} ({n + 1})" if n else stem)
    return names


@contextmanager
def started_classifier(
    name: str, config: Config, source: QuerySource, opener: ClassifierOpener
) -> Iterator[MeasuredClassifier]:
    """A classifier after its first request, its queries checked; closed in the end. Raises what Classifier raises."""
    free_before, rss_before = gpu_free_bytes(), rss_bytes()
    with opener.open(without_kept_queries(config)) as classifier:
        query_sets = source.sets(classifier.engine.model)
        for queries in query_sets:
            _check(classifier, queries, source.largest_batch)
        first_request_ms = request_ms(classifier, query_sets[0].queries[: source.first_batch])
        memory = Memory(
            rss_before_bytes=rss_before,
            rss_after_bytes=rss_bytes(),
            vram_free_before_bytes=free_before,
            vram_free_after_bytes=gpu_free_bytes(),
        )
        yield MeasuredClassifier(
            name=name, classifier=classifier, query_sets=query_sets, first_request_ms=first_request_ms, memory=memory
        )


def request_ms(classifier: Classifier, queries: Sequence[str]) -> float:
    """Milliseconds of one request."""
    begun = perf_counter_ns()
    classifier.classify_batch(queries)
    return (perf_counter_ns() - begun) / 1e6


def _check(classifier: Classifier, queries: QuerySet, largest_batch: int) -> None:
    if (n_different := len(set(queries.queries))) < largest_batch:
        raise ConfigError(
            f"{queries.name}: {n_different} different queries are too few for `batch` {largest_batch}, whose "
            "queries must differ: give more of them, or a smaller batch"
        )
    for number, query in enumerate(queries.queries, 1):
        try:
            classifier.check(query)
        except PlanError as e:
            raise ConfigError(f"{queries.name}: query {number}: {e}") from None


def classifier_groups(
    configs: Sequence[Config], open_one: Callable[[str, Config], AbstractContextManager[MeasuredClassifier]]
) -> Generator[list[MeasuredClassifier]]:
    """The classifiers of all configurations in one group where memory allows it, else each in a group of its own.

    The classifiers of a group are open until the next group is asked for. Close the generator, so that an error closes
    them too.
    """
    names = config_names(configs)
    rest = list(zip(names, configs, strict=True))[1:]
    with ExitStack() as stack:
        group = [stack.enter_context(open_one(names[0], configs[0]))]
        if fits_in_memory(group[0], len(rest)):
            group += [stack.enter_context(open_one(name, config)) for name, config in rest]
            rest = []
        yield group
    for name, config in rest:
        with open_one(name, config) as measured:
            yield [measured]


def fits_in_memory(first: MeasuredClassifier, n_more: int) -> bool:
    """Whether the memory holds n_more classifiers like the first beside it."""
    before, after = first.memory.vram_free_before_bytes, first.memory.vram_free_after_bytes
    if first.classifier.model.n_gpu_layers and before is not None and after is not None:
        left = room_bytes(used_gpus(first.classifier.engine.model.placement))
        return left >= n_more * (before - after) * _MARGIN
    return available_bytes() >= n_more * first.classifier.model.size_bytes * _MARGIN
