"""Statements of a calibration file, checked on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config.calibration_file import Calibration
from ..config.words import JsonObject
from ..data.labelled import LabelledQuery
from ..errors import ConfigError
from ..report.document import TEXT, Paragraph, Part, Table
from ..report.record import Record
from ..score.result import PromptResult
from ..statistics.stated import p_value_of_error
from .passes import Truth

LEVEL = 0.05
"""With this probability at most statements that are all true are said to fail."""
_LEAST_POWER = 0.5


class Check(Record):
    """One statement about one prompt."""

    prompt: str
    """the prompt's name"""
    stated: float
    """the share of wrong answers among answered queries at most"""
    n_rows: int
    """rows that are labelled for the prompt"""
    n_counted: int
    """how many of these are answered"""
    n_seen: int
    """how many of these have a wrong answer"""
    p_value: float
    """how likely a share as bad as this is where the statement is true"""
    holds: bool
    """whether that is not too unlikely: at least 0.05, divided by the number of statements"""
    power: float
    """with which probability so many rows show that the error is twice the stated one"""


class CheckRecord(Record):
    """The statements of a calibration file on other rows."""

    n_known: int
    """rows that are left out, as their query was among the calibration's"""
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether all do."""
        return all(each.holds for each in self.checks)


def stated_calibration(calibration: Calibration | None) -> Calibration:
    """A calibration with statements. Raises ConfigError for another one, and for none."""
    if calibration is None or calibration.stated is None:
        what = "the configuration names no calibration that states an error rate"
        raise ConfigError(f"`check_error`: {what}: make one with `qcls-gguf calibrate` and `target_error`")
    return calibration


def check_statements(
    calibration: Calibration,
    rows: Sequence[LabelledQuery],
    answers: Sequence[Sequence[PromptResult]],
    truths: Sequence[Truth],
) -> CheckRecord:
    """answers: of each row; truths: of each prompt, in the answers' order. Raises ConfigError without new rows."""
    known = calibration.known([row.query for row in rows])
    if all(known):
        raise ConfigError("`check_error`: the calibration was made with all of these queries: give other rows")
    found: list[JsonObject] = []
    for number, truth in enumerate(truths):
        fit = calibration.prompts.get(truth.prompt.name)
        if fit is None or fit.error is None:
            continue
        new = [place for place, index in enumerate(truth.index) if not known[index]]
        counted = [place for place in new if not answers[truth.index[place]][number].abstained]
        labels = [truth.prompt.labels.index(answers[truth.index[place]][number].label) for place in counted]
        n, n_wrong, target = len(counted), int((~truth.accepted[counted, labels]).sum()), fit.error.target
        seen = {"n_counted": n, "n_seen": n_wrong, "p_value": p_value_of_error(n_wrong, n, target)}
        found.append(
            {"prompt": truth.prompt.name, "n_rows": len(new), "stated": target, "power": _power(n, target), **seen}
        )
    level = LEVEL / max(len(found), 1)
    checks = tuple(Check(**check, holds=check["p_value"] >= level) for check in found)
    return CheckRecord(n_known=sum(known), checks=checks)


def _power(n: int, target: float) -> float:
    """With which probability n answers of an error rate of twice the target are too unlikely under the target."""
    least = next((k for k in range(n + 1) if p_value_of_error(k, n, target) < LEVEL), None)
    return 0.0 if least is None else p_value_of_error(least, n, min(2 * target, 1 - 1e-9))


def check_parts(record: CheckRecord) -> Iterator[Part]:
    """A row for each statement, and what the check cannot see."""
    yield Table(
        title="Statements of the calibration on these rows",
        columns={"prompt": TEXT, "statement": TEXT, "rows": "d", "counted": "d", "seen": ".1%", "p": ".3f", "": TEXT},
        rows=[
            [
                *(each.prompt, f"error at most {each.stated:.3g}", each.n_rows, each.n_counted),
                each.n_seen / each.n_counted if each.n_counted else None,
                *(each.p_value, "holds" if each.holds else "FAILS"),
            ]
            for each in record.checks
        ],
        note="p: how likely a share as bad as this is if the statement is true.",
    )
    if record.n_known:
        yield Paragraph(f"{record.n_known} rows are left out: the calibration was made with their queries", "warning")
    for each in record.checks:
        if each.power < _LEAST_POWER:
            what = f"{each.n_counted} answered rows would show twice the stated error with probability {each.power:.2f}"
            yield Paragraph(f"{each.prompt}: {what}: give more rows", "warning")
