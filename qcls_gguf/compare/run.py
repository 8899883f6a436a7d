"""A comparison: our exact scores as the reference, the start of every method, its answers, then rounds of requests."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.raw import raw_config
from ..config.schema import Config
from ..config.scoring import TREE
from ..engine.cores import threads
from ..errors import ConfigError, PlanError
from ..native.kernel_steps import STOCK
from ..native.kernel_steps import environment as set_environment
from ..opening import ClassifierOpener, OnStep, without_kept_queries
from ..report.environment import environment
from ..report.progress import OnProgress
from .method import AbsentError, Answer, DiedError, Method, PeerError, Workload, WorkloadPrompt, installed_versions
from .methods import METHODS, ON_OUR_MODEL, QCLS, check_methods, check_peers
from .peers import PeerKernels, Peers
from .reader import LabelReader
from .records import AbsentMethod, ComparisonRecord, MethodRecord, PeerEnvironment
from .statistics import Reference, agreement, latency, not_comparable

FloatArray = npt.NDArray[np.float64]

QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "light pink cashmere sweater for date night",
    "wool coat",
    "when does the shop open",
)
"""The queries where none are given."""

_PACKAGES = ("llama-cpp-python", "cappr", "torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSettings:
    """What is compared, and how."""

    config: Config
    queries: tuple[str, ...] = QUERIES
    methods: tuple[str, ...] = ()
    """their names; ours is always among them. Empty: all"""
    n_rounds: int = 10
    """a round is one request of every query by every method"""
    n_warm_up: int = 2
    """rounds before them that are not timed"""
    seed: int = 0
    """of the order in which the methods take turns"""
    peers: Peers = field(default_factory=Peers)
    peer_kernels: PeerKernels = PeerKernels.stock


def compare(
    settings: ComparisonSettings,
    opener: ClassifierOpener,
    *,
    on_step: OnStep | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> ComparisonRecord:
    """Compare, and return the record that `qcls-gguf compare` prints as JSON.

    on_step: called after the start of each method. Raises ConfigError, before anything is computed, for options and
    queries that cannot be used, and what Classifier raises. A method that cannot run here, or that fails, is listed in
    the record.
    """
    check_peers(settings.peers)
    names = check_methods(settings.methods) if settings.methods else tuple(METHODS)
    if not settings.queries:
        raise ConfigError("there is no query to compare with: give one")
    # stock kernels would read copies of rearranged weights
    on_our_model = settings.peer_kernels is PeerKernels.stock and not ON_OUR_MODEL.isdisjoint(names)
    with opener.models.in_file_order() if on_our_model else nullcontext():
        return _compare(settings, names, opener, on_step, on_progress)


def _compare(
    settings: ComparisonSettings,
    names: Sequence[str],
    opener: ClassifierOpener,
    on_step: OnStep | None,
    on_progress: OnProgress,
) -> ComparisonRecord:
    settings = dataclasses.replace(settings, config=opener.rendered(settings.config))
    prompts, exact_references = _references(settings, opener)
    with opener.open(without_kept_queries(settings.config), quiet=True) as classifier:
        workload = Workload(
            classifier=classifier,
            prompts=prompts,
            queries=settings.queries,
            model_path=Path(classifier.model.path),
            runtime=settings.config.runtime,
            n_threads=threads(settings.config.runtime).n,
            n_gpu_layers=classifier.model.n_gpu_layers,
            n_longest=_n_longest(classifier, prompts, settings.queries),
        )
        with _RunningMethods(workload, names, settings) as running:
            running.start(on_step)
            answers = running.answers(on_progress)
            references = [
                dataclasses.replace(reference, label=answer.label or "")
                for reference, answer in zip(exact_references, answers[QCLS], strict=True)
            ]
            ms = running.measure(on_progress)
            methods = [_record(running.methods[name], ms[name], ms[QCLS], answers[name], references) for name in ms]
            packages = installed_versions(_PACKAGES)
            return ComparisonRecord(
                environment=PeerEnvironment(**dict(environment(settings.config, classifier.model)), packages=packages),
                config=settings.config,
                model=classifier.model,
                warnings=opener.warnings,
                n_prompts=len(prompts),
                n_queries=len(settings.queries),
                queries=settings.queries,
                rounds=settings.n_rounds,
                warm_up=settings.n_warm_up,
                seed=settings.seed,
                peer_kernels=str(settings.peer_kernels),
                methods=tuple(methods),
                absent=tuple(running.absent),
            )


def _references(
    settings: ComparisonSettings, opener: ClassifierOpener
) -> tuple[tuple[WorkloadPrompt, ...], list[Reference]]:
    """The prompts with their labels' paths, and our exact scores of every query, by a classifier that audits."""
    config = raw_config(settings.config, TREE)
    with opener.open(without_kept_queries(config), audit=True) as classifier:
        for query in settings.queries:
            try:
                classifier.check(query)
            except PlanError as e:
                raise ConfigError(f"query {query!r}: {e}") from None
        prompts = tuple(
            WorkloadPrompt(
                template=prompt.expanded_template,
                label_prefix=prompt.label_prefix,
                compiled=compiled,
                reader=LabelReader(
                    compiled.labels,
                    [tuple(compiled.trie.edges[i].token for i in edges) for edges in compiled.trie.label_edges],
                ),
            )
            for prompt, compiled in zip(config.prompts, classifier.prompts, strict=True)
        )
        references = []
        for query in settings.queries:
            for answer in classifier.classify(query).results:
                audit = answer.audit
                assert audit is not None, "the classifier audits"
                tree = tuple(score.score for score in answer.scores)
                references.append(
                    Reference(label=answer.label, joint_label=audit.joint_label, joint=audit.joint, tree=tree)
                )
    return prompts, references


