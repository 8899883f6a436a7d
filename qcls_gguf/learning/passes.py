"""Passes over queries: answers, and states at several depths, in nameless files; the common texts that are read."""

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.fitted import Head, Heads
from ..config.prompt import SLOT, PromptConfig
from ..core.handle import PromptHandle
from ..drafting.draft import language_of
from ..engine.capacity import MOST_TOGETHER
from ..errors import ConfigError, ModelError
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.result import PromptResult
from ..score.rows import unit_states

HalfArray = npt.NDArray[np.float16]
_SHARES = (0.5, 0.67, 0.8, 0.9)
"""of the layers: the depths that are tried"""
_WORD = f'This text: "{SLOT}" means in one word: "'
_MOST_LISTED = 40
"""labels of a common text that lists them"""


def common_texts(prompts: Sequence[PromptConfig], queries: Sequence[str]) -> tuple[str, ...]:
    """Texts that heads of all prompts may read, the one that is best on the whole first (docs/learn.md).

    The labels that one of them lists stand before the query, where they cost a request nothing.
    """
    texts = [_WORD, f'{SLOT}\n\nIn one word, the text above is about: "', f"Text: {SLOT}"]
    if language_of(queries) == "zh":
        texts.insert(1, f"这段文字：“{SLOT}”用一个词概括：“")
    if sum(len(prompt.labels) for prompt in prompts) <= _MOST_LISTED:
        lists = "".join(f"{prompt.name}: {', '.join(prompt.labels)}\n" for prompt in prompts)
        texts.append(f"{lists}\n{_WORD}")
    return tuple(texts)


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
    return with_heads(classifier, [prompt], {prompt.name: head})


def with_heads(classifier: Classifier, prompts: Sequence[PromptConfig], heads: Mapping[str, Head]) -> PromptSet:
    """Some prompts on a classifier's model, of which heads answer some."""
    model = classifier.engine.model
    of_file = Heads(model_sha256="", n_layer=model.facts.n_layer, n_embd=model.facts.n_embd, prompts=heads)
    return compile_prompts(prompts, model, heads=of_file)


def states_file(shape: tuple[int, ...]) -> HalfArray:
    """Room for states, in a file of the folder for temporary ones, which is gone with them.

    Raises ConfigError for more than the disk should hold.
    """
    folder, n_bytes = tempfile.gettempdir(), 2 * math.prod(shape)
    if n_bytes > (n_free := shutil.disk_usage(folder).free):
        raise ConfigError(
            f"states take {n_bytes >> 20} MiB in {folder}, where {n_free >> 20} are free: give fewer rows, prompts or "
            "depths, or another folder in TMPDIR"
        )
    with tempfile.TemporaryFile(prefix="qcls-learn-") as file:
        states: HalfArray = np.memmap(file, np.float16, "w+", shape=shape)
    return states


def read_states(
    handle: PromptHandle,
    queries: Sequence[str],
    depths: tuple[int, ...],
    states: HalfArray,
    on_rows: Callable[[int], None],
) -> list[tuple[PromptResult, ...]]:
    """The answers to queries; the unit states at the prompts' ends are put into `states`.

    depths: ascending; the last one is all layers, with the final norm; states: (n_prompts, n_depths, n_queries,
    n_embd); on_rows: is told how many queries were read. Raises what `classify_batch` raises.
    """
    answers: list[tuple[PromptResult, ...]] = []
    for start in range(0, len(queries), MOST_TOGETHER):
        batch = queries[start : start + MOST_TOGETHER]
        found, ends = handle.core.run(handle.answers_and_states, batch, depths[:-1])
        answers += found
        states[:, :, start : start + len(batch)] = unit_states(ends).transpose(1, 2, 0, 3)
        on_rows(start + len(batch))
    return answers
