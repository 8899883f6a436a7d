"""`qcls-gguf watch`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.words import printable
from .options import Reporting, ScoredModelOptions, argument, command, option
from .terminal import EXIT_OTHER, check_outputs, long_work, say


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What is compared."""

    queries: str = argument("FILE|-", "Queries: a line each, or a table.")
    query_column: str | None = option("--query-column NAME", "The column or key with the queries.")


@command
def watch_command(chosen: WatchOptions, model: ScoredModelOptions, reporting: Reporting) -> int | None:
    """Label queries and compare the answers with those of the rows that the calibration was stated by.

    In windows of 500 queries, a sequential test of each prompt's probabilities, labels, label mass (where the scoring
    is exact) and lengths of queries says when they are unlike the reference that `calibrate --target-error` or `--sets`
    kept; a window in which nothing has changed has an alarm with probability 0.01 at most. `label` and `serve` do the
    same by themselves. Exit codes: 0; 1 for an alarm; 2 for usage, configuration and queries; 3 for a model that can't
    be loaded. JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf watch today.txt --config my.yaml
    """
    from ..report.drift import watch, watch_document  # see app.py for why here

    check_outputs({"--html": reporting.html}, {"FILE": chosen.queries, "--config": model.config})

    def on_alarm(text: str) -> None:
        say(printable(text))

    with long_work(model.offline, reporting.quiet) as opener:
        record = watch(model.settings(), chosen.queries, chosen.query_column, opener, on_alarm=on_alarm)
    reporting.show(record, watch_document(record))
    return EXIT_OTHER if any(each.alarms for each in record.prompts) else None
