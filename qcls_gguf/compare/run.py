"""A comparison: every method opened and asked, then rounds of timed requests."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from unittest.mock import patch

import numpy as np

from ..config.schema import variant_of
from ..config.scoring import TREE
from ..config.words import instead_of
from ..engine.open import compile_config, open_model
from ..errors import ConfigError, PlanError
from ..model import OpenModels
from ..model.placement import gpus
from ..native.device import CPU_PRODUCTS, LANE_ORDER, STOCK
from ..opening import ClassifierOpener
from ..report.environment import environment
from ..statistics import FloatArray, mean, quantiles
from .method import ComparisonSettings, Method, PeerError, Workload, WorkloadPrompt, qcls, stock
from .records import AbsentMethod, ComparisonRecord, MethodRecord
from .servers import llama_server, ollama

QCLS = "qcls"

_STOCK = "stock llama.cpp, all logits: one decode"
METHODS: dict[str, tuple[Callable[[Workload], AbstractContextManager[Method]], str]] = {
    QCLS: (qcls, "one decode for all prompts, hidden states dotted with label rows; exact scorings add the LM head"),
    "naive": (stock, f"{_STOCK} a prompt, nothing cached"),
    "prefix": (partial(stock, cached=True), f"{_STOCK} a prompt, every prompt's prefix cached"),
    "batched": (
        partial(stock, cached=True, together=True),
        f"{_STOCK} for all prompts, prefixes cached, no tokens shared",
    ),
    "llama-server": (
        llama_server,
        "HTTP, a request a prompt at once, slots pinned, prompts cached, one token with log-probabilities",
    ),
    "ollama": (ollama, "HTTP, a raw request a prompt at once, one token with the 20 likeliest log-probabilities"),
}
"""How a method is opened, and what it does for a request."""


def compare(settings: ComparisonSettings, opener: ClassifierOpener) -> ComparisonRecord:
    """Compare, and return the record that `qcls-gguf compare` prints as JSON.

    Raises ConfigError, before anything is computed, for options and queries that cannot be used, and what Classifier
    raises. A method that cannot run here, or that fails, is listed in the record.
    """
    names = _checked_names(settings)
    with_stock = not {"naive", "prefix", "batched"}.isdisjoint(names)
    on_gpu = settings.config.runtime.n_gpu_layers != 0 and bool(gpus())
    with ExitStack() as stack:
        # a GPU need not hold the model twice: there ours reads the weights as stock kernels do
        comparable = {LANE_ORDER: "0", CPU_PRODUCTS: "0"} if with_stock and on_gpu else {}
        stack.enter_context(patch.dict("os.environ", comparable))
        classifier = stack.enter_context(opener.open(settings.config))
        for query in settings.queries:
            try:
                classifier.check(query)
            except PlanError as e:
                raise ConfigError(f"query {query!r}: {e}") from None
        stock_model = classifier.engine.model
        compiled = compile_config(variant_of(settings.config, scoring=TREE), stock_model, audit=True).prompts
        prompts = tuple(map(WorkloadPrompt, compiled.prompts))
        if with_stock and not on_gpu:
            with patch.dict("os.environ", STOCK):
                stock_model = open_model(settings.config, stack.enter_context(OpenModels(offline=True)))
        workload = Workload(settings=settings, ours=classifier, stock_model=stock_model, prompts=prompts)
        contest = _Contest(settings)
        for name in names:
            kernels = {} if name == QCLS else STOCK
            with contest.listed_if_it_fails(name, started=False), patch.dict("os.environ", kernels):
                contest.methods[name] = stack.enter_context(METHODS[name][0](workload))
        answers = contest.answers(opener)
        ms = contest.measure(opener)
        return ComparisonRecord(
            environment=environment(settings.config),
            config=classifier.config,
            model=classifier.model,
            warnings=opener.warnings,
            queries=settings.queries,
            rounds=settings.n_rounds,
            warm_up=settings.n_warm_up,
            methods=tuple(
                method_record(name, method.remarks(), ms[name], ms[QCLS], answers[name], answers[QCLS])
                for name, method in contest.methods.items()
            ),
            absent=tuple(contest.absent),
        )


def _checked_names(settings: ComparisonSettings) -> list[str]:
    """The methods to compare, in the order of METHODS. Raises ConfigError for settings that lead nowhere."""
    if (settings.ollama is None) != (settings.ollama_model is None):
        raise ConfigError("`ollama` and `ollama_model` belong together: give both or neither")
    for name in settings.methods:
        if name not in METHODS:
            instead = instead_of("compare", name)
            why = f"was removed: {instead}" if instead else f"is not one of {', '.join(METHODS)}"
            raise ConfigError(f"`method` {name}: {why}")
    if not settings.queries:
        raise ConfigError("there is no query to compare with: give one")
    return [name for name in METHODS if name == QCLS or name in settings.methods or not settings.methods]


@dataclass(slots=True)
class _Contest:
    """The methods that could be opened, all but ours with stock kernels; one that fails is listed as absent."""

    settings: ComparisonSettings
    methods: dict[str, Method] = field(default_factory=dict)
    absent: list[AbsentMethod] = field(default_factory=list)

    @contextmanager
    def listed_if_it_fails(self, name: str, *, started: bool = True) -> Iterator[None]:
        """Take a method that fails out of the comparison, and list it as absent; an error of ours ends the run."""
        try:
            yield
        except Exception as e:  # servers may answer anything
            if name == QCLS:
                raise
            self.methods.pop(name, None)
            reason = str(e) if isinstance(e, PeerError) else f"{type(e).__name__}: {e}"
            asked_for = name in self.settings.methods
            self.absent.append(AbsentMethod(name=name, reason=reason, asked_for=asked_for, started=started))

    def answers(self, opener: ClassifierOpener) -> dict[str, list[str | None]]:
        """The methods' labels, in the order of queries and prompts."""
        answers: dict[str, list[str | None]] = {}
        for name, method in opener.progress("answers", list(self.methods.items())):
            with self.listed_if_it_fails(name):
                answers[name] = [label for query in self.settings.queries for label in method.ask(query)]
        return answers

    def measure(self, opener: ClassifierOpener) -> dict[str, FloatArray]:
        """Milliseconds of every timed request, (n_rounds, n_queries), of the methods that lasted to the end."""
        order = random.Random(0)
        queries, n_warm_up = self.settings.queries, self.settings.n_warm_up
        n_rounds = n_warm_up + self.settings.n_rounds
        ms = {name: np.zeros((n_rounds, len(queries))) for name in self.methods}
        for turn in opener.progress("rounds", range(n_rounds)):
            for index in order.sample(range(len(queries)), len(queries)):
                for name in order.sample(list(self.methods), len(self.methods)):
                    with self.listed_if_it_fails(name):
                        before = perf_counter_ns()
                        self.methods[name].ask(queries[index])
                        ms[name][turn, index] = (perf_counter_ns() - before) / 1e6
        return {name: ms[name][n_warm_up:] for name in self.methods}


def method_record(
    name: str,
    remarks: Sequence[str],
    ms: FloatArray,
    our_ms: FloatArray,
    answers: Sequence[str | None],
    our_answers: Sequence[str | None],
) -> MethodRecord:
    """A method's times and answers beside ours.

    ms, our_ms: (n_rounds, n_queries) milliseconds. The ratio and its range are quantiles of one thing: of the rounds'
    ratios of medians. answers, our_answers: labels in the order of queries and prompts.
    """
    low, ratio, high = quantiles(np.median(ms, axis=1) / np.median(our_ms, axis=1), 0.1, 0.5, 0.9)
    p50, p90 = quantiles(ms, 0.5, 0.9)
    equal = [label == ours for label, ours in zip(answers, our_answers, strict=True) if label is not None]
    return MethodRecord(
        name=name,
        about=METHODS[name][1],
        p50_ms=p50,
        p90_ms=p90,
        ratio_to_qcls=ratio,
        ratio_range=(low, high),
        as_scoring=mean(equal),
        n_without_answer=len(answers) - len(equal),
        note="; ".join(remarks),
    )
