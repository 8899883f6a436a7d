"""A comparison from its configuration to its record: reference, start, answers, then rounds of alternating requests."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from ..classifier import Classifier
from ..config.schema import Config
from ..engine.capacity import n_threads
from ..errors import ConfigError, PlanError
from ..evaluation.passes import pass_config
from ..native.kernel_steps import switched, variants
from ..report.environment import environment, plain_config
from ..report.progress import OnProgress
from .reader import LabelReader
from .statistics import Reference, agreement, latency, not_comparable
from .way import AbsentError, Answer, PeerError, Task, TaskPrompt, Way, installed_versions
from .ways import QCLS, WAYS, Peers, check_peers, check_ways

OnStep = Callable[[str, str, float], None]

QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "light pink cashmere sweater for date night",
    "wool coat",
    "when does the shop open",
)
"""Queries for a comparison that is given none."""

_PACKAGES = ("llama-cpp-python", "cappr", "torch", "transformers")


class PeerKernels(StrEnum):
    """Which CUDA matrix kernels the other ways of this tree's llama.cpp run."""

    stock = "stock"
    ours = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is to be compared."""

    config: Config
    queries: tuple[str, ...] = QUERIES
    ways: tuple[str, ...] = ()
    """names; ours is always among them. Empty: all"""
    n_rounds: int = 10
    """a round is one request of every query by every way"""
    n_warm: int = 2
    """rounds that are not timed"""
    seed: int = 0
    """of the order in which the ways take turns"""
    peers: Peers = field(default_factory=Peers)
    peer_kernels: PeerKernels = PeerKernels.stock
    offline: bool = False


def compare(
    wanted: Comparison,
    *,
    on_step: OnStep | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> dict[str, Any]:
    """The record of a comparison, as `qcls-gguf compare` prints it as JSON.

    Raises ConfigError, before anything is computed, for options and queries that cannot be used; and what Classifier
    raises. A peer that cannot be had, or that fails, is listed in the record.
    """
    check_peers(wanted.peers)
    names = check_ways(wanted.ways) if wanted.ways else tuple(WAYS)
    if not wanted.queries:
        raise ConfigError("there is no query to compare with: give one")
    prompts, exact = _exact(wanted, on_step, on_load)
    with Classifier.from_config(wanted.config, offline=wanted.offline, on_load=on_load) as classifier:
        task = Task(
            classifier=classifier,
            prompts=prompts,
            queries=wanted.queries,
            model_path=Path(classifier.model.path),
            runtime=wanted.config.runtime,
            n_threads=n_threads(wanted.config.runtime),
            n_gpu_layers=classifier.model.n_gpu_layers,
            n_longest=_n_longest(classifier, prompts, wanted.queries),
        )
        with _Running(task, names, wanted) as running:
            running.start(on_step)
            answers = running.answers(on_progress)
            references = [
                dataclasses.replace(reference, label=ours.label or "")
                for reference, ours in zip(exact, answers[QCLS], strict=True)
            ]
            times = running.measure(on_progress)
            ways = [
                _entry(running.ways[name], found, times, answers[name], references) for name, found in times.items()
            ]
            return {
                "environment": {
                    **environment(wanted.config, classifier.model).to_dict(),
                    "packages": installed_versions(_PACKAGES),
                },
                "config": plain_config(wanted.config),
                "model": dataclasses.asdict(classifier.model),
                "n_prompts": len(prompts),
                "n_queries": len(wanted.queries),
                "queries": list(wanted.queries),
                "rounds": wanted.n_rounds,
                "warm_up": wanted.n_warm,
                "seed": wanted.seed,
                "peer_kernels": str(wanted.peer_kernels),
                "ways": ways,
                "absent": running.absent,
            }


def _exact(
    wanted: Comparison, on_step: OnStep | None, on_load: Callable[[float], None] | None
) -> tuple[tuple[TaskPrompt, ...], list[Reference]]:
    """The prompts with their labels' paths, and our exact scores of every query, by a classifier of its own."""
    config = pass_config(wanted.config)
    with Classifier.from_config(
        config, offline=wanted.offline, on_step=on_step, on_load=on_load, audit=True
    ) as classifier:
        for query in wanted.queries:
            try:
                classifier.check(query)
            except PlanError as e:
                raise ConfigError(f"query {query!r}: {e}") from None
        prompts = tuple(
            TaskPrompt(
                template=given.expanded_template,
                label_prefix=given.label_prefix,
                compiled=compiled,
                reader=LabelReader(
                    compiled.labels,
                    [tuple(compiled.trie.edges[i].token for i in edges) for edges in compiled.trie.label_edges],
                ),
            )
            for given, compiled in zip(config.prompts, classifier.prompts, strict=True)
        )
        references = []
        for query in wanted.queries:
            for answer in classifier.classify(query).results:
                assert answer.audit is not None, "the classifier audits"
                joint = answer.audit
                tree = tuple(score.score for score in answer.scores)
                references.append(
                    Reference(label=answer.label, joint_label=joint.joint_label, joint=joint.joint, tree=tree)
                )
    return prompts, references


