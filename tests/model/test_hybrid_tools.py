"""What is said of models with recurrent layers: how their requests are planned, and settings that they cannot have."""

from __future__ import annotations

import re

import pytest
from conftest import MakeModel, OpenClassifier, RunPython, WriteConfig
from oracle import PromptSpec
from oracle_prompts import TOPICS, make_template, numbered_prompts

from qcls_gguf import ConfigError
from qcls_gguf.advising.candidate import Candidate
from qcls_gguf.advising.planning import Planned, Planner, worth_trying
from qcls_gguf.model import Model

QUERIES = ["red dress for girl", "", "dark blue", "x"]


@pytest.mark.parametrize("pass_tokens", [4, 48])
@pytest.mark.parametrize("style", ["separate", "joint"])
def test_advise_plans_what_is_fed(
    style: str,
    pass_tokens: int,
    make_model: MakeModel,
    open_classifier: OpenClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A candidate is worth trying by its tokens and passes, on a CPU as on a GPU."""
    monkeypatch.setattr(Model, "pass_tokens", pass_tokens)
    classifier = open_classifier(make_model("qwen35"), numbered_prompts(4, style))
    planner = Planner(classifier.config, classifier.engine.model, QUERIES)
    planned = planner.plan(Candidate(name="same", why="", config=classifier.config))
    counts = [classifier.classify(query).counts for query in QUERIES]
    assert [each.n_tokens for each in planned.requests] == [each.n_tokens_new for each in counts]
    assert [len(each.decodes) for each in planned.requests] == [each.n_decodes for each in counts]
    assert planned.cost == planned.n_tokens + pass_tokens * planned.n_decodes
    assert planned.n_decodes > 1 or pass_tokens == 48


def test_one_text_is_not_tried_where_a_pass_more_is_dearer_than_its_tokens(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fed for each of the prompts then, as if they had texts of their own."""
    found: dict[str, tuple[Planner, Planned]] = {}
    labels = ("red", "dress", "none")
    monkeypatch.setattr(Model, "pass_tokens", 30)
    for style in ("separate", "joint"):
        prompts = [PromptSpec(name=t, template=make_template(style, t), labels=labels) for t in TOPICS[:2]]
        classifier = open_classifier(make_model("qwen35"), prompts)
        planner = Planner(classifier.config, classifier.engine.model, QUERIES)
        found[style] = planner, planner.plan(Candidate(name=style, why="", config=classifier.config))
    (planner, apart), (_, joint) = found["separate"], found["joint"]
    chosen, others = worth_trying(planner, [joint.candidate], apart)
    assert joint.cost == apart.cost
    assert not chosen
    assert others[0].reason.startswith(f"feeds {joint.n_tokens:.1f} tokens in {joint.n_decodes:.1f} passes a request")
    assert [each.candidate.name for each in worth_trying(planner, [joint.candidate], None)[0]] == ["joint"]


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
