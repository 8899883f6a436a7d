"""`qcls-gguf advise`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.words import printable_lines
from ..report.files import Output, write_schema
from .options import ColumnOptions, ModelOptions, Reporting, command, option, settings_of
from .terminal import EXIT_OTHER, check_outputs, long_work, say, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOptions:
    """What is tried, on which queries, and what counts as equal."""

    data: Path | None = option("--data -d FILE", "Labelled queries, JSON lines or CSV.")
    queries: Path | None = option("--queries FILE", "Instead: queries without labels, lines, CSV or JSON lines.")
    min_agreement: float = option(
        "--min-agreement SHARE", "Least share of equal answers in every prompt.", 0.98, low=0.5, high=1.0
    )
    also: tuple[Path, ...] = option(
        "--also FILE|NAME",
        "Another configuration to compare, with the same prompts, perhaps another model; repeatable.",
    )
    cascade: float | None = option(
        "--cascade SHARE", "Also fit a cascade with this agreement on unseen queries.", low=0.5, high=0.9999
    )
    write: Path | None = option("--write OUT.yaml", "Write the recommended configuration.")
    force: bool = option("--force", "Overwrite the written configuration.", False)


@command
def advise_command(chosen: AdviceOptions, rows: ColumnOptions, model: ModelOptions, reporting: Reporting) -> int | None:
    """Find the fastest configuration that still answers like yours, on your queries.

    Candidates are derived from the configuration: one text for all prompts, shorter last words. Each
    is opened as an ordinary configuration and asked the same queries in turns, request by request. A table compares
    their answers with those of the configuration, prompt by prompt, and their tokens and times. The recommendation is
    the fastest candidate that keeps --min-agreement in every prompt. Labelled queries add accuracies; rows that cannot
    be used are skipped and counted. --also compares another configuration, too, with the model that it names or else
    this one's.

    --cascade SHARE also fits a cascade: the candidate that saves most is asked first, and the configuration answers
    only the prompts whose probability is below a threshold. The thresholds are proposed by one half of the queries and
    accepted by the other half, so that with 95 % confidence each prompt agrees with the configuration in at least that
    share of unseen queries. --write writes it as two files, OUT.yaml and OUT-first-stage.yaml.

    JSON is one object; docs/records.md describes its fields. Exit codes: 0; 1 if --write was given and nothing is
    recommended, or a decode failed; 2 for usage, configuration and queries; 3 for a model that can't be loaded.

    \b
    qcls-gguf advise --config fashion-8 --queries queries.txt
    qcls-gguf advise --config shop.yaml --data labelled.jsonl --write faster.yaml --html advice.html
    qcls-gguf advise --config shop.yaml --data labelled.jsonl --also smaller-model.yaml --cascade 0.99
    """
    from ..advising.advise import AdviceSettings, advise  # see app.py for why here
    from ..advising.comparison import STAGE_FILE
    from ..advising.records import advice_document
    from ..config.load import load_config

    write = chosen.write
    inputs = {"--data": chosen.data, "--queries": chosen.queries, "--config": model.config}
    check_outputs({"--html": reporting.html}, inputs)
    check_outputs({"--write": write}, {**inputs, "--html": reporting.html}, force=chosen.force)
    also = tuple(map(load_config, chosen.also))
    advice = settings_of(AdviceSettings, chosen, rows, config=model.settings(), also=also)
    with long_work(model.offline, reporting.quiet) as opener:
        record = advise(advice, opener)
    record = record.model_copy(update={"notes": tuple(map(with_options, record.notes))})
    outputs = []
    best = record.best
    if write and best is not None:
        text = best.yaml or ""
        if (first := best.cascade) is not None:
            beside = write.with_name(f"{write.stem}-{STAGE_FILE}")
            text = text.replace(f"config: {STAGE_FILE}", f"config: {beside.name}")
            outputs.append(Output("--write", beside, lambda: first.yaml))
        outputs.append(Output("--write", write, lambda: text))
    reporting.show(record, advice_document(record), outputs)
    if write and best is not None:
        write_schema(write)
    if write and not reporting.quiet:
        done = f"written: {write}" if best is not None else "nothing written: nothing is recommended"
        say(printable_lines(done))
    return EXIT_OTHER if write and best is None else None
