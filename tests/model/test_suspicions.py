"""What is said of answers whose right labels nobody knows: all alike, or hanging on what a prompt prefers."""

from pathlib import Path

import numpy as np
import pytest
from commands import invoked
from conftest import WriteConfig
from labelled_tables import CONFIG
from oracle import PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.config.prompt import CONTENT_FREE_QUERIES
from qcls_gguf.report.suspicions import AnswerSample
from qcls_gguf.score.result import Result

WORDS = ["red", "blue", "dark", "light", "dress", "coat", "shirt", "jeans", "wool", "silk"]
QUERIES = [f"{one} {other}" for one in WORDS for other in WORDS]


def test_answers_that_hang_on_what_a_prompt_prefers_are_told(write_config: WriteConfig) -> None:
    """By the same rule, computed from the answers; a label that may be right without content says nothing."""
    specs = [
        PromptSpec(name=f"p{n}{last}", template=f"{n} of {{query}} is", labels=("boy", "girl", "man", last))
        for n in range(8)
        for last in ("woman", "None")
    ]
    with Classifier.from_config(write_config("qwen3", specs)) as classifier:
        results, empty = (list(map(classifier.classify, texts)) for texts in (QUERIES, CONTENT_FREE_QUERIES))
        sample = AnswerSample()
        for result in results[:49]:
            sample.add(result)
        assert sample.suspicions(classifier) == []
        for result in results[49:]:
            sample.add(result)
        found = sample.suspicions(classifier)

    def probabilities(several: list[Result], number: int) -> np.ndarray:
        return np.array([[score.probability for score in each.results[number].scores] for each in several])

    expected = []
    for number, spec in enumerate(specs):
        p, q = probabilities(results, number), probabilities(empty, number).mean(axis=0)
        is_alike = np.bincount(p.argmax(axis=1)).max() >= 95
        changed = int((p.argmax(axis=1) != (p / q).argmax(axis=1)).sum())
        if not is_alike and changed > 50 and spec.labels[-1] == "woman":
            expected.append(f"{spec.name}: {changed}% of 100 answers change without what it prefers whatever the query")
    assert [line.partition(": try")[0] for line in found if "change without" in line] == expected
    assert 0 < len(expected) < 8


def test_a_sample_is_spread_over_the_run_and_none_may_be_right_for_all() -> None:
    with Classifier.from_config(CONFIG) as classifier:
        dress, jeans = classifier.classify("red dress"), classifier.classify("blue jeans")
        sample = AnswerSample()
        for n in range(5000):
            sample.add(dress if n < 4700 else jeans)
        assert sample.suspicions(classifier) == []
        for _ in range(5000):
            sample.add(dress)
        (alike,) = sample.suspicions(classifier)  # its audience is none throughout
        assert alike.startswith("category: 97% of ")


@pytest.mark.parametrize("command", ["label --out out", "run --format labels --queries"])
def test_commands_tell_it_once_and_not_under_quiet(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("queries.txt").write_text("\n".join(f"red dress {n}" for n in range(50)))
    line = [*command.split(), "queries.txt", "--config", CONFIG]
    done = invoked(*line)
    assert done.stderr.count("category: 100% of 50 answers are 'dress': if that cannot be, try another answer_cue") == 1
    assert "if that cannot be" not in invoked(*line, "--quiet").stderr
