"""A comparison: our exact scores as the reference, every method opened and asked, then rounds of timed requests."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from ..config.schema import Config, raw_config
from ..config.scoring import TREE
from ..engine.cores import threads
from ..errors import ConfigError, PlanError
from ..native.kernel_steps import STOCK
from ..native.kernel_steps import environment as set_environment
from ..opening import ClassifierOpener, OnStep, without_kept_queries
from ..report.environment import environment
from ..report.progress import OnProgress
from ..statistics import FloatArray, mean, quantiles
from . import PeerKernels, Peers
from .child_process import InChild
from .http_peer import is_url
from .in_process import Batched, Naive, Prefix, Qcls
from .llama_python import LlamaPython
from .llama_server import LlamaServer
from .method import AbsentError, Answer, DiedError, LabelReader, Method, PeerError, Workload, WorkloadPrompt
from .ollama import Ollama
from .records import AbsentMethod, ComparisonRecord, MethodRecord, PeerEnvironment, WinnerAgreement
from .torch_peer import Torch

QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "light pink cashmere sweater for date night",
    "wool coat",
    "when does the shop open",
)
"""The queries where none are given."""
QCLS = "qcls"
_PACKAGES = ("llama-cpp-python", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a method is opened, and what it does for a request."""

    open: Callable[[Workload, Peers], Method]
    about: str
    on_our_model: bool = False
    """whether it decodes on the model that is loaded for ours, by other kernels"""


