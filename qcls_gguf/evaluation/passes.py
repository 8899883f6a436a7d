"""One pass over labelled queries: what every scoring mode says of each, kept in a file where one is named."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.schema import Config, PromptConfig
from ..config.scoring import Scoring
from ..data.labelled import BadRow, LabelledQuery
from ..errors import ConfigError, PlanError, ScoreError
from ..prompts.compiled import Prompt
from ..prompts.trie import build_trie
from ..score.log_space import softmax
from ..score.result import ModelInfo, PromptResult, Result

_N_WARM = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """One query's scores for one prompt's labels, in the order of the configuration."""

    tree: list[float]
    """log-probabilities among the labels"""
    joint: list[float] | None = None
    """log p(label | prompt); none without an exact pass"""
    mean: list[float] | None = None
    """joint per token"""
    label_mass: float | None = None

    def scores(self, mode: Scoring) -> npt.NDArray[np.float64]:
        """(n_labels,) the mode's scores, from the one decode; those of `first_token` but for a constant.

        Where all labels differ in their first token, `tree` has no other choice than the one that `first_token`
        scores, and the two are one softmax over the same logits.
        """
        return np.array(self.tree if mode in ("tree", "first_token") else self.joint if mode == "joint" else self.mean)

    def probability(self, mode: Scoring) -> npt.NDArray[np.float64]:
        """(n_labels,) the mode's probabilities."""
        scores = self.scores(mode)
        if mode in ("tree", "first_token"):
            return np.exp(scores)
        return np.asarray(softmax(scores), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """One query's scores for every prompt, or why there are none."""

    prompts: dict[str, PromptScores] | None = None
    error: str | None = None


def pass_config(config: Config) -> Config:
    """The configuration of the pass: raw `tree` for every prompt, from which an audit gives every mode."""
    return raw_config(config, "tree", [prompt.name for prompt in config.prompts])


def not_applicable(prompt: Prompt, mode: Scoring) -> str | None:
    """Why a prompt cannot have a mode; none where it can."""
    if mode == "first_token":
        try:
            build_trie(prompt.labels, prompt.label_tokens, -1, mode)
        except ConfigError as e:
            return str(e)
    return None


def refused_queries(classifier: Classifier, rows: Sequence[LabelledQuery]) -> list[BadRow]:
    """The rows whose query the classifier does not take; nothing is computed for it."""
    refused = []
    for row in rows:
        try:
            classifier.check(row.query)
        except PlanError as e:
            refused.append(BadRow(row.line, str(e)))
    return refused


def score_rows(
    classifier: Classifier, rows: Sequence[LabelledQuery], kept: KeptScores | None, on_row: Callable[[], None]
) -> list[RowScores]:
    """Every row's scores; those that `kept` has are not computed again. on_row() follows each row."""
    scores = []
    for row in rows:
        found = None if kept is None else kept.get(row.query)
        if found is None:
            found = _score(classifier, row.query)
            if kept is not None:
                kept.add(row.query, found)
        scores.append(found)
        on_row()
    return scores


def _score(classifier: Classifier, query: str) -> RowScores:
    try:
        result = classifier.classify(query)
    except ScoreError as e:
        return RowScores(error=str(e))
    return row_scores(result)


def row_scores(result: Result) -> RowScores:
    """What an answer of the pass's classifier says."""
    return RowScores(prompts={answer.prompt: _prompt_scores(answer) for answer in result.results})


def _prompt_scores(answer: PromptResult) -> PromptScores:
    tree = [score.score for score in answer.scores]
    if (audit := answer.audit) is None:
        return PromptScores(tree=tree)
    return PromptScores(tree=tree, joint=list(audit.joint), mean=list(audit.mean), label_mass=audit.label_mass)


class KeptScores:
    """Scores in a file, a row a line, under a digest of configuration, model and query; grows as rows are scored."""

    def __init__(self, path: Path, config: Config, model: ModelInfo, *, exact: bool) -> None:
        """Read what is there; an unfinished last line is cut off. Raises ConfigError for a file of another kind."""
        self._path = path
        self._digest = _run_digest(config, model, exact=exact)
        self._scores: dict[str, RowScores] = {}
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            for number, line in enumerate(whole.splitlines(), 1):
                self._take(line, number)
            if not whole and not b'{"key": "'.startswith(content[:9]):
                raise self._foreign(1)
            self._file = path.open("r+b" if content else "wb")
            self._file.seek(len(whole))
            self._file.truncate()
        except OSError as e:
            raise ConfigError(f"`resume` {path}: cannot be read and written: {e.strerror}") from None

    def _take(self, line: bytes, number: int) -> None:
        try:
            row = json.loads(line)
            prompts = row.get("prompts")
            self._scores[row["key"]] = RowScores(
                prompts=prompts and {name: PromptScores(**scores) for name, scores in prompts.items()},
                error=None if prompts else row["error"],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._foreign(number) from None

    def _foreign(self, number: int) -> ConfigError:
        return ConfigError(f"`resume` {self._path}: line {number} is no result of eval: name a file of its own")

    def _key(self, query: str) -> str:
        return hashlib.sha256(f"{self._digest}\n{query}".encode()).hexdigest()

    def get(self, query: str) -> RowScores | None:
        """The scores of a query, where they are known."""
        return self._scores.get(self._key(query))

    def add(self, query: str, scores: RowScores) -> None:
        """Keep a query's scores, in the file at once."""
        key = self._key(query)
        self._scores[key] = scores
        said = {name: value for name, value in dataclasses.asdict(scores).items() if value is not None}
        self._file.write(json.dumps({"key": key, **said}).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _run_digest(config: Config, model: ModelInfo, *, exact: bool) -> str:
    """Of everything that a row's scores depend on, but for the query."""
    parts = {
        "prompts": [dataclasses.asdict(prompt) for prompt in config.prompts],
        "runtime": dataclasses.asdict(config.runtime),
        "model": [model.sha256, model.device, model.n_gpu_layers],
        "build": [model.package_version, model.llama_cpp_commit, model.source_digest, model.backend],
        "exact": exact,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def latency(
    config: Config, what: str, queries: Sequence[str], *, offline: bool, on_query: Callable[[], None]
) -> dict[str, Any]:
    """Time and tokens of requests, by a classifier that has nothing else to compute; what: its scoring, in words."""
    total_ms, n_tokens = [], []
    with Classifier.from_config(config, offline=offline) as classifier:
        for query in queries[:_N_WARM]:
            classifier.classify(query)
        for query in queries:
            result = classifier.classify(query)
            total_ms.append(result.total_ms)
            n_tokens.append(result.counts.n_tokens_new)
            on_query()
    return {
        "p50_ms": statistics.median(total_ms),
        "p90_ms": float(np.quantile(total_ms, 0.9)),
        "n_tokens_new": statistics.fmean(n_tokens),
        "n_queries": len(queries),
        "n_prompts": len(config.prompts),
        "measured_by": f"a warm classifier with {what} and no audit, one query a request",
    }


def raw_config(config: Config, mode: Scoring, names: Sequence[str]) -> Config:
    """The configuration with these prompts only, in one mode, neither calibrated nor abstaining."""
    prompts = tuple(
        PromptConfig(
            name=prompt.name,
            prompt_template=prompt.prompt_template,
            labels=prompt.labels,
            label_prefix=prompt.label_prefix,
            scoring=mode,
            label_end=prompt.label_end,
        )
        for prompt in config.prompts
        if prompt.name in names
    )
    return dataclasses.replace(config, prompts=prompts, calibration=None)
