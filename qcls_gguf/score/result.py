"""What a classification returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple


class LabelScore(NamedTuple):
    """One label of one prompt; a tuple, since a request makes many."""

    label: str
    score: float
    """first_token: the logit of the label's first token; tree: the log-probability among the labels; joint and mean:
    the log-probability in the whole vocabulary, and that per token; raw, without prior, temperature and bias"""
    probability: float
    """calibrated, where the configuration calibrates"""
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the whole vocabulary says of a prompt's labels; log-probabilities in the order of the configuration."""

    joint: tuple[float, ...]
    """log p(label | prompt), the end-of-label token included where a label has one"""
    mean: tuple[float, ...]
    """joint per token"""
    label_mass: float
    """the probability that lies on the labels at all"""
    joint_label: str
    """the winner of joint"""
    mean_label: str
    """the winner of mean"""
    changes: bool
    """whether joint picks another label than the scoring finds most probable"""


class PromptResult(NamedTuple):
    """One prompt's answer: the winner, and every label in the order of the configuration."""

    prompt: str
    label: str
    """the most probable label; the fallback where it is less probable than min_confidence"""
    probability: float
    """of the most probable label"""
    abstained: bool
    """whether label is the fallback"""
    fast_path: bool
    """False where the query changed tokens of the cached prefix, so that some had to be fed anew"""
    scores: tuple[LabelScore, ...]
    audit: Audit | None = None
    """only with audit, or where the prompt's scoring is exact"""
    stage: str | None = None
    """of a cascade, which stage gave the answer; None without a cascade"""

    @property
    def most_probable(self) -> str:
        """The most probable label, whether it is the answer or not; of equally probable ones the first."""
        return max(self.scores, key=lambda score: score.probability).label


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the decodes of a request did, for all its queries together."""

    n_queries: int
    """queries of the request"""
    n_decodes: int
    """decodes that the request took; with a model of recurrent layers, passes over its weights"""
    n_tokens_new: int
    """tokens that were fed"""
    n_tokens_cached: int
    """tokens of the rendered prompts that came from the cache"""
    n_positions: int
    """hidden states that came back"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Which model answered, and what computed it."""

    path: str
    """the file"""
    sha256: str
    """of the file; of a split model of its parts joined in order"""
    quantization: str
    """such as Q4_K_M"""
    description: str
    """llama.cpp's: architecture, size and type"""
    size_bytes: int
    """of the file, or of all parts"""
    n_gpu_layers: int
    """layers on the GPU"""
    device: str
    """what computed"""
    llama_cpp_commit: str
    """of the llama.cpp that was patched"""
    source_digest: str
    """of the patched sources"""
    backend: str
    """CPU, or CUDA with its version"""
    package_version: str
    """of qcls-gguf"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """One query's answer. Times and counts are of the whole request, which it may share with other queries."""

    query: str
    total_ms: float
    stage_ms: dict[str, float]
    counts: Counts
    results: tuple[PromptResult, ...]
    model: ModelInfo
    wait_ms: float = 0.0
    """before the times above: until other callers' requests were done"""

    @property
    def labels(self) -> dict[str, str]:
        """The answer of each prompt."""
        return {result.prompt: result.label for result in self.results}

    def after(self, wait_ms: float) -> Result:
        """The same with its wait."""
        return Result(  # several times faster than dataclasses.replace
            query=self.query,
            total_ms=self.total_ms,
            stage_ms=self.stage_ms,
            counts=self.counts,
            results=self.results,
            model=self.model,
            wait_ms=wait_ms,
        )

    def __repr__(self) -> str:
        """One line: the query and each prompt's answer with its probability."""
        answers = ", ".join(f"{answer.prompt}={answer.label} {answer.probability:.1%}" for answer in self.results)
        return f"Result({self.query!r}: {answers}; {self.total_ms:.2f} ms)"

    def to_frame_row(self) -> dict[str, str | float]:
        """A row of a table, such as a pandas data frame: `query`, and for each prompt `NAME` and `NAME_probability`."""
        row: dict[str, str | float] = {"query": self.query}
        for answer in self.results:
            row[answer.prompt] = answer.label
            row[f"{answer.prompt}_probability"] = answer.probability
        return row

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `qcls-gguf run` prints them as JSON; no `audit` where there was none.

        `most_probable` is there where the prompt abstained.
        """
        answer = asdict(replace(self, results=()))
        answer["results"] = [_plain(result) for result in self.results]
        return answer


def _plain(result: PromptResult) -> dict[str, Any]:
    plain = result._asdict()
    plain["scores"] = [score._asdict() for score in result.scores]
    for key in ("audit", "stage"):
        del plain[key]
    if result.stage is not None:
        plain["stage"] = result.stage
    if result.audit is not None:
        plain["audit"] = asdict(result.audit)
    if result.abstained:
        plain["most_probable"] = result.most_probable
    return plain
