"""A calibration as text on a terminal."""

from __future__ import annotations

from ..report.tables import Table
from .records import CalibrationRecord, FitRecord


def fits_table(record: CalibrationRecord) -> Table:
    """A row a prompt: its log-loss and ECE before and on held-out rows, its temperature, and the verdict."""
    columns = ("prompt", "rows", "log-loss", "held out", "ECE", "held out", "temperature", "verdict")
    return Table(columns=columns, rows=[_row(name, fit) for name, fit in record.prompts.items()])


def _row(name: str, fit: FitRecord) -> list[str]:
    loss, ece = fit.log_loss, fit.ece
    return [
        name,
        str(fit.n_rows),
        f"{loss.before:.4f}",
        f"{loss.after:.4f}",
        f"{ece.before:.4f}",
        f"{ece.after:.4f}",
        f"{fit.temperature:.3f}",
        f"{'kept' if fit.accepted else 'refused'}: {loss.before - loss.after:+.4f} ± {loss.standard_error:.4f}",
    ]


def outcome(record: CalibrationRecord) -> str:
    """What was written, what was left out, and how to use it, in a line."""
    refused = [name for name, fit in record.prompts.items() if not fit.accepted]
    if record.written is None:
        return "nothing written: no fit lowers the held-out log-loss by more than one standard error"
    left_out = f"; left out: {', '.join(refused)}" if refused else ""
    return f"written: {record.written}{left_out}; to use it, name it in the configuration: `calibration: FILE`"
