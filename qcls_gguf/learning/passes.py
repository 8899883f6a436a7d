"""One pass over labelled queries: scores by the labels' texts, and states at several depths, in nameless files."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.fitted import Head, Heads
from ..config.prompt import PromptConfig
from ..config.scoring import Scoring
from ..core.handle import PromptHandle
from ..errors import ConfigError, ModelError
from ..evaluation.passes import raw_scores
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.result import PromptResult
from ..score.rows import unit_states
from ..statistics import FloatArray

HalfArray = npt.NDArray[np.float16]
Scores = Mapping[Scoring, FloatArray]
"""(n_rows, n_labels) the scores of one prompt's labels, by scoring"""
MOST_NUMBERS = 1 << 27
"""In the states of all rows at one depth, which are fitted some 140 times."""
_SHARES = (0.4, 0.5, 0.6, 0.67, 0.75, 0.85)
"""of the layers: the depths that are tried"""


def tried_depths(classifier: Classifier, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """The depths at which states are read, ascending, with all layers as the last one.

    wanted: instead of the usual ones. Of a model that shows no states of lower layers, all layers alone.
    """
    n_layer = classifier.engine.model.facts.n_layer
    lower = sorted({depth for depth in wanted or [round(share * n_layer) for share in _SHARES] if 0 < depth < n_layer})
    try:
        classifier.core.run(classifier.engine.set_depths, tuple(lower))
    except ModelError:
        return (n_layer,)
    return (*lower, n_layer)


def common_text(classifier: Classifier, text: str) -> PromptSet:
    """A prompt set that only reads a text to its end, whatever the prompts ask."""
    facts = classifier.engine.model.facts
    prompt = PromptConfig(name="text", prompt_template=text, labels=("a", "b"))
    nothing = np.zeros((facts.n_embd, 2), np.float32)
    head = Head(depth=facts.n_layer, weight=nothing, bias=nothing[0], text=text)
    heads = Heads(model_sha256="", n_layer=facts.n_layer, n_embd=facts.n_embd, prompts={prompt.name: head})
    return compile_prompts([prompt], classifier.engine.model, heads=heads)


def read_states(
    classifier: Classifier,
    handle: PromptHandle,
    queries: Sequence[str],
    depths: tuple[int, ...],
    on_row: Callable[[int], None],
) -> tuple[list[Scores], HalfArray]:
    """The queries' scores by the prompts' texts, and (n_prompts, n_depths, n_queries, n_embd) the unit states at the
    prompts' ends.

    depths: ascending; the last one is all layers, with the final norm; on_row: is told how many queries were read.
    There are scores where the set is exact. The states lie in a file of the folder for temporary ones, which is gone
    with them. Raises ConfigError for more queries than can be fitted or the disk should hold, and what
    `classify_batch` raises.
    """
    n, n_embd = len(queries), classifier.engine.model.facts.n_embd
    shape = (len(handle.prompts), len(depths), n, n_embd)
    if n * n_embd > MOST_NUMBERS:
        raise ConfigError(f"{n} labelled rows, at most {MOST_NUMBERS // n_embd} can be learnt from: give fewer")
    folder, n_bytes = tempfile.gettempdir(), 2 * math.prod(shape)
    if n_bytes > (n_free := shutil.disk_usage(folder).free):
        raise ConfigError(
            f"the states of {n} rows take {n_bytes >> 20} MiB in {folder}, where {n_free >> 20} are free: give fewer "
            "rows, prompts or depths, or another folder in TMPDIR"
        )
    answers: list[tuple[PromptResult, ...]] = []
    with tempfile.TemporaryFile(prefix="qcls-learn-") as file:
        values: HalfArray = np.memmap(file, np.float16, "w+", shape=shape)
    n_together = classifier.config.runtime.max_batch
    for start in range(0, n, n_together):
        batch = queries[start : start + n_together]
        found, states = classifier.core.run(handle.answers_and_states, batch, depths[:-1])
        answers += found if handle.compiled.exact else ()
        values[:, :, start : start + len(batch)] = unit_states(states).transpose(1, 2, 0, 3)
        on_row(start + len(batch))
    return [raw_scores(of_prompt) for of_prompt in zip(*answers, strict=True)], values
