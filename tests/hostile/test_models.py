"""Model files that are damaged or odd by structure: an error or an answer, and the process goes on."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import MakeModel
from gguf_parts import put_together, take_apart
from hostile_rows import Row, sizes

from qcls_gguf.model.files import ModelFile
from qcls_gguf.model.rows import OutputRows

SCRIPT = Path(__file__).parents[1] / "mutated_models.py"


def test_a_head_that_names_more_dimensions_than_it_needs(make_model: MakeModel, tmp_path: Path) -> None:
    file = take_apart(make_model())
    for tensor in file.tensors:
        tensor.shape += [1] * (4 - len(tensor.shape))
    path = tmp_path / "four.gguf"
    path.write_bytes(put_together(file))
    np.testing.assert_array_equal(
        OutputRows(ModelFile.read(path)).of([7])[7], OutputRows(ModelFile.read(make_model())).of([7])[7]
    )


@sizes(100, 100_000)
def test_a_mutated_model_ends_no_process(row: Row, n: int) -> None:
    row.name, row.n = "model files", n
    command = [sys.executable, str(SCRIPT), "--seed", str(row.seed), "--count", str(n)]
    command += [] if math.isinf(row.limit_s) else ["--seconds", str(row.limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ended = json.loads(line)
            row.kinds[ended["how"]] += 1
            what = f"seed {ended['seed']}: {ended['how']}: {ended['what']}: {ended['text'][-300:]}"
            row.check(not ended["is_bad"], what)
    assert process.returncode == 0
    row.n, row.n_planned = row.kinds.total(), n
    assert row.n == n or not math.isinf(row.limit_s)
    assert row.kinds["label"] > row.n / 50, "some files must be sound enough to be answered by"