def _n_longest(classifier: Classifier, prompts: Sequence[TaskPrompt], queries: Sequence[str]) -> int:
    model = classifier.parts.engine.model
    return max(
        len(prompt.compiled.head)
        + len(model.tokenize(prompt.compiled.before + query + prompt.compiled.after, parse_special=False))
        + len(prompt.compiled.tail)
        + max(map(len, prompt.reader.paths))
        for prompt in prompts
        for query in queries
    )


class _Running:
    """The ways that could be started; one that fails is closed and listed as absent."""

    def __init__(self, task: Task, names: Sequence[str], wanted: Comparison) -> None:
        self._task = task
        self._wanted = wanted
        self._names = names
        self.ways: dict[str, Way] = {}
        self.absent: list[dict[str, Any]] = []

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        for way in self.ways.values():
            with suppress(Exception):  # what the ways of others raise on their way out changes no number
                way.close()

    def start(self, on_step: OnStep | None) -> None:
        for name in self._names:
            before = perf_counter_ns()
            self.ways[name] = WAYS[name](self._task, self._wanted.peers)
            is_stock = name != QCLS and self._wanted.peer_kernels is PeerKernels.stock
            with self._peer(name, started=False), switched(variants()[0]) if is_stock else nullcontext():
                self.ways[name].start()  # contexts and processes are made here
            if on_step:
                what = "started" if name in self.ways else "absent: " + self.absent[-1]["reason"]
                on_step(name, what, (perf_counter_ns() - before) / 1e6)

    @contextmanager
    def _peer(self, name: str, *, started: bool = True) -> Iterator[None]:
        """Take a way that fails out of the comparison; ours must not fail."""
        try:
            yield
        except Exception as e:  # a peer is others' code, which may raise anything
            if name == QCLS:
                raise
            with suppress(Exception):
                self.ways.pop(name).close()
            reason = str(e) if isinstance(e, AbsentError | PeerError) else f"{type(e).__name__}: {e}"
            asked = name in self._wanted.ways
            self.absent.append({"name": name, "reason": reason, "asked_for": asked, "started": started})

    def answers(self, on_progress: OnProgress) -> dict[str, list[Answer]]:
        """Each way's answers, in the order of queries and prompts."""
        found: dict[str, list[Answer]] = {}
        for done, (name, way) in enumerate(list(self.ways.items())):
            on_progress("answers", done, len(self._names))
            with self._peer(name):
                found[name] = [answer for query in self._task.queries for answer in way.audit(query)]
                _check_finite(found[name])
        on_progress("answers", len(self._names), len(self._names))
        return found

    def measure(self, on_progress: OnProgress) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Milliseconds of every timed request, (n_rounds, n_queries) for each way that lasted to the end."""
        order = random.Random(self._wanted.seed)
        queries, n_warm = self._task.queries, self._wanted.n_warm
        n_rounds = n_warm + self._wanted.n_rounds
        ms = {name: np.zeros((n_rounds, len(queries))) for name in self.ways}
        for turn in range(n_rounds):
            for index in order.sample(range(len(queries)), len(queries)):
                for name in order.sample(list(self.ways), len(self.ways)):
                    with self._peer(name):
                        before = perf_counter_ns()
                        self.ways[name].classify(queries[index])
                        ms[name][turn, index] = (perf_counter_ns() - before) / 1e6
            on_progress("rounds", turn + 1, n_rounds)
        return {name: ms[name][n_warm:] for name in self.ways}


def _check_finite(answers: Sequence[Answer]) -> None:
    values = [value for answer in answers for value in (*(answer.tree or ()), *answer.joint) if value is not None]
    if not all(map(math.isfinite, values)):
        raise PeerError("it gives log-probabilities that are not finite")


def _entry(
    way: Way,
    ms: np.ndarray[Any, np.dtype[np.float64]],
    times: dict[str, np.ndarray[Any, np.dtype[np.float64]]],
    answers: Sequence[Answer],
    references: Sequence[Reference],
) -> dict[str, Any]:
    return {
        "name": way.name,
        "about": way.about,
        **latency(ms, times[QCLS]),
        **(agreement(answers, references) if way.comparable else not_comparable()),
        "note": "; ".join(way.remarks()),
    }
