"""Classifiers with a file of heads: answers against the mirror, and no layer computed that nobody reads."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cases import cases, written
from commands import change
from conftest import MakeModel, WriteConfig
from gguf import GGUFReader
from oracle import Oracle, PromptSpec
from oracle_prompts import COMMON, EXACT, mirror, prompt_config, random_head, write_heads

from qcls_gguf import Classifier, ConfigError, OpenModels, PromptHandle, load_config
from qcls_gguf.native import NativeModel
from qcls_gguf.statistics.logistic import N_WORDS

N_LAYER = 4
LABELS = ("red", "light blue", "light pink", "none")
TEXT = "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
QUERIES = ["red dress for girl", "红色连衣裙 👗", ""]
NAMED = {"shape": LABELS[:2], "color": LABELS, "item": ("dress", "coat", "none"), "user": LABELS}
PROMPTS = {name: PromptSpec(name=name, template=f"{TEXT}{name}:", labels=labels) for name, labels in NAMED.items()}


class Opened:
    """Opens classifiers of a model with some of the heads, of which there is one of each kind: on a lower layer, of a
    text of its own, beside the labels' texts after such a text."""

    def __init__(self, path: Path, folder: Path, write_config: WriteConfig) -> None:
        self.path, self._folder, self._write = path, folder, write_config
        rng, words = np.random.default_rng(0), np.ones((N_WORDS, 4), np.float32) * np.arange(4, dtype=np.float32)
        with NativeModel(path) as model:
            n = model.facts.n_embd
        self.heads = {
            "shape": random_head(rng, n, 2, depth=2),
            "color": random_head(rng, n, 4, depth=1, text=COMMON, words=words),
            "item": random_head(rng, n, 3, depth=3, text=COMMON),
            "user": random_head(rng, n, 4, depth=N_LAYER, scale=0.5, text=f"All of them.{COMMON}user:"),
        }

    def config(self, names: Sequence[str], headed: Sequence[str], **runtime: Any) -> Path:
        config = self._write(self.path, [PROMPTS[name] for name in names], **{**EXACT, **runtime})
        with NativeModel(self.path) as model:
            chosen = {name: (PROMPTS[name], self.heads[name]) for name in headed}
            sha256 = hashlib.sha256(self.path.read_bytes()).hexdigest()
            heads = write_heads(self._folder / "heads.npz", model, sha256, chosen)
        return change(config, heads=str(heads))

    def check(self, oracle: Oracle, classifier: Classifier | PromptHandle, headed: Sequence[str]) -> None:
        """Each query alone and all together: heads' answers by the mirror, others by stock logits."""
        alone = [classifier.classify(query) for query in QUERIES]
        for result in [*alone, *classifier.classify_batch(QUERIES)]:
            for answer in result.results:
                found = [score.score for score in answer.scores]
                head, prompt = self.heads[answer.prompt], PROMPTS[answer.prompt]
                if answer.prompt in headed:
                    wanted = mirror(oracle, prompt, head, result.query)
                else:
                    wanted = oracle.score(prompt, result.query)[0]
                np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4)
                assert answer.depth == (head.depth if answer.prompt in headed else None)
                plain = answer.to_dict()
                assert plain.get("scored_by") == ("head" if answer.prompt in headed else None)


@pytest.fixture
def opened(make_model: MakeModel, tmp_path: Path, write_config: WriteConfig) -> Opened:
    return Opened(make_model(n_layer=N_LAYER), tmp_path, write_config)


@cases(
    (["shape", "color", "item", "user"], ["shape", "color", "item", "user"], (1, 2, 3), 0),
    (["shape", "color", "item", "user"], ["shape"], (2,), 0),
    (["user", "item", "color", "shape"], ["color", "user"], (1,), 0),
    (["shape", "color", "item"], ["shape", "color", "item"], (1, 2), 3),
    (["color"], ["color"], (), 1),
)
def test_mirror_answers(names: list[str], headed: list[str], depths: tuple[int, ...], end: int, opened: Opened) -> None:
    with Classifier.from_config(opened.config(names, headed)) as classifier, Oracle(opened.path, **EXACT) as oracle:
        assert (classifier.engine.layout.depths, classifier.engine.layout.last_layer) == (depths, end)
        opened.check(oracle, classifier, headed)
        if names == headed == ["shape", "color", "item"]:  # two of them read one text
            assert classifier.classify("red").counts.n_positions == 2


@pytest.mark.parametrize("name", ["lfm2", "qwen35"])
def test_hybrids(name: str, make_model: MakeModel, tmp_path: Path, write_config: WriteConfig) -> None:
    opened = Opened(make_model(name, n_layer=N_LAYER), tmp_path, write_config)
    names = ["shape", "color", "item"]
    with Classifier.from_config(opened.config(names, names)) as classifier, Oracle(opened.path, **EXACT) as oracle:
        assert classifier.engine.layout.last_layer == 3
        opened.check(oracle, classifier, names)