def _n_longest(classifier: Classifier, prompts: Sequence[WorkloadPrompt], queries: Sequence[str]) -> int:
    model = classifier.engine.model
    return max(
        len(prompt.compiled.head)
        + len(model.tokenize(prompt.compiled.before + query + prompt.compiled.after, parse_special=False))
        + len(prompt.compiled.tail)
        + max(map(len, prompt.reader.paths))
        for prompt in prompts
        for query in queries
    )


class _RunningMethods:
    """The methods that could be started; one that fails is closed and listed as absent."""

    def __init__(self, workload: Workload, names: Sequence[str], settings: ComparisonSettings) -> None:
        self._workload = workload
        self._settings = settings
        self._names = names
        self.methods: dict[str, Method] = {}
        self.absent: list[AbsentMethod] = []

    def __enter__(self) -> _RunningMethods:
        return self

    def __exit__(self, *_: object) -> None:
        for method in self.methods.values():
            with suppress(Exception):  # an error while closing changes no figure
                method.close()

    def start(self, on_step: OnStep | None) -> None:
        for name in self._names:
            before = perf_counter_ns()
            self.methods[name] = METHODS[name](self._workload, self._settings.peers)
            is_stock = name != QCLS and self._settings.peer_kernels is PeerKernels.stock
            with self._listed_if_it_fails(name, started=False), set_environment(STOCK) if is_stock else nullcontext():
                self.methods[name].start()  # contexts and processes are made here
            if on_step:
                what = "started" if name in self.methods else _left_out(self.absent[-1])
                on_step(name, what, (perf_counter_ns() - before) / 1e6)

    @contextmanager
    def _listed_if_it_fails(self, name: str, *, started: bool = True) -> Iterator[None]:
        """Take a method that fails out of the comparison, and list it as absent; an error of ours ends the run."""
        try:
            yield
        except Exception as e:  # other projects' code may raise anything
            if name == QCLS:
                raise
            with suppress(Exception):
                self.methods.pop(name).close()
            reason = str(e) if isinstance(e, AbsentError | PeerError) else f"{type(e).__name__}: {e}"
            asked_for = name in self._settings.methods
            failed = started or isinstance(e, DiedError)
            self.absent.append(AbsentMethod(name=name, reason=reason, asked_for=asked_for, started=failed))

    def answers(self, on_progress: OnProgress) -> dict[str, list[Answer]]:
        """Each method's answers, in the order of queries and prompts."""
        answers: dict[str, list[Answer]] = {}
        for done, (name, method) in enumerate(list(self.methods.items())):
            on_progress("answers", done, len(self._names))
            with self._listed_if_it_fails(name):
                answers[name] = [answer for query in self._workload.queries for answer in method.audit(query)]
                _check_finite(answers[name])
                method.check_answers()
        on_progress("answers", len(self._names), len(self._names))
        return answers

    def measure(self, on_progress: OnProgress) -> dict[str, FloatArray]:
        """Milliseconds of every timed request, (n_rounds, n_queries) for each method that lasted to the end."""
        order = random.Random(self._settings.seed)
        queries, n_warm_up = self._workload.queries, self._settings.n_warm_up
        n_rounds = n_warm_up + self._settings.n_rounds
        ms = {name: np.zeros((n_rounds, len(queries))) for name in self.methods}
        for turn in range(n_rounds):
            for index in order.sample(range(len(queries)), len(queries)):
                for name in order.sample(list(self.methods), len(self.methods)):
                    with self._listed_if_it_fails(name):
                        ms[name][turn, index] = self.methods[name].timed(queries[index])
            on_progress("rounds", turn + 1, n_rounds)
        return {name: ms[name][n_warm_up:] for name in self.methods}


def _left_out(method: AbsentMethod) -> str:
    return f"{'failed' if method.started else 'absent'}: {method.reason}"


def _check_finite(answers: Sequence[Answer]) -> None:
    values = [value for answer in answers for value in (*(answer.tree or ()), *answer.joint) if value is not None]
    if not all(map(math.isfinite, values)):
        raise PeerError("it gives log-probabilities that are not finite")


def _record(
    method: Method, ms: FloatArray, qcls_ms: FloatArray, answers: Sequence[Answer], references: Sequence[Reference]
) -> MethodRecord:
    agreed = agreement(answers, references) if method.comparable else not_comparable()
    return MethodRecord(
        name=method.name,
        about=method.about,
        **dict(latency(ms, qcls_ms)),
        **dict(agreed),
        note="; ".join(method.remarks()),
    )
