"""`make real`: how well a small real model labels real texts, by cue and prior, as a record and as tables.

In tests/, `python -m real WHAT`: `learning` what heads gain, and scorings; `statements` error rates, over redraws of
three tasks.
"""

import json
import sys

import numpy as np
from rich.console import Console
from rich.table import Table

from . import learning, statements, sweep
from .texts import CACHE, SMOLLM2, tasks

RECORD = CACHE / "record.json"


def main() -> None:
    found = tasks()
    if sys.argv[1:2] == ["learning"]:
        for table in learning.tables(found):
            Console(width=160).print(table)
        return
    if sys.argv[1:2] == ["statements"]:
        print(statements.tables(found))
        return
    record = [
        {"task": name, "wording": wording, "cue": cue, "prior": prior, **each._asdict()}
        for name, task in found.items()
        for wording in sweep.WORDINGS
        for cue, prior, each in sweep.figures(task, wording)
    ]
    about = {
        "model": SMOLLM2.requirement,
        "wordings": sweep.WORDINGS,
        "tuned_on": sweep.TUNED_ON,
        "n_rows": {name: min(sweep.N_ROWS, len(task.rows)) for name, task in found.items()},
        "majority": {name: sweep.majority(task) for name, task in found.items()},
    }
    lines = ",\n".join(
        json.dumps(json.loads(json.dumps(each), parse_float=lambda x: round(float(x), 4))) for each in record
    )
    RECORD.write_text(f'{json.dumps(about)[:-1]}, "ways": [\n{lines}\n]}}\n')
    for figure in ("accuracy", "log_loss", "ece"):
        table = Table(
            "cue", "prior", *(f"{name} {w[0]}" for name in found for w in sweep.WORDINGS), "mean", title=figure
        )
        for cue in sweep.CUES:
            for prior in sweep.PRIORS:
                values = [each[figure] for each in record if (each["cue"], each["prior"]) == (cue, prior)]
                table.add_row(repr(cue), prior, *(f"{value:.3f}" for value in [*values, np.mean(values)]))
        Console(width=220).print(table)
    print(f"record: {RECORD}")


if __name__ == "__main__":
    main()