@pytest.mark.parametrize("name", ["qwen3", "lfm2", "falcon-h1", "gemma3"])
def test_unasked_layers_are_left(name: str, make_model: MakeModel, tmp_path: Path, write_config: WriteConfig) -> None:
    """Answers are those of the whole model, also where the layers above and the head are damaged; the cache shrinks."""
    path = make_model(name, n_layer=N_LAYER)
    opened = Opened(path, tmp_path, write_config)
    names = ["shape", "color"]
    with Classifier.from_config(opened.config(names, names)) as whole:
        assert whole.engine.model.facts.n_left_out == 0
        wanted = [each.labels for each in whole.classify_batch(QUERIES)]
        cache_bytes = whole.engine.context.counters().cache_bytes / whole.engine.context.n_ctx
    damaged = written(tmp_path / "damaged.gguf", path.read_bytes())
    for tensor in GGUFReader(damaged, "r+").tensors:
        if tensor.name.startswith(("blk.2.", "blk.3.", "output.weight")):
            is_head = tensor.name == "output.weight"  # of which rows are read
            tensor.data.view(np.uint8)[...] = 0 if is_head else 255
    opened.path = damaged
    config = opened.config(names, names, question_prefixes=0)
    with Classifier.from_config(config) as classifier, Oracle(path, **EXACT) as oracle:
        model = classifier.engine.model
        assert (model.facts.n_layer, model.facts.n_left_out, classifier.engine.layout.last_layer) == (N_LAYER, 2, 2)
        opened.check(oracle, classifier, names)
        assert [each.labels for each in classifier.classify_batch(QUERIES)] == wanted
        if name == "qwen3":
            assert classifier.engine.context.counters().cache_bytes / classifier.engine.context.n_ctx == cache_bytes / 2
        for audit, headed in ((False, []), (True, ["shape"])):
            with pytest.raises(ConfigError, match="2 of the model's 4 layers are loaded"):
                classifier.prompt_set(opened.config(["shape"], headed), audit=audit)
        opened.check(oracle, classifier, names)
        with classifier.prompt_set(opened.config(["color"], ["color"])) as loaded:
            assert loaded.classify(QUERIES[0]).results[0].depth == 1


@cases(
    (["shape"], ["shape"], {}, False),
    (["shape"], ["shape"], {"question_prefixes": 0}, True),
    (["shape", "color"], ["shape"], {"question_prefixes": 0}, False),
    (["shape", "user"], ["shape", "user"], {"question_prefixes": 0}, False),
)
def test_all_layers_are_loaded_where_something_can_ask_for_them(
    names: list[str], headed: list[str], runtime: dict[str, int], audit: bool, opened: Opened
) -> None:
    with Classifier.from_config(opened.config(names, headed, **runtime), audit=audit) as classifier:
        assert classifier.engine.model.facts.n_left_out == 0
        classifier.classify("red")


def test_models_of_fewer_layers_are_shared_if_they_suffice(opened: Opened) -> None:
    few = load_config(opened.config(["shape"], ["shape"], question_prefixes=0))
    with OpenModels() as models:
        for config, n_models, n_left_out in ((few, 1, 2), (few, 1, 2), (few.changed(heads=None), 2, 0), (few, 2, 0)):
            with Classifier.from_config(config, model=models) as classifier:
                assert (len(models), classifier.engine.model.facts.n_left_out) == (n_models, n_left_out)
                classifier.classify("red")


def test_a_head_replaces_a_prior_and_a_temperature(opened: Opened) -> None:
    config = opened.config(["shape", "color"], ["shape"])
    tree = yaml.safe_load(config.read_text())
    tree["prompts"][0] |= {"prior": "content_free", "temperature": 2.0}
    config.write_text(yaml.safe_dump(tree))
    with Classifier.from_config(config) as classifier, Oracle(opened.path, **EXACT) as oracle:
        opened.check(oracle, classifier, ["shape"])
        for score in classifier.classify("red").results[0].scores:
            assert np.exp(score.score) == pytest.approx(score.probability)


def test_a_prompt_set_at_run_time_gets_the_layers_that_it_needs(opened: Opened) -> None:
    """Without heads, of deeper heads, of exact scores; when it is closed they are not computed any more."""
    names = ["shape", "color"]
    with Classifier.from_config(opened.config(names, names)) as classifier, Oracle(opened.path, **EXACT) as oracle:
        assert classifier.engine.layout.last_layer == 2
        for audit in (False, True):
            with classifier.prompt_set([prompt_config(PROMPTS["user"])], audit=audit) as loaded:
                assert classifier.engine.layout.last_layer == 0
                opened.check(oracle, loaded, [])
                opened.check(oracle, classifier, names)
            assert classifier.engine.layout.last_layer == 2
            opened.check(oracle, classifier, names)
        with classifier.prompt_set(opened.config(["item"], ["item"])) as deeper:
            assert (classifier.engine.layout.depths, classifier.engine.layout.last_layer) == ((1, 2), 3)
            opened.check(oracle, deeper, ["item"])
            opened.check(oracle, classifier, names)


@cases(({"n_layer": N_LAYER, "seed": 1}, "made with the model of sha256"), ({"n_layer": 2}, "a model of 4 layers"))
def test_another_model_is_refused(other: dict[str, int], message: str, opened: Opened, make_model: MakeModel) -> None:
    config = change(opened.config(["shape"], ["shape"]), model={"path": str(make_model(**other))})
    with pytest.raises(ConfigError, match=message):
        Classifier.from_config(config)
