"""A comparison: every method opened and asked, then rounds of timed requests; its record, and what is shown of it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from unittest.mock import patch

import numpy as np
from pydantic import Field

from ..config.prompt import LikelyMistake
from ..config.schema import Config, variant_of
from ..config.scoring import TREE
from ..config.words import counted, instead_of
from ..engine.open import compile_config, open_model
from ..errors import ConfigError, PlanError
from ..model import OpenModels
from ..model.placement import gpus
from ..native.device import CPU_PRODUCTS, LANE_ORDER, STOCK
from ..opening import QUERIES, ClassifierOpener
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, provenance
from ..report.environment import Environment, environment
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import FloatArray, mean, quantiles
from .method import ComparisonSettings, Method, PeerError, Rounds, Workload, WorkloadPrompt, qcls, stock
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
_LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as qcls: share of winners equal to ours; none: answers without a winner"
)


class MethodRecord(Record):
    """What one method took for a request, and how far its answers agree with ours."""

    name: str = Field(description="its name")
    about: str = Field(description="what it does for a request")
    p50_ms: float = Field(description="median time of a request")
    p90_ms: float = Field(description="90 % quantile of the times")
    ratio_to_qcls: float = Field(description="median over the rounds of the ratio of the two medians of a round")
    ratio_range: tuple[float, float] = Field(description="10 % and 90 % quantile of the same ratios")
    as_scoring: float | None = Field(description="share of answers with the winner of `qcls`; null without answers")
    n_without_answer: int = Field(description="answers without a winner: it saw too little of the vocabulary")
    note: str = Field(description="observations while it ran; may be empty")


class AbsentMethod(Record):
    """A method without figures."""

    name: str = Field(description="its name")
    reason: str = Field(description="why, and what to do")
    asked_for: bool = Field(description="whether it was asked for by name; false where all methods were compared")
    started: bool = Field(description="true: it started and failed later; false: it cannot run here")


class ComparisonRecord(Rounds):
    """A comparison of our classifier with other methods of labelling the same queries."""

    environment: Environment
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")
    methods: tuple[MethodRecord, ...] = Field(description="in the order in which they were started; `qcls` first")
    absent: tuple[AbsentMethod, ...]


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
            **settings.model_dump(include=set(Rounds.model_fields)),
            environment=environment(settings.config),
            config=classifier.config,
            model=classifier.model,
            warnings=opener.warnings,
            methods=tuple(
                method_record(name, method.remarks(), ms, answers) for name, method in contest.methods.items()
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
        queries, n_warm_up = self.settings.queries, self.settings.warm_up
        n_rounds = n_warm_up + self.settings.rounds
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
    name: str, remarks: Sequence[str], ms: Mapping[str, FloatArray], answers: Mapping[str, Sequence[str | None]]
) -> MethodRecord:
    """A method's times and answers beside ours.

    ms: (n_rounds, n_queries) milliseconds by method. The ratio and its range are quantiles of one thing: of the rounds'
    ratios of medians. answers: by method the labels in the order of queries and prompts.
    """
    low, ratio, high = quantiles(np.median(ms[name], axis=1) / np.median(ms[QCLS], axis=1), 0.1, 0.5, 0.9)
    p50, p90 = quantiles(ms[name], 0.5, 0.9)
    equal = [label == ours for label, ours in zip(answers[name], answers[QCLS], strict=True) if label is not None]
    return MethodRecord(
        name=name,
        about=METHODS[name][1],
        p50_ms=p50,
        p90_ms=p90,
        ratio_to_qcls=ratio,
        ratio_range=(low, high),
        as_scoring=mean(equal),
        n_without_answer=len(answers[name]) - len(equal),
        note="; ".join(remarks),
    )


def comparison_document(comparison: ComparisonRecord) -> Document:
    """All that is shown of a record; the methods by their median time, the fastest first."""
    methods = sorted(comparison.methods, key=lambda method: method.p50_ms)
    rows = []
    for method in methods:
        low, high = method.ratio_range
        times = method.p50_ms, method.p90_ms, method.ratio_to_qcls, f"{low:.2f}–{high:.2f}"
        rows.append([method.name, *times, method.as_scoring, method.n_without_answer])
    table = Table(
        columns={
            **{"method": TEXT, "p50 ms": ".2f", "p90 ms": ".2f", "× qcls": ".2f", "10–90 %": ">s"},
            **{"as qcls": ".1%", "none": "d"},
        },
        rows=rows,
        bold=[i for i, method in enumerate(methods) if method.name == "qcls"],
    )
    notes = [f"{method.name}: {method.about}" + (f". {method.note}" if method.note else "") for method in methods]
    if comparison.queries == QUERIES:
        notes.append("No queries were given: these are about fashion and short. With longer ones times are others.")
    notes += [f"{other.name} {'failed' if other.started else 'absent'}: {other.reason}" for other in comparison.absent]
    model = comparison.model
    heading = (
        f"{counted(len(comparison.config.prompts), 'prompt')}, {counted(len(comparison.queries), 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of alternating requests; {model.description}, {model.quantization}, "
        f"{model.device}, {counted(comparison.environment.n_threads, 'thread')}; peers on stock kernels"
    )
    conditions = {
        **provenance(model, comparison.environment),
        "rounds": f"{comparison.rounds}, after {comparison.warm_up} that were not timed",
        "queries": " | ".join(comparison.queries),
    }
    return Document(
        title="Methods of labelling a query",
        parts=[
            Paragraph(heading),
            table,
            Paragraph(_LEGEND, "faint"),
            *map(Paragraph, notes),
            Section(title="Conditions", parts=[facts(conditions)], on_terminal=False),
        ],
    )
