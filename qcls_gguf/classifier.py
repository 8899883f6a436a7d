"""The pipeline: queries to label scores in one decode. The public API."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from .config.load import load_config
from .config.schema import Config, check_config
from .engine.batcher import Turns
from .engine.capacity import merged_callers, shapes
from .engine.engine import Decoded, Engine, Float32Array, Meanwhile
from .errors import DecodeError, PlanError, ScoreError
from .plan.planner import Chunk, IndexArray, Planner, Unit, counts_of
from .plan.templates import Templates
from .plan.tree import Int32Array
from .prompts.compiled import Prompt
from .score.adjustment import Adjustment
from .score.answers import Answers
from .score.calibration import adjustments_of, content_free_queries
from .score.result import Counts, ModelInfo, Result
from .startup import Parts, start
from .timing import Stopwatch

# Query lengths that are planned at start-up, and whose kernels a GPU loads; beyond, the kernels are the same.
_WARM_TOKENS = 64
_WARM_STEP = 4
_N_UNTIL_CAPTURED = 3
_MENTIONED_MS = 0.05  # of waiting


class Classifier:
    """Labels queries by all prompts of a configuration.

    Everything is loaded, cached and warmed when it is made. Usable from several threads: while one request is computed
    others wait, and then share the next decode, up to `runtime.max_batch` queries, where that pays.

        with Classifier.from_config("configs/fashion-8.yaml") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, parts: Parts) -> None:
        """Use `from_config`."""
        self._parts = parts
        self._engine: Engine = parts.engine
        self._prompts: Sequence[Prompt] = parts.prompts
        self._answers = Answers(parts.prompts, parts.config.prompts, parts.scorer)  # raw until _adjust
        self._planner = Planner(parts.engine, parts.prompts)
        self._templates = Templates(parts.engine, parts.prompts, self._planner, parts.n_empty)
        # the distinct texts around the query, with their numbers of tokens for an empty one
        self._fragments = {prompt.fragment: n for prompt, n in zip(parts.prompts, parts.n_empty, strict=True)}
        runtime = parts.config.runtime
        n_merged = merged_callers(runtime, parts.model.n_gpu_layers, parts.engine.n_holders)
        self._turns = Turns(self._classify, max_batch=n_merged, max_waiting=runtime.max_waiting)
        self._pid = os.getpid()

    @classmethod
    def from_config(
        cls,
        config: str | Path | Config,
        *,
        offline: bool = False,
        on_step: Callable[[str, str, float], None] | None = None,
        on_load: Callable[[float], None] | None = None,
        audit: bool = False,
    ) -> Self:
        """Load the model, cache the prompts and warm up.

        config: a YAML file, or a Config; offline: take a model of the hub from the local cache only;
        on_step(step, what, ms) follows the start-up, on_load(fraction) the loading of the model.
        audit: let every answer carry its exact scores; costs the LM head and the labels' own tokens.
        Raises ConfigError or ModelError.
        """
        config = load_config(config) if isinstance(config, str | Path) else check_config(config)
        classifier = cls(start(config, offline=offline, on_step=on_step, on_load=on_load, audit=audit))
        try:
            classifier._warm_up()
            classifier._adjust()
        except BaseException:
            classifier.close()
            raise
        return classifier

    def _warm_up(self) -> None:
        """Run what requests will run: kernels load when first used, graphs are built, and captured when used again."""
        runtime, on_gpu = self._parts.config.runtime, self.model.n_gpu_layers > 0
        n_shapes, n_warm = shapes(runtime, self.model.n_gpu_layers)
        if on_gpu:
            for n in range(n_warm, min(_WARM_TOKENS, runtime.max_query_tokens) + 1, _WARM_STEP):
                self._warm_request([" a" * n])
            for n in range(2, runtime.max_batch + 1):
                self._warm_request([f" a{' b' * i}" for i in range(n)])
        lengths = range(min(n_warm, n_shapes - 2), -2, -1) if n_warm else ()
        for n in lengths:  # the shorter a query, the longer its graph is kept
            if template := self._templates.of_query(n):
                for _ in range(_N_UNTIL_CAPTURED if on_gpu else 1):
                    self._engine.decode(template.chunk.plan, template.chunk.leaf_roots, template.any_tokens())
        for n in range(_WARM_TOKENS):
            self._templates.of_query(n)
        self._warm_request(["a"])
        kept = self._engine.context.counters()
        self._parts.ledger.step("warm-up", f"{kept.n_shapes} graphs, {kept.shapes_bytes / (1 << 20):.0f} MiB")

    def _warm_request(self, queries: Sequence[str]) -> None:
        with suppress(PlanError):  # more tokens than letters, in some vocabulary
            self.classify_batch(queries)

    def _adjust(self) -> None:
        """From here on calibrate the answers, where the configuration says so."""
        config = self._parts.config
        found = adjustments_of(config.prompts, self._parts.calibration, self._raw_scores)
        if queries := content_free_queries(config.prompts):
            n_prompts = sum(prompt.prior == "content_free" for prompt in config.prompts)
            self._parts.ledger.step("priors", f"{len(queries)} content-free queries, {n_prompts} prompts")
        self._answers.adjust(found)

    def _raw_scores(self, query: str) -> dict[str, npt.NDArray[np.float64]]:
        answers = self.classify(query).results
        return {answer.prompt: np.array([score.score for score in answer.scores]) for answer in answers}

    @property
    def model(self) -> ModelInfo:
        """Which model answers."""
        return self._parts.model

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The compiled prompts."""
        return self._prompts

    @property
    def parts(self) -> Parts:
        """The configuration, the engine, the start-up: what it works with, to look at."""
        return self._parts

    @property
    def adjustments(self) -> Sequence[Adjustment]:
        """What calibrates each prompt's scores."""
        return self._answers.adjustments

    @property
    def startup_ms(self) -> dict[str, float]:
        """Milliseconds of each step of the start-up."""
        return dict(self._parts.ledger.steps_ms)

    def check(self, query: str) -> None:
        """Raise PlanError for a query that `classify` would refuse; nothing is computed."""
        with self._turns.alone():
            self._units(self._tokenize(query))

    def classify(self, query: str) -> Result:
        """Label one query; see `classify_batch`."""
        return self.classify_batch([query])[0]

    def plan_counts(self, query: str) -> Counts:
        """What `classify` would feed and read for a query; computes nothing. Raises PlanError as `classify` does."""
        with self._turns.alone():
            units = self._units(self._tokenize(query))
            return counts_of(1, units, self._planner.chunks(units))

    def classify_batch(self, queries: Iterable[str]) -> list[Result]:
        """Label several queries in one decode, or in as few as the limits allow (counts.n_decodes tells).

        Raises PlanError for a query that is too long or not valid Unicode, before anything is computed; DecodeError,
        ScoreError, and BusyError where too many callers wait. After an error the classifier is as before.
        """
        if isinstance(queries, str):
            raise PlanError("classify_batch takes a list of queries: give one query to classify")
        queries = list(queries)
        for query in queries:
            _check_query(query)
        if not queries:
            return []
        if os.getpid() != self._pid:
            raise DecodeError("this Classifier was made in another process: make one in each process after forking")
        results, wait_ms = self._turns.submit(queries)
        return [replace(result, wait_ms=wait_ms) for result in results] if wait_ms > _MENTIONED_MS else list(results)

    def _classify(self, queries: Sequence[str]) -> list[Result]:
        watch = Stopwatch()
        fragments = [self._tokenize(query) for query in queries]
        watch.mark("tokenize")
        units, chunks, tokens, counts = self._plan(fragments)
        watch.mark("plan")
        fast_path = [unit.fast_path for unit in units]
        rehearse = None
        if self._parts.is_all_on_gpu and len(chunks) == 1:  # this thread is idle while the GPU computes
            rehearse = partial(
                self._answers.rehearse, row=chunks[0].rows.reshape(len(queries), -1), fast_path=fast_path
            )
        hidden, row = self._decode_all(chunks, tokens, watch, rehearse)
        try:
            answers = self._answers.of(hidden, row.reshape(len(queries), -1), fast_path)
        except ScoreError:
            self._engine.restore()
            raise
        watch.mark("score")
        return [
            Result(
                query=query,
                total_ms=watch.total_ms,
                stage_ms=dict(watch.stage_ms),
                counts=counts,
                results=answer,
                model=self.model,
            )
            for query, answer in zip(queries, answers, strict=True)
        ]

    def _tokenize(self, query: str) -> list[Int32Array]:
        """The tokens of each distinct fragment, in the order in which the prompts first have them."""
        limit = self._parts.config.runtime.max_query_tokens
        found = []
        for (before, after), n_empty in self._fragments.items():
            tokens = self._engine.model.tokenize(before + query + after, parse_special=False)
            if len(tokens) > n_empty + limit:
                raise PlanError(
                    f"the query has {len(tokens) - n_empty} tokens ({len(query)} characters), more than "
                    f"runtime.max_query_tokens: {limit}: shorten it or raise the limit"
                )
            found.append(tokens)
        return found

    def _units(self, fragments: Sequence[Int32Array]) -> list[Unit]:
        """What each prompt adds for one query; may raise PlanError."""
        tokens = {text: each.tolist() for text, each in zip(self._fragments, fragments, strict=True)}
        return self._planner.units([tokens[prompt.fragment] for prompt in self._prompts])

    def _plan(
        self, fragments: Sequence[Sequence[Int32Array]]
    ) -> tuple[Sequence[Unit], Sequence[Chunk], Sequence[Int32Array], Counts]:
        """The units of all queries, the decodes that hold them, the tokens of each decode, and their counts."""
        if len(fragments) == 1 and (found := self._templates.find(fragments[0])):
            template, behind = found
            return template.units, (template.chunk,), (template.fill(behind),), template.counts
        units = [unit for each in fragments for unit in self._units(each)]
        chunks = self._planner.chunks(units)
        return units, chunks, [chunk.plan.token for chunk in chunks], counts_of(len(fragments), units, chunks)

    def _decode_all(
        self, chunks: Sequence[Chunk], tokens: Sequence[Int32Array], watch: Stopwatch, meanwhile: Meanwhile | None
    ) -> tuple[Float32Array, IndexArray]:
        """The hidden states of all decodes, and in which row is that of each edge of the label tries."""
        if len(chunks) == 1:
            return self._decode(chunks[0], tokens[0], watch, meanwhile).hidden, chunks[0].rows
        hidden, rows, n_rows = [], [], 0
        for chunk, token in zip(chunks, tokens, strict=True):
            hidden.append(self._decode(chunk, token, watch).hidden.copy())  # the next decode overwrites it
            rows.append(chunk.rows + n_rows)
            n_rows += len(hidden[-1])
        return np.concatenate(hidden), np.concatenate(rows)

    def _decode(self, chunk: Chunk, token: Int32Array, watch: Stopwatch, meanwhile: Meanwhile | None = None) -> Decoded:
        decoded = self._engine.decode(chunk.plan, chunk.leaf_roots, token, meanwhile=meanwhile)
        watch.mark("decode")
        watch.move("decode", "batch", decoded.batch_us)
        watch.move("decode", "cleanup", decoded.trim_us)
        return decoded

    def close(self) -> None:
        """Free the context and the model; may be called again."""
        with self._turns.alone():
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_query(query: object) -> None:
    if not isinstance(query, str):
        raise PlanError(f"a query is text, not {type(query).__name__}: {query!r}")
    try:
        query.encode()
    except UnicodeEncodeError as e:
        raise PlanError(f"character {e.start} of the query is not valid Unicode ({e.reason})") from None
