"""How a request's time grows with the number of prompts, and with the cells of other prompt sets in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.template import SLOT
from ..engine.engine import Engine
from ..opening import ClassifierOpener
from ..report.progress import OnProgress, counter
from .classifiers import QuerySource
from .decode_records import GrowthPoint, GrowthRecord
from .load import Runner, Samples, closed_loop
from .stats import decode_quantiles
from .workloads import requests_of

FOREIGN_CELLS = (0, 1024, 4096, 16384)
FOREIGN_PREFIX = 256
"""tokens of each prefix of which foreign cells are made"""
_N_WARM_UP = 2


def numbers_of_prompts(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and at last the most."""
    return (*(1 << i for i in range(most.bit_length()) if 1 << i < most), most)


def numbered_prompts(prompts: Sequence[PromptConfig], n: int) -> tuple[PromptConfig, ...]:
    """n prompts: these again and again, each with its number in front of its text, so that no two begin alike.

    The number stands behind a first line that ends before the query: such a line often is a special token, which has to
    come first.
    """

    def numbered(prompt: PromptConfig, number: int) -> PromptConfig:
        first, line_break, rest = prompt.template.partition("\n")
        begins = line_break and SLOT not in first
        template = f"{first}\n{number}. {rest}" if begins else f"{number}. {prompt.template}"
        return dataclasses.replace(prompt, name=f"{number}. {prompt.name}", prompt_template=template)

    return tuple(numbered(prompts[i % len(prompts)], i) for i in range(n))


def measure_growth(
    config: Config,
    most_prompts: int,
    source: QuerySource,
    n_rounds: int,
    opener: ClassifierOpener,
    on_progress: OnProgress,
) -> GrowthRecord:
    """Both series for a configuration; the classifiers of a series are all open, and asked in turns.

    most_prompts: the last number of prompts; n_rounds: requests of each classifier that are counted. Raises what
    Classifier raises.
    """
    config = opener.rendered(config)
    runtime = dataclasses.replace(config.runtime, n_ctx="auto", n_seq_max="auto", state_cache=False, kept_queries=0)
    plain = dataclasses.replace(config, runtime=runtime, calibration=None)
    by_prompts = [
        (dataclasses.replace(plain, prompts=numbered_prompts(config.prompts, n)), 0)
        for n in numbers_of_prompts(most_prompts)
    ]
    by_cells = [(with_room(plain, n), n) for n in FOREIGN_CELLS]
    return GrowthRecord(
        config=None if config.path is None else str(config.path),
        n_requests=n_rounds,
        by_prompts=_series("growth by prompts", by_prompts, source, n_rounds, opener, on_progress),
        by_foreign_cells=_series("growth by foreign cells", by_cells, source, n_rounds, opener, on_progress),
    )


def with_room(config: Config, n_cells: int) -> Config:
    """The configuration with room for so many foreign cells."""
    n_prefixes = -(-n_cells // FOREIGN_PREFIX)
    runtime = dataclasses.replace(config.runtime, question_cells=n_cells, question_prefixes=n_prefixes)
    return dataclasses.replace(config, runtime=runtime)


def fill(engine: Engine, n_cells: int) -> None:
    """Put prefixes that no request uses into an engine's cache, n_cells tokens in all."""
    text = engine.model.tokenize("Which colour has this shirt, dress or coat? ", parse_special=False).tolist()
    prefixes = []
    for start in range(0, n_cells, FOREIGN_PREFIX):
        number = engine.model.tokenize(f"{start}. ", parse_special=False).tolist()
        n = min(FOREIGN_PREFIX, n_cells - start)
        prefixes.append(tuple((number + text * n)[:n]))
    engine.hold(prefixes)


def _series(
    part: str,
    configs: Sequence[tuple[Config, int]],
    source: QuerySource,
    n_rounds: int,
    opener: ClassifierOpener,
    on_progress: OnProgress,
) -> tuple[GrowthPoint, ...]:
    starts = counter(on_progress, f"{part}: starts", len(configs))
    requests = counter(on_progress, part, n_rounds * len(configs))
    with ExitStack() as stack:
        classifiers = []
        for config, n_cells in configs:
            classifier = stack.enter_context(opener.open(config, quiet=True))
            if n_cells:
                fill(classifier.engine, n_cells)
            classifiers.append(classifier)
            starts()
        queries = source.sets(classifiers[0].engine.model)[0].queries
        runners = [Runner(classifier, requests_of(queries, 1)) for classifier in classifiers]
        for runner in runners:
            runner.warm_up(_N_WARM_UP)
        closed_loop(runners, n_rounds, requests)
        return tuple(
            _point(classifier, n_cells, runner.samples)
            for classifier, (_, n_cells), runner in zip(classifiers, configs, runners, strict=True)
        )


def _point(classifier: Classifier, n_cells: int, samples: Samples) -> GrowthPoint:
    n, ms, n_requests = len(classifier.prompts), decode_quantiles(samples.total_ms), len(samples.counts)
    return GrowthPoint(
        n_prompts=n,
        n_foreign_cells=n_cells,
        ms=ms,
        ms_a_prompt=ms.p50 / n,
        n_tokens=sum(count.n_tokens_new for count in samples.counts) / n_requests,
        n_decodes=sum(count.n_decodes for count in samples.counts) / n_requests,
        startup_ms=sum(classifier.startup_ms.values()),
    )
