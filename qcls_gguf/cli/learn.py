"""`qcls-gguf learn`: labelled queries to heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .options import LabelledRows, ModelOptions, Printing, command, option, settings_of
from .terminal import long_work


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """What is learnt, and where it is written."""

    out: Path = option("--out -o FILE", "The file of heads to write.", Path("heads.npz"))
    texts: Literal["own", "common", "both"] = option(
        "--text", "Which texts heads may read: each prompt's own, one for all prompts, or either.", "both"
    )
    common: str = option("--common-text TEXT", "The text for all prompts.", "Text: {query}")
    depths: tuple[int, ...] = option(
        "--depth N", "Layers to try; repeatable. Default: six depths, and all layers.", low=1
    )
    seed: int = option("--seed S", "Seed of the assignment to folds.", 0, low=0)
    names: tuple[str, ...] = option("--prompt NAME", "A prompt to learn; repeatable. Default: all.")
    force: bool = option("--force", "Overwrite the file.", False)
    resume: bool = option("--resume", "Keep what was read beside --out, and go on from there.", False)


@command
def learn_command(rows: LabelledRows, chosen: LearnOptions, model: ModelOptions, printing: Printing) -> int | None:
    """Learn, from labelled queries, heads that answer prompts better than their labels' texts, often in fewer layers.

    The data has the format of eval's; 100 to 300 rows a prompt are usual. One pass over the rows reads hidden states at
    several depths. A head is a linear map of one of them to the labels; which depth suffices, and how strongly the map
    is held back, is decided by rows that are left out. A head is kept only if it answers held-out rows better than the
    best scoring of the labels' texts (sign test, 5 %); other prompts stay as they are, with the reason. To use the
    file, add `heads: FILE` to the configuration: layers that no prompt reads are then not computed. See docs/learn.md.

    Exit codes: 0; 1 if no head was kept, so that nothing is written, or a decode failed; 2 for usage, configuration and
    data; 3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf learn --data labelled.csv --config own.yaml
    qcls-gguf learn --data labelled.jsonl --text common --out heads.npz --force
    """
    from ..learning.learn import HeadChoices, LearnSettings, learn  # see app.py for why here
    from ..learning.report import learn_document

    choices = settings_of(HeadChoices, chosen)
    settings = settings_of(LearnSettings, rows, chosen, config=model.settings(), choices=choices)
    with long_work(model.offline, printing.quiet) as opener:
        record, content = learn(settings, opener)
    return printing.show_fit(
        record,
        learn_document(record),
        content,
        key="heads",
        why_not="no head is better than the labels' texts",
        left_out=[name for name, each in record.prompts.items() if not each.kept],
    )
