"""What became of a candidate, as the record has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from textwrap import wrap

import numpy as np

from ..bench.roofline import Weights
from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.words import counted
from ..data.labelled import LabelledQuery
from ..report.numbers import percent
from ..score.result import ModelInfo
from .planning import NotTried, Planned
from .records import CandidateRecord, Latency, MemoryNeeds, Predicted, PromptAgreement
from .statistics import disagreements, prompt_agreement
from .target import T4, Target, predict_t4
from .trial import Row
from .tried import Tried
from .yaml_text import config_yaml


@dataclass(slots=True, kw_only=True)
class Summariser:
    """Makes records of what was tried against one original."""

    prompts: Sequence[PromptConfig]
    """the original's"""
    rows: Sequence[LabelledQuery]
    original: Sequence[Row]
    whole: Planned
    limit: float
    targets: Sequence[Target]
    predict_t4: bool
    notes: list[str] = field(default_factory=list)
    """what could not be said, a sentence each"""

    def record(self, tried: Tried, classifier: Classifier, weights: Weights | None) -> CandidateRecord:
        """A candidate that was tried, on the classifier of its model; weights: None where it has several models."""
        planned, candidate = tried.planned, tried.candidate
        assert planned is not None
        agreement = {
            prompt.name: prompt_agreement(
                prompt,
                self.rows,
                self.original,
                tried.rows,
                worse=prompt.name in tried.worse,
            )
            for prompt in self.prompts
        }
        shares = [each.agreement for each in agreement.values() if each.agreement is not None]
        complete = tried.state in ("original", "tried")
        meets = complete and bool(shares) and min(shares) >= self.limit
        accuracies = [each.accuracy for each in agreement.values() if each.accuracy is not None]
        losses = [each.log_loss for each in agreement.values() if each.log_loss is not None]
        is_original = tried.state == "original"
        return CandidateRecord(
            name=candidate.name,
            why=candidate.why,
            state=tried.state,
            note=tried.note,
            model=tried.model_name,
            quantization=classifier.model.quantization,
            n_tokens=planned.n_tokens,
            tokens_share=planned.n_tokens / self.whole.n_tokens,
            n_decodes=planned.n_decodes,
            n_queries=len(tried.rows),
            n_non_finite=sum(row is None for row in tried.rows),
            prompts=agreement,
            least_agreement=min(shares, default=None),
            meets_limit=meets,
            is_proven=meets
            and all(
                each.agreement_ci is not None and each.agreement_ci[0] >= self.limit for each in agreement.values()
            ),
            accuracy=fmean(accuracies) if accuracies else None,
            log_loss=fmean(losses) if losses else None,
            latency=_latency(tried.ms),
            original_latency=_latency(tried.original_ms) if tried.ms else None,
            predicted=self._predicted(planned, classifier.model, weights),
            memory=MemoryNeeds(
                weights_bytes=classifier.model.size_bytes,
                prefix_cells=planned.n_prefix_tokens,
                prefix_bytes=round(planned.n_prefix_tokens * cell_bytes(classifier)),
            ),
            is_pareto=False,
            disagreements=() if is_original else disagreements(self.prompts, self.rows, self.original, tried.rows),
            yaml=None
            if is_original
            else config_yaml(candidate.config, heading(candidate.name, candidate.why, _found(agreement, self.limit))),
        )

    def not_tried(self, each: NotTried, name: str, model: ModelInfo | None) -> CandidateRecord:
        """A candidate that was not tried; model: None where it could not be opened."""
        return CandidateRecord(
            name=each.candidate.name,
            why=each.candidate.why,
            state="not tried",
            note=each.reason,
            model=name,
            quantization=None if model is None else model.quantization,
            n_tokens=each.n_tokens,
            tokens_share=None if each.n_tokens is None else each.n_tokens / self.whole.n_tokens,
            n_decodes=None,
            n_queries=0,
            n_non_finite=0,
            prompts={},
            least_agreement=None,
            meets_limit=False,
            is_proven=False,
            latency=None,
            original_latency=None,
            predicted=None,
            memory=None,
            is_pareto=False,
            disagreements=(),
            yaml=None,
        )

    def _predicted(self, planned: Planned, model: ModelInfo, weights: Weights | None) -> Predicted | None:
        if weights is None:
            return None
        found, name = None, T4
        if self.targets:
            if target := next((each for each in self.targets if each.is_of(model)), None):
                found, name = target.predict(planned.requests), f"{target.device}, from {target.path.name}"
            missing = f"no target was measured with {model.description}, {model.quantization}"
        elif self.predict_t4:
            found = predict_t4(planned.requests, model.quantization, weights.n_per_token + weights.n_per_row)
            missing = f"for a T4 nothing is known of {model.quantization}"
        else:
            return None
        if found is None:
            self.notes += [missing] * (missing not in self.notes)
            return None
        return Predicted(target=name, low_ms=found.low_ms, high_ms=found.high_ms)


def cell_bytes(classifier: Classifier) -> float:
    """What a cell of its KV cache takes, a token's keys and values of all layers."""
    context = classifier.engine.context
    return context.counters().cache_bytes / context.n_ctx


def heading(name: str, why: str, found: str) -> list[str]:
    """The comments above a configuration that is written."""
    return [
        line
        for text in (f"Derived by `qcls-gguf advise`: {name}.", f"What is different: {why}.", found)
        for line in wrap(text, 100)
    ]


def _found(agreement: Mapping[str, PromptAgreement], limit: float) -> str:
    name, worst = min(agreement.items(), key=lambda pair: pair[1].agreement or 0)
    return (
        f"It answered {percent(worst.agreement)} of {counted(worst.n, 'query', 'queries')} as the original in the "
        f"prompt that differs most ({name}); the limit was {percent(limit)}."
    )


def _latency(ms: Sequence[float]) -> Latency | None:
    """Times of requests, as a record has them; None where there are none."""
    if not ms:
        return None
    p50, p99 = np.quantile(np.array(ms), [0.5, 0.99]).tolist()
    return Latency(mean_ms=fmean(ms), p50_ms=p50, p99_ms=p99, n=len(ms))
