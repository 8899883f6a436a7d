"""What is said of models with recurrent layers: settings that they cannot have, and memory that is lacking."""

from __future__ import annotations

import re

import pytest
from conftest import MakeModel, OpenClassifier, RunPython, WriteConfig
from oracle_prompts import numbered_prompts

from qcls_gguf import ConfigError


def test_settings_without_kernels_for_recurrent_layers(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    path = make_model("qwen35", weight_type="Q8_0", head_type="Q8_0")
    with pytest.raises(ConfigError, match=r"runtime\.batch_invariant: recurrent layers, .* leave it out, max_batch 1"):
        open_classifier(path, numbered_prompts(2, "joint"), batch_invariant=True)


OPEN_WITH_LITTLE_MEMORY = """
import resource, sys
from qcls_gguf import Classifier, ModelError
small, large = sys.argv[1:]
Classifier.from_config(small).close()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
try:
    Classifier.from_config(large).close()
except ModelError as e:
    print(e)
"""


def test_states_for_which_there_is_no_memory(
    make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    """Half a MiB for each of 1,400 sequences, where 400 MiB of address space are left."""
    small, large = (
        write_config(make_model("falcon-h1"), numbered_prompts(2, "joint"), question_prefixes=n) for n in (1, 1400)
    )
    done = run_python(OPEN_WITH_LITTLE_MEMORY, small, large)
    assert re.search(
        r"could not make a context: (.|\n)*the states of 1,4\d\d sequences take 0\.7 GiB: if memory is lacking, lower "
        r"runtime\.max_batch or question_prefixes",
        done.stdout,
    ), done
