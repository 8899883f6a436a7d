"""`qcls-gguf learn`: labelled queries to heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ConfigError
from ..report.files import Output
from .options import ModelOptions, Reporting, RowOptions, command, option, settings_of
from .terminal import check_outputs, long_work, say


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(RowOptions):
    """What is learnt from, or chosen from to be labelled."""

    data: Path | None = option("--data -d FILE", "Labelled queries, JSON lines or CSV.")
    suggest: int | None = option("--suggest N", "Instead of learning, choose N of --queries to label next.", low=1)
    queries: str | None = option("--queries FILE|-", "Queries without labels, a line each, or a table.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """What is learnt, and where it is written."""

    out: Path | None = option("--out -o FILE", "The file to write. Default: heads.npz; of --suggest, to-label.csv.")
    texts: Literal["own", "common", "both"] = option(
        "--text", "Which texts heads may read: each prompt's own, one for all prompts, or either.", "both"
    )
    common: str = option("--common-text TEXT", "The text for all prompts.", "Text: {query}")
    depths: tuple[int, ...] = option(
        "--depth N", "Layers to try; repeatable. Default: six depths, and all layers.", low=1
    )
    seed: int = option("--seed S", "Seed of the assignment to folds, or of a choice from many queries.", 0, low=0)
    names: tuple[str, ...] = option("--prompt NAME", "A prompt to learn; repeatable. Default: all.")
    force: bool = option("--force", "Overwrite the file.", False)
    resume: bool = option("--resume", "Keep what was read beside --out, and go on from there.", False)


@command
def learn_command(rows: SourceOptions, chosen: LearnOptions, model: ModelOptions, printing: Reporting) -> int | None:
    """Learn, from labelled queries, heads that answer prompts better than their labels' texts, often in fewer layers.

    The data has the format of eval's; 100 to 300 rows a prompt are usual. One pass over the rows reads hidden states at
    several depths. A head is a linear map of one of them to the labels; which depth suffices, and how strongly the map
    is held back, is decided by rows that are left out. A head is kept only if it answers held-out rows better than the
    best scoring of the labels' texts (sign test, 5 %); other prompts stay as they are, with the reason. To use the
    file, add `heads: FILE` to the configuration: layers that no prompt reads are then not computed. See docs/learn.md.

    --suggest N --queries FILE chooses what to label next: queries of whose answers the configuration is least certain,
    and that are unlike each other. It writes a table with empty columns for the labels.

    Exit codes: 0; 1 if no head was kept, so that nothing is written, or a decode failed; 2 for usage, configuration and
    data; 3 for a model that can't be loaded. JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf learn --data labelled.csv --config own.yaml
    qcls-gguf learn --data labelled.jsonl --text common --out heads.npz --force
    qcls-gguf learn --suggest 50 --queries log.txt --data labelled.csv --config own.yaml
    """
    if rows.suggest is not None:
        _suggest(rows, chosen, model, printing)
        return None
    if rows.data is None or rows.queries is not None:
        raise ConfigError("give --data FILE with labelled queries, or --suggest N with --queries FILE")
    check_outputs({"--html": printing.html}, {"--data": rows.data, "--config": model.config, "--out": chosen.out})
    from ..learning.learn import HeadChoices, LearnSettings, learn  # see app.py for why here
    from ..learning.report import learn_document

    out, choices = chosen.out or Path("heads.npz"), settings_of(HeadChoices, chosen)
    settings = settings_of(LearnSettings, rows, chosen, config=model.settings(), out=out, choices=choices)
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


def _suggest(rows: SourceOptions, chosen: LearnOptions, model: ModelOptions, printing: Reporting) -> None:
    from ..learning.suggest import SuggestSettings, suggest, suggest_document, to_label

    if rows.queries is None:
        raise ConfigError("--suggest needs --queries FILE, with queries to choose from")
    out = chosen.out or Path("to-label.csv")
    settings = settings_of(SuggestSettings, rows, chosen, config=model.settings(), n=rows.suggest, out=out)
    with long_work(model.offline, printing.quiet) as opener:
        record = suggest(settings, opener)
    names = [prompt.name for prompt in settings.config.prompts]
    printing.show(record, suggest_document(record), [Output("--out", settings.out, lambda: to_label(record, names))])
    if not printing.quiet:
        say(f"written: {settings.out}; fill in its columns, and give it to `qcls-gguf learn --data`")
