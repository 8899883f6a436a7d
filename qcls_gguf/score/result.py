"""The results of a classification."""

from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, NamedTuple

from ..config.words import JsonObject, shown

STAGES = ("tokenize", "plan", "batch", "decode", "score", "cleanup")
"""of a request, in the order of a result's stage_ms"""


class LabelScore(NamedTuple):
    """One label of one prompt. A tuple, because a request creates many."""

    label: str
    score: float
    """raw, before prior, temperature and bias. first_token: the logit of the label's first token; tree: the natural
    log-probability among the labels; joint: that in the whole vocabulary; mean: joint per token"""
    probability: float
    """0 to 1, after prior, temperature and bias where the configuration has them"""
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Exact scores of a prompt's labels over the whole vocabulary; log-probabilities in the configuration's order."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}  # for the schema of records

    joint: tuple[float, ...]
    """log p(label | prompt), including the end-of-label token if a label has one"""
    label_mass: float
    """the probability that the model gives to all labels together"""


class PromptResult(NamedTuple):
    """One prompt's answer: the winner, and every label in the order of the configuration."""

    prompt: str
    label: str
    """the most probable label, or the fallback if that label is less probable than min_confidence"""
    probability: float
    """of the most probable label"""
    abstained: bool
    """whether label is the fallback"""
    fast_path: bool
    """False if the query changed tokens of the cached prefix, so that some had to be computed again"""
    scores: tuple[LabelScore, ...]
    audit: Audit | None = None
    """only with audit, or if the prompt's scoring is exact"""
    depth: int | None = None
    """the layers after which a learnt head read the hidden state; None where the labels' texts gave the answer"""

    @property
    def most_probable(self) -> str:
        """The most probable label, also if the answer is the fallback; the first of equally probable ones."""
        return max(self.scores, key=lambda score: score.probability).label

    def to_dict(self) -> JsonObject:
        """Plain values; `audit` only if it is not None, `scored_by` and `depth` only if a learnt head
        gave the answer, and `most_probable` only if it abstained.
        """
        plain = self._asdict() | {"scores": [score._asdict() for score in self.scores]}
        del plain["audit"], plain["depth"]
        if self.depth is not None:
            plain |= {"scored_by": "head", "depth": self.depth}
        if self.audit is not None:
            plain["audit"] = asdict(self.audit)
        if self.abstained:
            plain["most_probable"] = self.most_probable
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a request's decodes, for all its queries together."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}  # for the schema of records

    n_queries: int
    """queries of the request"""
    n_decodes: int
    """decodes of the request: passes over the model's weights"""
    n_tokens_new: int
    """tokens that were fed"""
    n_tokens_cached: int
    """tokens of the rendered prompts that came from the cache"""
    n_positions: int
    """hidden states that were read back"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that answered, and the device and build that computed."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}  # for the schema of records

    path: str
    """the file"""
    sha256: str
    """of the file; for a split model, of its parts joined in order"""
    quantization: str
    """such as Q4_K_M"""
    description: str
    """llama.cpp's: architecture, size and type"""
    size_bytes: int
    """of the file, or of all parts"""
    n_gpu_layers: int
    """layers on the GPU"""
    device: str
    """the device that computed"""
    llama_cpp_commit: str
    """of the llama.cpp that was patched"""
    source_digest: str
    """of the patched sources"""
    backend: str
    """CPU, or CUDA with its version"""
    package_version: str
    """of qcls-gguf"""
    n_lane_ordered: int = 0
    """matrices whose weights were rearranged for the GPU's kernels: lane order"""
    stock_types: dict[str, float] = field(default_factory=dict, hash=False)
    """types of matrices that llama.cpp's own kernels multiply by, with their share of the bytes"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """One query's answer. Times and counts are of the whole request, which it may share with other queries."""

    query: str
    total_ms: float
    stage_ms: dict[str, float] = field(hash=False)
    counts: Counts
    results: tuple[PromptResult, ...]
    model: ModelInfo
    wait_ms: float = 0.0
    """ms that the caller waited for other callers' requests, before the times above"""
    n_chars_cut: int = 0
    """characters of the query that were left out, because it was too long (runtime.long_queries)"""

    @property
    def labels(self) -> dict[str, str]:
        """The answers by prompt."""
        return {result.prompt: result.label for result in self.results}

    def __getitem__(self, prompt: str) -> PromptResult:
        """The answer of one prompt. Raises KeyError for a name that no prompt has."""
        for answer in self.results:
            if answer.prompt == prompt:
                return answer
        raise KeyError(f"{shown(prompt)} is no prompt: there are {', '.join(self.labels)}")

    def __contains__(self, prompt: object) -> bool:
        """Whether a prompt has this name."""
        return prompt in self.labels

    def __repr__(self) -> str:
        """One line: the query, and the prompts' answers with their probabilities."""
        answers = ", ".join(f"{answer.prompt}={answer.label} {answer.probability:.1%}" for answer in self.results)
        return f"Result({self.query!r}: {answers}; {self.total_ms:.2f} ms)"

    def to_dict(self) -> JsonObject:
        """Plain values, as `qcls-gguf run` prints them as JSON.

        `n_chars_cut` is there only if a part of the query was left out. A prompt has `audit` only if it is
        not None, and `most_probable` only if it abstained.
        """
        answer = asdict(replace(self, results=()))
        if not self.n_chars_cut:
            del answer["n_chars_cut"]
        answer["results"] = [result.to_dict() for result in self.results]
        return answer