_STOCK = "stock llama.cpp, all logits: one decode"
METHODS = {
    QCLS: Kind(
        Qcls, "one decode for all prompts, hidden states dotted with label rows; exact scorings add the LM head"
    ),
    "naive": Kind(Naive, f"{_STOCK} a prompt, nothing cached", on_our_model=True),
    "prefix": Kind(Prefix, f"{_STOCK} a prompt, every prompt's prefix cached", on_our_model=True),
    "batched": Kind(Batched, f"{_STOCK} for all prompts, prefixes cached, prompts share no tokens", on_our_model=True),
    "llama-cpp-python": Kind(
        partial(InChild, LlamaPython),
        "Llama.generate for each prompt in turn, its own prefix match, logits of the last position",
    ),
    "torch": Kind(
        partial(InChild, Torch, needs_tokens=True),
        "PyTorch SDPA, prefixes in an expanded KV cache, one forward for all prompts, hidden states · label rows",
    ),
    "llama-server": Kind(
        LlamaServer, "HTTP, a request a prompt at once, slots pinned, prompts cached, one token with log-probabilities"
    ),
    "ollama": Kind(Ollama, "HTTP, a raw request a prompt at once, one token with the 20 likeliest log-probabilities"),
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What our classifier says of one prompt of one query."""

    joint_label: str
    joint: tuple[float, ...]
    tree: tuple[float, ...]
    """log-probabilities among the labels"""


def compare(
    settings: ComparisonSettings,
    opener: ClassifierOpener,
    *,
    on_step: OnStep | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> ComparisonRecord:
    """Compare, and return the record that `qcls-gguf compare` prints as JSON.

    on_step: called after the opening of each method. Raises ConfigError, before anything is computed, for options and
    queries that cannot be used, and what Classifier raises. A method that cannot run here, or that fails, is listed in
    the record.
    """
    names = _checked_names(settings)
    is_stock = settings.peer_kernels is PeerKernels.stock
    # stock kernels would read copies of rearranged weights
    in_file_order = is_stock and any(METHODS[name].on_our_model for name in names)
    with opener.models.in_file_order() if in_file_order else nullcontext():
        settings = dataclasses.replace(settings, config=opener.rendered(settings.config))
        prompts, references = _references(settings, opener)
        with opener.open(without_kept_queries(settings.config), quiet=True) as classifier:
            workload = Workload(
                classifier=classifier,
                prompts=prompts,
                queries=settings.queries,
                model_path=Path(classifier.model.path),
                model_sha256=classifier.model.sha256,
                runtime=settings.config.runtime,
                n_threads=threads(settings.config.runtime).n,
                n_gpu_layers=classifier.model.n_gpu_layers,
                n_longest=0,
            )
            workload = dataclasses.replace(workload, n_longest=_n_longest(workload))
            with closing(_OpenMethods(settings)) as found:
                found.open(names, workload, on_step)
                answers = found.answers(on_progress)
                ms = found.measure(on_progress)
                records = [
                    method_record(
                        name, found.methods[name], ms[name], ms[QCLS], answers[name], answers[QCLS], references
                    )
                    for name in ms
                ]
            where = environment(settings.config, classifier.model)
            return ComparisonRecord(
                environment=PeerEnvironment(**dict(where), packages=dict(_installed_packages())),
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
                methods=tuple(records),
                absent=tuple(found.absent),
            )


def _checked_names(settings: ComparisonSettings) -> list[str]:
    """The methods to compare, in the order of METHODS. Raises ConfigError for settings that lead nowhere."""
    peers = settings.peers
    if peers.llama_server is not None and peers.spawn_llama_server is not None:
        raise ConfigError("`llama_server` and `spawn_llama_server` are both given: keep one of them")
    if peers.hf_folder is not None and peers.synthetic:
        raise ConfigError("`hf_folder` and `synthetic` are both given: keep one of them")
    if (peers.ollama is None) != (peers.ollama_model is None):
        raise ConfigError("`ollama` and `ollama_model` belong together: give both or neither")
    for name, url in (("llama_server", peers.llama_server), ("ollama", peers.ollama)):
        if url is not None and not is_url(url):
            raise ConfigError(f"`{name}`: {url!r} is not a server's address: give one such as http://127.0.0.1:8080")
    if peers.hf_folder is not None and not (peers.hf_folder / "config.json").is_file():
        raise ConfigError(f"`hf_folder` {peers.hf_folder}: has no config.json: give a model's folder of Hugging Face")
    for name in settings.methods:
        if name == "cappr":
            raise ConfigError("`method` cappr: was removed: its probabilities are those of our scoring `mean`")
        if name not in METHODS:
            raise ConfigError(f"`method` {name}: is not one of {', '.join(METHODS)}")
    if not settings.queries:
        raise ConfigError("there is no query to compare with: give one")
    return [name for name in METHODS if name == QCLS or name in settings.methods or not settings.methods]


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
        prompts = []
        for prompt, compiled in zip(config.prompts, classifier.prompts, strict=True):
            paths = [tuple(compiled.trie.edges[i].token for i in edges) for edges in compiled.trie.label_edges]
            reader = LabelReader(compiled.labels, paths)
            prompts.append(WorkloadPrompt(template=prompt.expanded_template, compiled=compiled, reader=reader))
        references = []
        for query in settings.queries:
            for answer in classifier.classify(query).results:
                audit, tree = answer.audit, tuple(score.score for score in answer.scores)
                assert audit is not None, "the classifier audits"
                references.append(Reference(joint_label=audit.joint_label, joint=audit.joint, tree=tree))
    return tuple(prompts), references


def _n_longest(workload: Workload) -> int:
    return max(
        n_cached + len(tokens) + max(map(len, prompt.reader.paths))
        for prompt in workload.prompts
        for n_cached, tokens in (workload.tokens(prompt.compiled, query) for query in workload.queries)
    )


def _installed_packages() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


class _OpenMethods:
    """The methods that could be opened; one that fails is closed and listed as absent."""

    def __init__(self, settings: ComparisonSettings) -> None:
        self._settings = settings
        self.methods: dict[str, Method] = {}
        self.absent: list[AbsentMethod] = []

    def open(self, names: Sequence[str], workload: Workload, on_step: OnStep | None) -> None:
        """Open each; contexts and processes are made here."""
        self._names = names
        for name in names:
            before = perf_counter_ns()
            is_stock = name != QCLS and self._settings.peer_kernels is PeerKernels.stock
            with self._listed_if_it_fails(name, started=False), set_environment(STOCK if is_stock else {}):
                self.methods[name] = METHODS[name].open(workload, self._settings.peers)
            if on_step:
                absent = None if name in self.methods else self.absent[-1]
                what = f"{absent.state}: {absent.reason}" if absent else "started"
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
                asked = [method.ask(query, exact=True) for query in self._settings.queries]
                answers[name] = [answer for of_query in asked for answer in of_query]
                values = [p for answer in answers[name] for p in (*(answer.tree or ()), *answer.joint) if p is not None]
                if not all(map(math.isfinite, values)):
                    raise PeerError("it gives log-probabilities that are not finite")
                method.check_answers()
        on_progress("answers", len(self._names), len(self._names))
        return answers

    def measure(self, on_progress: OnProgress) -> dict[str, FloatArray]:
        """Milliseconds of every timed request, (n_rounds, n_queries) for each method that lasted to the end."""
        order = random.Random(self._settings.seed)
        queries, n_warm_up = self._settings.queries, self._settings.n_warm_up
        n_rounds = n_warm_up + self._settings.n_rounds
        ms = {name: np.zeros((n_rounds, len(queries))) for name in self.methods}
        for turn in range(n_rounds):
            for index in order.sample(range(len(queries)), len(queries)):
                for name in order.sample(list(self.methods), len(self.methods)):
                    with self._listed_if_it_fails(name):
                        ms[name][turn, index] = self.methods[name].timed(queries[index])
            on_progress("rounds", turn + 1, n_rounds)
        return {name: ms[name][n_warm_up:] for name in self.methods}

    def close(self) -> None:
        """Close every method."""
        for method in self.methods.values():
            with suppress(Exception):  # an error while closing changes no figure
                method.close()


def method_record(
    name: str,
    method: Method,
    ms: FloatArray,
    our_ms: FloatArray,
    answers: Sequence[Answer],
    our_answers: Sequence[Answer],
    references: Sequence[Reference],
) -> MethodRecord:
    """A method's times and answers beside ours.

    ms, our_ms: (n_rounds, n_queries) milliseconds. The ratio and its range are quantiles of one thing: of each round's
    ratio of medians. Answers and references are in the order of queries and prompts.
    """
    ratios = np.median(ms, axis=1) / np.median(our_ms, axis=1)
    low, ratio, high = quantiles(ratios, 0.1, 0.5, 0.9)
    p50, p90 = quantiles(ms, 0.5, 0.9)
    labels = [
        (answer.label, ours.label, reference.joint_label)
        for answer, ours, reference in zip(answers, our_answers, references, strict=True)
        if answer.label is not None
    ]
    joint, tree = (
        [
            abs(theirs - ours)
            for answer, reference in zip(answers, references, strict=True)
            for theirs, ours in zip(getattr(answer, part) or (), getattr(reference, part), strict=False)
            if theirs is not None and method.comparable
        ]
        for part in ("joint", "tree")
    )
    agreement = WinnerAgreement(
        scoring=mean([label == ours for label, ours, _ in labels]),
        joint=mean([label == joint_label for label, _, joint_label in labels]),
        n_answers=len(labels),
        n_without_answer=len(answers) - len(labels),
    )
    return MethodRecord(
        name=name,
        about=METHODS[name].about,
        p50_ms=p50,
        p90_ms=p90,
        ratio_to_qcls=ratio,
        ratio_range=(low, high),
        agreement=agreement if method.comparable else None,
        largest_log_probability_difference=max(joint, default=None),
        n_log_probabilities=len(joint),
        largest_tree_difference=max(tree, default=None),
        n_tree_log_probabilities=len(tree),
        note="; ".join(method.remarks()),
    )
