"""Passes over queries: answers, and states at several depths, in files; the common texts that are read."""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..config.fitted import Head, Heads
from ..config.prompt import NAME_SLOT, SLOT, PromptConfig
from ..config.words import digest_of
from ..core.handle import PromptHandle
from ..drafting.draft import language_of
from ..engine.capacity import MOST_TOGETHER
from ..errors import ConfigError, ModelError
from ..prompts.compiled import common_prefix
from ..prompts.prompt_set import PromptSet, compile_prompts
from ..score.rows import unit_states

StateRows = npt.NDArray[np.void]
_SHARES = (0.5, 0.67, 0.8, 0.9)
"""of the layers: the depths that are tried"""
_WORD = f'This text: "{SLOT}" means in one word: "'


def common_texts(prompts: Sequence[PromptConfig], queries: Sequence[str], *, is_log: bool, is_few: bool) -> list[str]:
    """Texts that heads of all prompts may read, the one to be preferred first (docs/learn.md).

    The name of the prompt takes the place of `{name}`. is_log: heads are to answer as the prompts do, which they do
    more often after the prompts' own cue; is_few: too few rows to choose by, and to prefer a text for its tokens.
    """
    texts = [_WORD, f'{SLOT}\n\nIn one word, the text above is about: "']
    if language_of(queries) == "zh":
        texts.insert(1, f"这段文字：“{SLOT}”用一个词概括：“")
    if len(prompts) == 1 or any(prompt.expanded_template.count(SLOT) != 1 for prompt in prompts):
        return texts
    if is_log:
        return [_joined(prompts), *texts]
    joined = [_joined(prompts, f"{NAME_SLOT}:"), *texts]
    if is_few or any(not prompt.label_prefix[:1].isspace() for prompt in prompts):
        return joined
    answers = [f"- {prompt.name}{prompt.label_prefix}{prompt.labels[0]}" for prompt in prompts]
    return [_joined(prompts, f"- {NAME_SLOT}", answers), *joined]


def _joined(prompts: Sequence[PromptConfig], cue: str = "", answers: Sequence[str] = ()) -> str:
    """One text of several prompts: how they begin and end alike, all that they say between, and answers as examples,
    which cost a request nothing; last the cue, which a prompt's answer follows; empty: its name and their own.
    """
    before, after = zip(*(prompt.expanded_template.split(SLOT) for prompt in prompts), strict=True)
    start, end = _common_start(before), _common_start(after)
    start = start[: start.rfind("\n") + 1]
    rests = [text.removeprefix(start) for text in before]
    ending = _common_start([rest[::-1] for rest in rests])[::-1]
    ending = re.sub(r"^[^\n<]*(?=[\n<])|^[^\w\s<\[]+", "", ending)  # how sentences and lists end stays with them
    said = dict.fromkeys(rest.removesuffix(ending) for rest in rests)
    between = "\n".join((*filter(None, said), *answers))
    if between and "\n" not in ending:
        ending = f"\n{ending.lstrip()}"
    end, _, own = end.rpartition("\n")
    own = f"{NAME_SLOT} {own.lstrip()}" if own.strip() and len({*after}) == 1 else f"{NAME_SLOT}:"
    return f"{start}{between}{ending}{SLOT}{end}\n{cue or own}"


def _common_start(texts: Sequence[str]) -> str:
    return texts[0][: min(common_prefix(texts[0], text) for text in texts)]


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
    """A prompt set that reads a text to its end, whatever the prompts ask; with `{name}` every prompt's, which their
    labels' texts answer.
    """
    facts, is_own, heads = classifier.engine.model.facts, NAME_SLOT in text, {}
    prompts = [prompt.settings for prompt in classifier.prompts][: None if is_own else 1]
    for prompt in prompts:
        nothing = np.zeros((facts.n_embd, len(prompt.labels)), np.float32)
        read = text.replace(NAME_SLOT, prompt.name)
        heads[prompt.name] = Head(depth=facts.n_layer, weight=nothing, bias=nothing[0], scale=float(is_own), text=read)
    return with_heads(classifier, prompts, heads)


def with_heads(classifier: Classifier, prompts: Sequence[PromptConfig], heads: Mapping[str, Head]) -> PromptSet:
    """Some prompts on a classifier's model, of which heads answer some."""
    model = classifier.engine.model
    of_file = Heads(model_sha256="", n_layer=model.facts.n_layer, n_embd=model.facts.n_embd, prompts=heads)
    return compile_prompts(prompts, model, heads=of_file)


def state_rows(handle: PromptHandle, queries: Sequence[str], depths: Sequence[int], folder: Path | None) -> StateRows:
    """(n,) what is read of n queries, which `read_states` fills: `states` (n_prompts, n_depths, n_embd), `p` and
    `scores` (n_labels,) of all prompts, and `is_read`.

    They lie in a file: without a folder, in a nameless one of the folder for temporary files, which is gone with them;
    in a given one, where rows stay that the same work has read, before it was interrupted.
    Raises ConfigError for more than the disk should hold.
    """
    core, n_labels = handle.core, sum(len(prompt.labels) for prompt in handle.prompts)
    shape = len(handle.prompts), len(depths), core.engine.model.facts.n_embd
    scores = [(name, np.float64, (n_labels,)) for name in ("p", "scores")]
    row = np.dtype([("states", np.float16, shape), *scores, ("is_read", np.bool_)])
    where, n_bytes = folder or tempfile.gettempdir(), len(queries) * row.itemsize
    name = digest_of([handle.compiled.digest, repr(core.info), [*depths], [*queries]])
    path = None if folder is None else folder / name
    if path and path.exists() and path.stat().st_size == n_bytes:
        return np.memmap(path, row, "r+")
    if n_bytes > (n_free := shutil.disk_usage(where).free):
        remedy = "give fewer rows, prompts or depths, or another folder in TMPDIR"
        raise ConfigError(f"states take {n_bytes >> 20} MiB in {where}, where {n_free >> 20} are free: {remedy}")
    with tempfile.TemporaryFile(prefix="qcls-learn-") if path is None else path.open("w+b") as file:
        return np.memmap(file, row, "w+", shape=len(queries))


def read_states(
    handle: PromptHandle, queries: Sequence[str], depths: Sequence[int], rows: StateRows, on_rows: Callable[[int], None]
) -> None:
    """Fill the rows of queries that are not filled yet: the answers, and the unit states at the prompts' ends.

    depths: ascending; the last one is all layers, with the final norm; on_rows: is told how many rows are filled.
    Raises what `classify_batch` raises.
    """
    for start in range(0, len(queries), MOST_TOGETHER):
        batch = slice(start, min(start + MOST_TOGETHER, len(queries)))
        if not rows["is_read"][batch].all():
            answers, ends = handle.core.run(handle.answers_and_states, queries[batch], tuple(depths[:-1]))
            scores = [[score for answer in of_row for score in answer.scores] for of_row in answers]
            rows["states"][batch] = unit_states(ends)
            rows["p"][batch] = [[score.probability for score in of_row] for of_row in scores]
            rows["scores"][batch] = [[score.score for score in of_row] for of_row in scores]
            rows["is_read"][batch] = True
        on_rows(batch.stop)
