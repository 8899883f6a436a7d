"""The record of an advice: what `qcls-gguf advise` prints as JSON."""

from __future__ import annotations

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..evaluation.records import DataRecord
from ..report.environment import Environment
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo


class PromptAgreement(Record):
    """How often a prompt's answer is the present configuration's."""

    agreement: float
    """share of the compared rows with equal answers"""
    agreement_ci: tuple[float, float]
    """its Wilson 95 % interval"""
    accuracy: float | None = left_out_if_none()
    """on the compared rows with a label for this prompt"""


class ChangedAnswer(Record):
    """A row that a candidate answers otherwise than the present configuration."""

    prompt: str
    """the prompt's name"""
    line: int
    """in the file"""
    query: str
    """its text"""
    present: str
    """the present configuration's most probable label"""
    present_probability: float
    """its probability"""
    candidate: str
    """the candidate's most probable label"""
    candidate_probability: float
    """its probability"""
    accepted: tuple[str, ...] | None = left_out_if_none()
    """the accepted labels, where the row is labelled"""


class CascadeFit(Record):
    """The stage that a cascade asks first, and from which probability on its answers count."""

    stage: str
    """the candidate that it is"""
    thresholds: dict[str, float]
    """by prompt; prompts for which none was accepted are asked of the last stage at once"""
    yaml: str
    """the stage's configuration, as a file has it"""


class CandidateRecord(Record):
    """One configuration, and what is known of it."""

    name: str
    """a short name; `present` is the configuration that was given"""
    why: str
    """what is different, and what that saves"""
    model: ModelInfo
    """the model that answered"""
    n_tokens: float
    """tokens that a request feeds, on average"""
    mean_ms: float
    """of the requests for the compared rows, one row a request; all configurations took turns"""
    p50_ms: float
    """their median"""
    time_share: float
    """that median by the present configuration's"""
    prompts: dict[str, PromptAgreement]
    """by prompt"""
    least_agreement: float
    """of all prompts"""
    meets_limit: bool
    """whether every prompt's agreement is at least the limit"""
    is_proven: bool
    """whether every prompt's interval lies above the limit"""
    accuracy: float | None = left_out_if_none()
    """mean over the prompts with labels"""
    changed: tuple[ChangedAnswer, ...]
    """the first 10 of each prompt"""
    cascade: CascadeFit | None = left_out_if_none()
    """where it is a cascade of a candidate and the present configuration"""
    yaml: str | None
    """the configuration, as a file has it; null for the present one"""


class AdviceRecord(Record):
    """Which configuration is the fastest that still answers like the present one."""

    data: DataRecord
    n_compared: int
    """rows that all figures are of; with a cascade the second half, which did not propose its thresholds"""
    config: Config
    """the present one, with whole texts"""
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""
    environment: Environment
    min_agreement: float
    """the limit, for each prompt"""
    candidates: tuple[CandidateRecord, ...]
    """the present configuration first"""
    recommended: str | None
    """the name of a candidate; null where none is better than the present configuration"""
    reason: str
    """why"""
    notes: tuple[str, ...]
    """what could not be done, and candidates that could not be opened"""

    @property
    def best(self) -> CandidateRecord | None:
        """The recommended candidate."""
        return next((each for each in self.candidates if each.name == self.recommended), None)
