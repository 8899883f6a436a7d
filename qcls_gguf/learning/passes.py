"""One pass over labelled queries: scores by the labels' texts, and states at several depths, on disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.heads_file import Head, Heads
from ..config.prompt import PromptConfig
from ..config.scoring import FIRST_TOKEN, JOINT, MEAN, TREE, Scoring
from ..core.handle import LoadedPrompts
from ..errors import ConfigError, ModelError
from ..evaluation.passes import ScoreTable, prompt_scores
from ..prompts.compiled import Prompt
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.heads import unit_states
from ..statistics import FloatArray

HalfArray = npt.NDArray[np.float16]
MOST_NUMBERS = 1 << 27
"""In the states of all rows at one depth, which are fitted some 140 times."""
_SHARES = (0.4, 0.5, 0.6, 0.67, 0.75, 0.85)
"""of the layers: the depths that are tried"""
_SCORINGS: tuple[Scoring, ...] = TREE, JOINT, MEAN


def tried_depths(classifier: Classifier, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """The depths at which states are read, ascending, with all layers as the last one.

    wanted: instead of the usual ones. Of a model that shows no states of lower layers, all layers alone.
    """
    n_layer = classifier.engine.model.facts.n_layer
    found = sorted({depth for depth in wanted or [round(share * n_layer) for share in _SHARES] if 0 < depth < n_layer})
    try:
        classifier.core.run(classifier.engine.set_depths, tuple(found))
    except ModelError:
        return (n_layer,)
    return (*found, n_layer)


def common_text(classifier: Classifier, text: str) -> PromptSet:
    """A prompt set that only reads a text to its end, whatever the prompts ask."""
    facts = classifier.engine.model.facts
    prompt = PromptConfig(name="text", prompt_template=text, labels=("a", "b"))
    nothing = np.zeros((facts.n_embd, 2), np.float32)
    head = Head(depth=facts.n_layer, weight=nothing, bias=nothing[0], text=text)
    heads = Heads(path=Path(), model_sha256="", n_layer=facts.n_layer, n_embd=facts.n_embd, prompts={prompt.name: head})
    return compile_prompts([prompt], classifier.engine.model, heads=heads)


def read_states(
    classifier: Classifier,
    prompts: LoadedPrompts,
    queries: Sequence[str],
    depths: tuple[int, ...],
    path: Path,
    on_row: Callable[[], None],
) -> tuple[dict[str, ScoreTable], HalfArray]:
    """The queries' scores by each prompt's texts, and (n_prompts, n_depths, n_queries, n_embd) the unit states at each
    prompt's end, in files that begin with `path`.

    depths: ascending; the last one is all layers, with the final norm.

    What an earlier run has left there is not computed again. Prompts that have only heads get no scores. Raises
    ConfigError for more queries than can be fitted or the disk should hold, and what `classify_batch` raises.
    """
    n_together = classifier.config.runtime.max_batch
    n_embd = classifier.engine.model.facts.n_embd
    exact = prompts.compiled.exact
    shape = (len(prompts.prompts), len(depths), len(queries), n_embd)
    columns = (len(queries), len(_SCORINGS), sum(len(prompt.labels) for prompt in prompts.prompts)) if exact else (0,)
    if len(queries) * n_embd > MOST_NUMBERS:
        raise ConfigError(
            f"{len(queries)} labelled rows, at most {MOST_NUMBERS // n_embd} can be learnt from: give fewer"
        )
    n_bytes, n_free = 2 * math.prod(shape) + 8 * math.prod(columns), shutil.disk_usage(path.parent).free
    is_new = not path.with_suffix(".states.npy").exists()
    if is_new and n_bytes > n_free:
        raise ConfigError(
            f"the states of {len(queries)} rows take {n_bytes >> 20} MiB in {path.parent.parent}, where {n_free >> 20} "
            "are free: give fewer rows, prompts or depths, or another folder in TMPDIR"
        )

    def array(suffix: str, kind: type, shape: tuple[int, ...]) -> Any:
        return np.lib.format.open_memmap(path.with_suffix(suffix), "w+" if is_new else "r+", kind, shape)

    scores: Any = array(".scores.npy", np.float64, columns) if exact else None
    values: HalfArray = array(".states.npy", np.float16, shape)
    n_read = int(values[-1, -1].any(axis=1).sum()) // n_together * n_together  # a row's last states are written last
    for _ in range(n_read):
        on_row()
    for start in range(n_read, len(queries), n_together):
        some = queries[start : start + n_together]
        answers, states = classifier.core.run(classifier.core.answers_and_states, prompts, some, depths[:-1])
        for row, own in enumerate(answers if exact else (), start):
            by_scoring = [prompt_scores(each).by_scoring for each in own]
            scores[row] = [[score for each in by_scoring for score in each[scoring]] for scoring in _SCORINGS]
        values[:, :, start : start + len(some)] = unit_states(states).transpose(1, 2, 0, 3)
        for _ in some:
            on_row()
    return {} if scores is None else _tables(prompts.prompts, scores), values


def _tables(prompts: Sequence[Prompt], scores: FloatArray) -> dict[str, ScoreTable]:
    """The scores by prompt; scores: (n_rows, n_scorings, n_labels of all prompts)."""
    tables, end = {}, 0
    for prompt in prompts:
        begin, end = end, end + len(prompt.labels)
        found = {scoring: scores[:, place, begin:end] for place, scoring in enumerate(_SCORINGS)}
        tables[prompt.name] = ScoreTable(by_scoring={**found, FIRST_TOKEN: found[TREE]}, label_mass=None)
    return tables
