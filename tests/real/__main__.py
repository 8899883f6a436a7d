"""`make real`: how well a model labels real texts, as a table by task, each way on rows that it was not fitted to.

In tests/, `python -m real [MODEL.gguf]`, SmolLM2 if none is given: the prompt that `init` writes as it is, with its
content-free prior, calibrated, and with the head that `learn` makes of the same rows.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from commands import change, invoked, write_rows
from rich.console import Console
from rich.table import Table

from .texts import Task, model_file, prompt_of, tasks

N_FITTED = 600
FITTED = {"calibrated": ("calibrate", "calibration"), "learnt": ("learn", "heads")}
"""By way the command that writes a file, and the configuration's name for it."""


def accuracies(task: Task, model: Path, folder: Path) -> dict[str, str]:
    """Accuracy in % and log-loss by way; of a way that nothing was written for, a dash."""
    fitted, tested = (
        write_rows(folder / name, [{"query": text, "labels": {task.ask: label}} for text, label in rows])
        for name, rows in (("fitted.jsonl", task.others[:N_FITTED]), ("tested.jsonl", task.rows))
    )
    prompt = prompt_of(task)
    tree = {"name": prompt.name, "system": prompt.system, "user": prompt.user, "labels": [*prompt.labels]}
    config = folder / "config.yaml"

    def evaluated(**keys: object) -> str:
        config.write_text(yaml.safe_dump({"model": {"path": str(model)}, "prompts": [tree]}))
        done = invoked("eval", "-c", change(config, **keys), "--data", tested, "--quiet", "-f", "json")
        found = json.loads(done.stdout)["together"]
        return f"{100 * found['accuracy']:.1f} {found['log_loss']:.2f}"

    ways = {"as it is": evaluated(), "content-free": evaluated(prior="content_free")}
    for way, (command, key) in FITTED.items():
        out = folder / way
        config.write_text(yaml.safe_dump({"model": {"path": str(model)}, "prompts": [tree]}))
        done = invoked(command, "-c", config, "--data", fitted, "--out", out, "--quiet")
        assert done.exit_code in (0, 1), done.stderr  # 1: nothing is better
        ways[way] = evaluated(**{key: str(out)}) if out.exists() else "–"
    return ways


def main(model: str = "") -> None:
    table = Table("task", "labels", "texts", "most frequent", "as it is", "content-free", *FITTED)
    for name, task in tasks().items():
        labels = [label for _, label in task.rows]
        majority = max(map(labels.count, task.labels)) / len(labels)
        with TemporaryDirectory() as folder:
            ways = accuracies(task, Path(model or model_file()), Path(folder))
        table.add_row(name, str(len(task.labels)), str(len(labels)), f"{100 * majority:.1f}", *ways.values())
    Console(width=140).print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
