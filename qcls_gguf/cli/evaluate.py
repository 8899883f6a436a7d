"""`qcls-gguf eval` and `calibrate`: labelled queries to figures, and to calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.scoring import SCORINGS, parse_scoring
from ..errors import ConfigError
from ..report.files import Output
from .options import (
    LabelledRows,
    ModelOptions,
    Printing,
    Reporting,
    RowOptions,
    command,
    only_one,
    option,
    settings_of,
)
from .terminal import EXIT_OTHER, check_outputs, long_work, needs


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What is evaluated."""

    scoring: tuple[str, ...] = option(f"--scoring {'|'.join(SCORINGS)}", "A scoring; repeatable. Default: all.")
    check_error: bool = option("--check-error", "Also check what the calibration states; 1 if it fails.", False)


@command
def eval_command(
    rows: LabelledRows, chosen: EvaluationOptions, model: ModelOptions, reporting: Reporting
) -> int | None:
    """Measure accuracy and calibration of the scoring modes on labelled queries.

    A line of data is {"query": …, "labels": {prompt: label, or a list of accepted labels}}. CSV has a column query
    (or --query-column) and one for each prompt's name, with accepted labels separated by |; --ignore-columns names
    other columns. A mode is a scoring. Modes are compared on the prompts that all of them can score. One decode a query
    gives the scores of all modes. They are not calibrated. If the configuration has a prior, a temperature or a
    calibration, `calibrated` is one more mode: every prompt in its own scoring with these. JSON is one object;
    `make records` describes its fields. Exit codes: 0; 1 if scores are not finite, a decode failed or a
    statement does; 2 for usage, configuration and data; 3 for a model that can't be loaded.

    --check-error checks the error rates that the configured calibration states, and exits with 1 if one fails: with all
    true, in at most 5 % of the runs. Rows of queries that the calibration was made with don't count.

    \b
    qcls-gguf eval --data labelled.jsonl --scoring tree --scoring joint
    qcls-gguf eval --data labelled.csv --format json --html report.html
    qcls-gguf eval --data new.jsonl --scoring tree --check-error
    """
    from ..evaluation.evaluate import EvaluationSettings, evaluate  # see app.py for why here
    from ..evaluation.report import evaluation_document

    modes = tuple(dict.fromkeys(parse_scoring(name, "--scoring") for name in chosen.scoring or SCORINGS))
    evaluation = settings_of(EvaluationSettings, rows, chosen, config=model.settings(), path=rows.data, modes=modes)
    if reporting.html:
        needs("--html", "matplotlib", "report")
    check_outputs({"--html": reporting.html}, {"--data": rows.data, "--config": model.config})
    with long_work(model.offline, reporting.quiet) as opener:
        record = evaluate(evaluation, opener)
    reporting.show(record, evaluation_document(record))
    failed = record.check is not None and not record.check.holds
    return EXIT_OTHER if record.non_finite or failed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """What is fitted, and where it is written."""

    data: Path | None = option("--data -d FILE", "Labelled queries, JSON lines or CSV.")
    queries: str | None = option("--queries FILE|-", "Unlabelled queries, for a batch prior: a line each, or a table.")
    strength: float = option(
        "--strength S", "Of the batch prior: 0 changes nothing, 1 makes labels alike.", 0.75, low=0, high=1
    )
    target_error: float | None = option(
        "--target-error SHARE", "State an error rate: choose thresholds that keep it.", low=0.0001, high=0.5
    )
    confidence: float = option("--confidence SHARE", "Of that statement.", 0.95, low=0.5, high=0.9999)
    fallback: str | None = option("--fallback TEXT", "The answer below a threshold. Default: the prompt's, or unsure.")
    out: Path = option("--out -o FILE", "The calibration file to write.", Path("calibration.yaml"))
    n_folds: int = option("--folds N", "Folds of the cross-validation.", 5, low=2, high=100)
    seed: int = option("--seed S", "Seed of the assignment to folds.", 0, low=0)
    names: tuple[str, ...] = option("--prompt NAME", "A prompt to fit; repeatable. Default: all.")
    force: bool = option("--force", "Overwrite the calibration file.", False)


