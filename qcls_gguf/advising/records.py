"""The record of an advice: what `qcls-gguf advise` prints as JSON."""

from __future__ import annotations

from typing import Literal

from ..config.likely_mistake import LikelyMistake
from ..config.schema import Config
from ..data.labelled import BadRow
from ..report.environment import Environment
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo

State = Literal["original", "tried", "dropped", "not tried"]


class QueriesRecord(Record):
    """The queries that candidates were tried on."""

    path: str
    """the file"""
    sha256: str
    """of the file"""
    n_queries: int
    """different queries that could be used"""
    n_labelled: int
    """of these, queries with a label of some prompt"""
    n_bad: int
    """rows that could not be used, or without their labels"""
    bad: tuple[BadRow, ...]
    """the first of these"""
    seed: int
    """of the order in which they were asked"""


class PromptAgreement(Record):
    """How often a prompt's answer is the original configuration's."""

    n: int
    """queries with both answers"""
    n_agree: int
    """queries with equal answers"""
    agreement: float | None
    """n_agree / n; null without queries"""
    agreement_ci: tuple[float, float] | None
    """its Wilson 95 % interval"""
    clearly_worse: bool
    """whether the sequential test rejects the limit"""
    n_labelled: int
    """queries with a label for this prompt"""
    accuracy: float | None = left_out_if_none()
    """on these"""
    accuracy_ci: tuple[float, float] | None = left_out_if_none()
    """its Wilson 95 % interval"""
    log_loss: float | None = left_out_if_none()
    """on these, in nats"""
    original_accuracy: float | None = left_out_if_none()
    """the original's, on these"""
    original_log_loss: float | None = left_out_if_none()
    """the original's, on these"""


class Latency(Record):
    """Requests of one query that were timed here, all that are left in turns."""

    mean_ms: float
    """the mean"""
    p50_ms: float
    """the median"""
    p99_ms: float
    """the 99 % quantile"""
    n: int
    """requests"""


class Predicted(Record):
    """A prediction, not a measurement: the median time of a request's decodes on another machine."""

    target: str
    """which machine, and where its figures are from"""
    low_ms: float
    """the least"""
    high_ms: float
    """the most"""


class MemoryNeeds(Record):
    """What it takes to hold it ready."""

    weights_bytes: int
    """the model's file"""
    prefix_cells: int
    """cells of the KV cache for the prompts' prefixes, a token each"""
    prefix_bytes: int
    """of these cells"""


class Disagreement(Record):
    """A query that a candidate answers otherwise."""

    prompt: str
    """the prompt's name"""
    line: int
    """in the file of queries"""
    query: str
    """its text"""
    original: dict[str, float]
    """probability of each label, by the original configuration"""
    candidate: dict[str, float]
    """by the candidate, under the original's labels"""
    accepted: tuple[str, ...] | None = left_out_if_none()
    """the accepted labels, where the query is labelled"""


class PromptThreshold(Record):
    """From which probability on a stage answers a prompt."""

    threshold: float | None
    """null where none is proven: the prompt goes to the last stage at once"""
    n: int
    """queries that it was proven on, which did not propose it"""
    n_answered: int
    """of these, queries that the stage answers"""
    n_other: int
    """of these, queries whose answer is not the last stage's"""
    agreement: float
    """with the last stage, on these queries: what goes on agrees"""
    least_agreement: float
    """its lower Clopper-Pearson bound, for unseen queries of the same kind"""


class CascadeStageRecord(Record):
    """The stage that a cascade asks first."""

    stage: str
    """the candidate that it is"""
    wanted_agreement: float
    """with the last stage, for each prompt"""
    confidence: float
    """of the guarantee, for each prompt"""
    prompts: dict[str, PromptThreshold]
    """by prompt"""
    answered: float
    """share of the prompts that the stage answers, on the queries that proved the thresholds"""
    yaml: str
    """the stage's configuration, as a file has it"""


class CandidateRecord(Record):
    """One configuration, and what is known of it."""

    name: str
    """a short name"""
    why: str
    """what is different, and what that saves"""
    state: State
    """dropped: clearly worse than the limit, before all queries were asked; not tried: see `note`"""
    note: str | None
    """why it was dropped or not tried"""
    model: str
    """the model's file, or how the ladder names it"""
    quantization: str | None
    """such as Q4_K_M; null where the model was not opened"""
    n_tokens: float | None
    """tokens that a request feeds, on average, by the planner; null where it could not be planned"""
    tokens_share: float | None
    """of the original's"""
    n_decodes: float | None
    """decodes of a request, on average"""
    n_queries: int
    """queries that were asked"""
    n_non_finite: int
    """of these, queries whose scores are not finite"""
    prompts: dict[str, PromptAgreement]
    """by prompt"""
    least_agreement: float | None
    """of all prompts"""
    meets_limit: bool
    """whether every prompt's agreement is at least the limit, on all queries"""
    is_proven: bool
    """whether every prompt's interval lies above the limit"""
    accuracy: float | None = left_out_if_none()
    """mean over the prompts with labels"""
    log_loss: float | None = left_out_if_none()
    """mean over the prompts with labels"""
    latency: Latency | None
    """null where it was not timed"""
    original_latency: Latency | None
    """the original's requests in turns with these, by which they are compared: a machine is not as fast at all times"""
    predicted: Predicted | None
    """null where nothing is known of a target"""
    memory: MemoryNeeds | None
    """null where it was not tried"""
    is_pareto: bool
    """whether none is both faster here and in better agreement"""
    disagreements: tuple[Disagreement, ...]
    """the first of each prompt"""
    cascade: CascadeStageRecord | None = left_out_if_none()
    """where it is a cascade of a cheaper stage and the original; its figures are of the second half of the queries"""
    yaml: str | None
    """the configuration, as a file has it; null for the original"""

    @property
    def time_share(self) -> float | None:
        """Its median request by the original's in the same turns; None where it was not timed."""
        if self.latency is None or self.original_latency is None:
            return None
        return self.latency.p50_ms / self.original_latency.p50_ms


class AdviceRecord(Record):
    """Which configuration is the fastest that still answers like this one."""

    queries: QueriesRecord
    config: Config
    """the original, with whole texts"""
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the original's prompts"""
    environment: Environment
    min_agreement: float
    """the limit, for each prompt"""
    error_level: float
    """chance that a candidate which keeps the limit in every prompt is dropped early"""
    candidates: tuple[CandidateRecord, ...]
    """the original first"""
    recommended: str | None
    """the name of a candidate; null where none is better than the original"""
    reason: str
    """why"""
    notes: tuple[str, ...]
    """what could not be done"""
