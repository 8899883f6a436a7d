"""`make real`: how well a model labels real texts, as a table by task, on rows that nothing was fitted to.

In tests/, `python -m real [MODEL.gguf] [--texts FOLDER] [--tasks NAMES] [--seeds N]`; SmolLM2 if no model is given.
What is measured stays in build/real/measured.jsonl, so that a run goes on where another one ended.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from commands import change, invoked, write_rows
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion

from .encoder import encoded
from .texts import CACHE, Task, model_file, tasks

FEW, MANY = 200, 600
"""Rows that a wording is chosen by, and that heads are learnt from; four and ten a label where that is more."""
MEASURED, SEEDS = CACHE / "measured.jsonl", CACHE / "seeds.json"
Way = Callable[[], float | None]


class Proof:
    """One task with one model: the share of right answers by way, None where the command wrote nothing."""

    def __init__(self, task: Task, model: Path, folder: Path) -> None:
        self.task, self.model, self.folder = task, model, folder
        self.sizes = {"few": max(FEW, 4 * len(task.labels)), "many": max(MANY, 10 * len(task.labels))}
        self.files = {
            name: write_rows(folder / f"{name}.jsonl", [{"query": q, "labels": {task.ask: label}} for q, label in rows])
            for name, rows in (*((name, task.others[:n]) for name, n in self.sizes.items()), ("tested", task.rows))
        }

    def ways(self) -> dict[str, Way]:
        """What is measured, in this order: later ways take files of earlier ones."""
        return {
            "quick": lambda: self._drafted("--quick"),
            "chosen": self._drafted,
            "batch prior": lambda: self._fitted("calibrate", "--queries", "few", "calibration"),
            "head, few": lambda: self._fitted("learn", "--data", "few", "heads"),
            "head, many": lambda: self._fitted("learn", "--data", "many", "heads"),
            "words, few": lambda: self._regression("few", self._words),
            "words, many": lambda: self._regression("many", self._words),
            "MiniLM, few": lambda: self._regression("few", encoded),
            "MiniLM, many": lambda: self._regression("many", encoded),
        }

    def _config(self, *options: str) -> Path:
        """What `init` writes; the one that it chooses is written once."""
        out = self.folder / f"config{''.join(options)}.yaml"
        if not out.exists():
            rows = self.files["few"]
            done = invoked("init", "--data", rows, "-m", self.model, "--about", self.task.about, "-o", out, *options)
            assert done.exit_code == 0, done.stderr
            change(out, runtime={"n_threads": 1, "state_cache": False, "long_queries": "head"})
        return out

    def _drafted(self, *options: str) -> float:
        return self._accuracy(self._config(*options))

    def _fitted(self, command: str, option: str, rows: str, key: str) -> float | None:
        config, out = self._config(), self.folder / f"{command} {rows}"
        done = invoked(command, "-c", config, option, self.files[rows], "--out", out, "--quiet")
        assert done.exit_code in (0, 1), done.stderr  # 1: nothing is better
        fitted = self.folder / "fitted.yaml"
        fitted.write_bytes(config.read_bytes())
        return self._accuracy(change(fitted, **{key: str(out)})) if out.exists() else None

    def _accuracy(self, config: Path) -> float:
        done = invoked("eval", "-c", config, "--data", self.files["tested"], "--quiet", "-f", "json")
        assert done.exit_code == 0, done.stderr
        return float(json.loads(done.stdout)["together"]["accuracy"])

    def _words(self, texts: list[str]) -> object:
        both = [("words", TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True))]
        both.append(("pieces", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)))
        union = FeatureUnion(both).fit([text for text, _ in self.task.others[: self.sizes["many"]]])
        return union.transform(texts)

    def _regression(self, rows: str, features: Callable[[list[str]], object]) -> float:
        """A logistic regression, its penalty by five folds."""
        fitted, tested = self.task.others[: self.sizes[rows]], self.task.rows
        both = features([text for text, _ in (*fitted, *tested)])
        search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": [1, 10, 100]}, cv=5)
        search.fit(both[: len(fitted)], [label for _, label in fitted])  # type: ignore[index]
        return float(search.score(both[len(fitted) :], [label for _, label in tested]))  # type: ignore[index]


def measured(task: Task, model: Path, seed: int, wanted: str) -> Iterator[tuple[str, float | None]]:
    """The wanted ways of a task, or all, from the file where it has them."""
    lines = MEASURED.read_text().splitlines() if MEASURED.exists() else []
    known = {tuple(key): value for key, value in map(json.loads, lines)}
    with TemporaryDirectory() as folder:
        for way, measure in Proof(task, model, Path(folder)).ways().items():
            needs_model = not way.startswith(("words", "MiniLM"))
            key = (model.name if needs_model else "", task.name, seed, way)
            if key not in known and wanted and way not in wanted.split(";"):
                continue
            if key not in known:
                began, used = time.monotonic(), time.process_time()
                known[key] = measure(), round(time.monotonic() - began), round(time.process_time() - used)
                with MEASURED.open("a") as file:
                    print(json.dumps([key, known[key]]), file=file)
            yield way, known[key][0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make real", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument(
        "--texts", type=Path, help="a folder with banking_data of banking77 and data_small.json of clinc150"
    )
    parser.add_argument("--tasks", default="", help="names with commas between; default: all")
    parser.add_argument("--ways", default="", help="what to measure, with ; between; default: all")
    parser.add_argument("--seeds", type=int, default=1, help="draws of the texts, by the clock of the first run")
    asked = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if not SEEDS.exists():
        SEEDS.write_text(json.dumps([time.time_ns() // 1000 % 1_000_000 + number for number in range(9)]))
    model = (asked.model or model_file()).resolve()
    rows: dict[str, dict[str, list[float | None]]] = {}
    names = asked.tasks.split(",") if asked.tasks else None
    for seed in json.loads(SEEDS.read_text())[: asked.seeds]:
        for name, task in tasks(seed, asked.texts).items():
            if names is None or name in names:
                labels = [label for _, label in task.rows]
                majority = max(map(labels.count, task.labels)) / len(labels)
                row = rows.setdefault(name, {"labels": [len(task.labels) / 100], "rows": [len(labels) / 100]})
                for way, share in (("majority", majority), *measured(task, model, seed, asked.ways)):
                    row.setdefault(way, []).append(share)
                    print(seed, name, way, share, flush=True)
    columns = list(dict.fromkeys(way for ways in rows.values() for way in ways))
    table = Table("task", *columns, title=model.name)
    for name, ways in rows.items():
        shares = [
            [f"{100 * share:.0f}" if share is not None else "–" for share in ways.get(way, ())] for way in columns
        ]
        table.add_row(name, *map(" ".join, shares))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