@command
def calibrate_command(
    rows: RowOptions, chosen: CalibrationOptions, model: ModelOptions, printing: Printing
) -> int | None:
    """Fit temperatures to labelled queries, or biases to unlabelled ones; or state error rates.

    The data has the format of eval's. Each fit minimises a prompt's log-loss in its configured scoring, after its
    prior. A fit is kept if it lowers the log-loss of rows that it has not seen (cross-validation) by more than one
    standard error; the others are refused and left out of the file. To use the file, add `calibration: FILE` to the
    configuration. `qcls-gguf learn` can also correct which label wins.

    --queries FILE takes at least 50 queries without labels instead: biases take away --strength of what a prompt
    prefers on the whole. That helps small models most, and harms where one label is right for nearly all queries; to
    see what it changes, name the file in the configuration and run eval on labelled rows.

    --target-error SHARE states an error rate instead: it finds for each prompt the lowest threshold with which the
    error among answered queries is at most SHARE, with --confidence over the choice of the rows; all other queries get
    --fallback. The rows must be others than those that fitted a temperature, biases or heads, and like the queries to
    come; docs/stated-error.md says more. Prompts whose error cannot be stated are named, with the rows that would be
    needed, and left out of the file. `eval --check-error` checks it later.

    Exit codes: 0; 1 if every fit or any statement was refused, or a decode failed; 2 for usage, configuration and data;
    3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf calibrate --data labelled.jsonl
    qcls-gguf calibrate --data labelled.csv --prompt category --out category.yaml --force
    qcls-gguf calibrate --queries unlabelled.txt --out prior.yaml
    qcls-gguf calibrate --data labelled.jsonl --target-error 0.05 --fallback "ask a person"
    """
    only_one(queries=chosen.queries, data=chosen.data)
    if chosen.queries is not None:
        _batch_prior(rows, chosen, model, printing)
        return None
    if chosen.data is None:
        raise ConfigError("give --data FILE with labelled queries, or --queries FILE with unlabelled ones")
    if chosen.target_error is not None:
        return _statements(rows, chosen, model, printing)
    from ..learning.calibrate import CalibrationSettings, calibrate, calibration_document  # see app.py for why here

    settings = settings_of(CalibrationSettings, rows, chosen, config=model.settings())
    with long_work(model.offline, printing.quiet) as opener:
        record, text = calibrate(settings, opener)
    return printing.show_fit(
        record,
        calibration_document(record),
        text,
        key="calibration",
        why_not="no fit lowers the held-out log-loss by more than one standard error",
        left_out=[name for name, fit in record.prompts.items() if not fit.accepted],
    )


def _statements(rows: RowOptions, chosen: CalibrationOptions, model: ModelOptions, printing: Printing) -> int:
    from ..learning.calibrate import FitSettings
    from ..learning.statements import StatementRequest, state, statement_document

    settings = settings_of(FitSettings, rows, chosen, config=model.settings())
    with long_work(model.offline, printing.quiet) as opener:
        record, text = state(settings, settings_of(StatementRequest, chosen), opener)
    left_out = [name for name, stated in record.prompts.items() if stated.error is None]
    why_not = "what cannot be stated is named above"
    document = statement_document(record)
    code = printing.show_fit(record, document, text, key="calibration", why_not=why_not, left_out=left_out)
    return EXIT_OTHER if left_out else code


def _batch_prior(rows: RowOptions, chosen: CalibrationOptions, model: ModelOptions, printing: Printing) -> None:
    from ..learning.batch_prior import BatchPriorSettings, batch_prior_document, fit_batch_prior

    settings = settings_of(BatchPriorSettings, rows, chosen, config=model.settings())
    with long_work(model.offline, printing.quiet) as opener:
        record, text = fit_batch_prior(settings, opener)
    printing.show(record, batch_prior_document(record), [Output("--out", chosen.out, lambda: text)])
