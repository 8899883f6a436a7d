"""Every command's record by the command's name. `python -m qcls_gguf.cli.records` prints docs/records.md."""

from __future__ import annotations

from ..advising.records import AdviceRecord
from ..bench.records import BenchmarkRecord
from ..compare.records import ComparisonRecord
from ..evaluation.records import EvaluationRecord
from ..inspection.local_models import ModelsRecord
from ..inspection.records import Inspection, ShownPrompts
from ..labelling.records import LabellingRecord
from ..learning.learn import LearnRecord
from ..report.record import Record, records_markdown
from ..report.run_record import RunRecord
from ..tuning.batch_prior import BatchPriorRecord
from ..tuning.calibrate import CalibrationRecord

RECORDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "label": LabellingRecord,
    "inspect": Inspection,
    "inspect --show-prompt": ShownPrompts,
    "eval": EvaluationRecord,
    "learn": LearnRecord,
    "calibrate": CalibrationRecord,
    "calibrate --queries": BatchPriorRecord,
    "advise": AdviceRecord,
    "compare": ComparisonRecord,
    "bench": BenchmarkRecord,
    "models": ModelsRecord,
}

_BEGINNING = """\
# Records

What the commands print with `--format json`, and `label` with `--summary json`. Each prints one object (`run` one for a
single query, else a list of them, and with `--format jsonl` one on a line), whose fields are below.
Counts are named `n_*`, times `*_ms` (milliseconds) or `*_s` (seconds), sizes `*_bytes`. A field without a value is
`null`, unless its table says that it is left out. New fields may come with a new version.

This page is generated from the types by `python -m qcls_gguf.cli.records > docs/records.md`.

"""


def records_page() -> str:
    """The text of docs/records.md."""
    return _BEGINNING + records_markdown({f"`qcls-gguf {command}`": record for command, record in RECORDS.items()})


if __name__ == "__main__":
    print(records_page(), end="")
