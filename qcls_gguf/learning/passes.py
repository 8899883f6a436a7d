"""One pass over labelled queries: scores by the labels' texts, and states at several depths, on disk."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.heads_file import Head, Heads
from ..config.prompt import PromptConfig
from ..core.handle import LoadedPrompts
from ..errors import ConfigError, ModelError
from ..evaluation.passes import PromptScores, RowScores, prompt_scores
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.heads import unit_states

HalfArray = npt.NDArray[np.float16]
MOST_NUMBERS = 1 << 27
"""In the states of all rows at one depth, which are fitted at once: a gibibyte."""
_SHARES = (0.4, 0.5, 0.6, 0.67, 0.75, 0.85)
"""of the layers: the depths that are tried"""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The states of some texts at several depths, stored in a file."""

    depths: tuple[int, ...]
    """layers; the last one is all, with the final norm"""
    values: HalfArray
    """(n_texts, n_depths, n_rows, n_embd) unit states"""


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
) -> tuple[list[RowScores], States]:
    """The queries' scores by each prompt's texts, and the states at each prompt's end, in a file at `path`.

    What an earlier run has left there, and beside it the scores, is not computed again. Raises ConfigError for more
    queries than memory or the disk should hold, and what `classify_batch` raises.
    """
    n_together = classifier.config.runtime.max_batch
    n_embd = classifier.engine.model.facts.n_embd
    shape = (len(prompts.prompts), len(depths), len(queries), n_embd)
    if len(queries) * n_embd > MOST_NUMBERS:
        raise ConfigError(
            f"{len(queries)} labelled rows, at most {MOST_NUMBERS // n_embd} can be learnt from: give fewer"
        )
    n_bytes, n_free = 2 * math.prod(shape), shutil.disk_usage(path.parent).free
    kept = path.with_suffix(".jsonl")
    scores = _kept_scores(kept) if path.exists() else []
    if not scores and n_bytes > n_free:
        raise ConfigError(
            f"the states of {len(queries)} rows take {n_bytes >> 20} MiB in {path.parent.parent}, where {n_free >> 20} "
            "are free: give fewer rows, prompts or depths, or another folder in TMPDIR"
        )
    values: Any = np.lib.format.open_memmap(path, "r+" if scores else "w+", np.float16, shape)
    for _ in scores:
        on_row()
    with kept.open("a" if scores else "w") as file:
        for start in range(len(scores), len(queries), n_together):
            some = queries[start : start + n_together]
            answers, states = classifier.core.run(classifier.core.answers_and_states, prompts, some, depths[:-1])
            values[:, :, start : start + len(some)] = unit_states(states).transpose(1, 2, 0, 3)
            for own in answers:
                scores.append({each.prompt: prompt_scores(each) for each in own})
                plain = {name: asdict(each) for name, each in scores[-1].items()}
                print(json.dumps(plain), file=file)
                on_row()
            file.flush()  # a line stands there when its states do
    return scores, States(depths=depths, values=values)


def _kept_scores(path: Path) -> list[RowScores]:
    """The whole lines of a file of scores, which is cut after them."""
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    with path.open("r+b") as file:
        file.truncate(len(whole) + 1 if whole else 0)
    lines = whole.decode().splitlines()
    return [{name: PromptScores(**each) for name, each in json.loads(line).items()} for line in lines]
