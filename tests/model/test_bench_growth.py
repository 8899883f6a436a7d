"""`qcls-gguf bench --growth`: what it asks of how many prompts beside how many foreign cells. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from light_bench import bench

from qcls_gguf import Classifier, PromptConfig, load_config
from qcls_gguf.bench.growth import fill, numbered_prompts, numbers_of_prompts, with_room
from qcls_gguf.bench.records import BenchmarkRecord
from qcls_gguf.prompts.compiled import common_prefix

ROOT = Path(__file__).parents[2]
JOINT = ROOT / "configs" / "fashion-8-joint.yaml"


@pytest.mark.parametrize(("most", "numbers"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8))])
def test_numbers_double_up_to_the_most(most: int, numbers: tuple[int, ...]) -> None:
    assert numbers_of_prompts(most) == numbers


def test_a_number_stands_behind_a_first_line_without_the_query() -> None:
    templates = ("<|im_start|>system\nLabel {query}", "Label {query}\nwell", "Label {query}")
    prompts = [PromptConfig(name=str(i), prompt_template=text, labels=("a", "b")) for i, text in enumerate(templates)]
    numbered = numbered_prompts(prompts, 4)
    assert [prompt.prompt_template for prompt in numbered] == [
        "<|im_start|>system\n0. Label {query}", "1. Label {query}\nwell", "2. Label {query}",
        "<|im_start|>system\n3. Label {query}",
    ]  # fmt: skip
    assert len({prompt.name for prompt in numbered}) == 4


def test_foreign_cells_are_in_the_cache_beside_prompts_that_share_no_beginning() -> None:
    config = with_room(load_config(JOINT), 600)
    config = config.__class__(prompts=numbered_prompts(config.prompts, 10), model=config.model, runtime=config.runtime)
    with Classifier.from_config(config) as classifier:
        before = classifier.classify("red dress").results
        prefixes = [prompt.prefix for prompt in classifier.prompts]
        first_line = common_prefix(prefixes[0], prefixes[1])
        assert first_line < 5 < min(map(len, prefixes))
        n_cells = classifier.engine.cache.n_cells
        fill(classifier.engine, 600)
        assert n_cells < classifier.engine.cache.n_cells <= n_cells + 600
        assert classifier.engine.cache.n_cells > n_cells + 600 - 3 * 5  # numbers may begin with the same token
        assert classifier.classify("red dress").results == before


def test_the_command_writes_both_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcls_gguf.bench.growth.FOREIGN_CELLS", (0, 300))
    page = tmp_path / "growth.html"
    done = bench(
        *("-c", JOINT, "--query-tokens", 3, "-n", 1, "--warm-up", 0, "--repeat", 1, "--growth-to", 3, "--quiet"),
        *("--format", "json", "--html", page),
    )
    assert done.exit_code == 0, done.stderr
    record = BenchmarkRecord.model_validate(json.loads(done.stdout))
    assert record.growth is not None
    assert [(point.n_prompts, point.n_foreign_cells) for point in record.growth.by_prompts] == [(1, 0), (2, 0), (3, 0)]
    assert [(point.n_prompts, point.n_foreign_cells) for point in record.growth.by_foreign_cells] == [
        (8, n) for n in (0, 300)
    ]
    one, _, three = record.growth.by_prompts
    assert three.n_tokens > 2 * one.n_tokens
    assert len({point.n_tokens for point in record.growth.by_foreign_cells}) == 1
    assert "time of a request over prompts and foreign cells" in page.read_text()
