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
from ..report.machine import available_bytes, gpu_free_bytes, rss_bytes
from .workloads import QuerySet, mixed_queries

_GPU_RESERVE_BYTES = 1 << 30
_MARGIN = 1.2  # of memory, for what a second classifier needs beyond the first


@dataclass(slots=True, kw_only=True)
class Subject:
    """A classifier under measurement, and what its start and single requests took."""

    name: str
    classifier: Classifier
    sets: tuple[QuerySet, ...]
    first_request_ms: float
    """of the first request after the start, the first batch of the first queries"""
    memory: dict[str, int | None]
    after_idle_ms: list[float] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether its decodes compute logits."""
        return any(prompt.scoring in EXACT_SCORINGS for prompt in self.classifier.parts.config.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The queries of a benchmark: from a file, or to be made with so many tokens."""

    given: QuerySet | None
    lengths: Sequence[range]
    first_batch: int
    largest_batch: int


def names_of(configs: Sequence[Config]) -> list[str]:
    """A name for each configuration: its file's, with a number where that is not the first of the name."""
    names: list[str] = []
    for config in configs:
        stem = config.path.stem if config.path else "config"
        n = sum(name == stem or name.startswith(f"{stem} (") for name in names)
        names.append(f"{stem} ({n + 1})" if n else stem)
    return names


@contextmanager
def started(
    name: str,
    config: Config,
    asked: Asked,
    *,
    offline: bool,
    on_step: Callable[[str, str, float], None] | None,
    on_load: Callable[[float], None] | None,
) -> Iterator[Subject]:
    """A classifier, its queries checked, after its first request; closed in the end. Raises what Classifier raises."""
    free_before, rss_before = gpu_free_bytes(), rss_bytes()
    with Classifier.from_config(config, offline=offline, on_step=on_step, on_load=on_load) as classifier:
        sets = (asked.given,) if asked.given else tuple(
            mixed_queries(classifier.parts.engine.model, lengths) for lengths in asked.lengths
        )  # fmt: skip
        for queries in sets:
            _check(classifier, queries, asked.largest_batch)
        first_request_ms = request_ms(classifier, sets[0].queries[: asked.first_batch])
        memory = {
            "rss_before_bytes": rss_before,
            "rss_after_bytes": rss_bytes(),
            "vram_free_before_bytes": free_before,
            "vram_free_after_bytes": gpu_free_bytes(),
        }
        yield Subject(name=name, classifier=classifier, sets=sets, first_request_ms=first_request_ms, memory=memory)


def request_ms(classifier: Classifier, queries: Sequence[str]) -> float:
    """How long one request takes."""
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


def groups(
    configs: Sequence[Config], open_one: Callable[[str, Config], AbstractContextManager[Subject]]
) -> Generator[list[Subject]]:
    """The classifiers of all configurations at once where memory allows it, else one by one.

    Close the generator, so that an error closes what is open.
    """
    names = names_of(configs)
    rest = list(zip(names, configs, strict=True))[1:]
    with ExitStack() as stack:
        group = [stack.enter_context(open_one(names[0], configs[0]))]
        if fits(group[0], len(rest)):
            group += [stack.enter_context(open_one(name, config)) for name, config in rest]
            rest = []
        yield group
    for name, config in rest:
        with open_one(name, config) as subject:
            yield [subject]


def fits(first: Subject, n_more: int) -> bool:
    """Whether the memory holds n_more classifiers like the first beside it."""
    before, after = first.memory["vram_free_before_bytes"], first.memory["vram_free_after_bytes"]
    if first.classifier.model.n_gpu_layers and before is not None and after is not None:
        return after - _GPU_RESERVE_BYTES >= n_more * (before - after) * _MARGIN
    available = available_bytes()
    return available is None or available >= n_more * first.classifier.model.size_bytes * _MARGIN
