"""The public API: threads, closing, refusals, times, counts, and what a result holds."""

import copy
import hashlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import pytest
from cases import cases
from commands import ROOT, tiny_rows
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import COLOR, ITEM, PromptSpec
from oracle_prompts import assert_alike

from qcls_gguf import Classifier, ConfigError, ModelConfig, PlanError, QclsError, load_config
from qcls_gguf.score.result import STAGES
from qcls_gguf.system import lifetimes
from qcls_gguf.system.lifetimes import Ledger

PROMPTS = [COLOR, replace(ITEM, labels=("dress", "jeans", "none"), scoring="first_token")]
SHARED = [
    PromptSpec(name=name, template=f"<|im_start|>user\nquery: {{query}}<|im_end|>\n{name}:", labels=labels)
    for name, labels in (("color", ("light blue", "light pink", "red", "none")), ("item", ("dress", "jeans", "none")))
]
QUERIES = ["red dress", "", "jeans for girl", "👗", "红色连衣裙", "tank top " * 5]


@pytest.fixture
def classifier(open_classifier: OpenClassifier) -> Classifier:
    return open_classifier("qwen3", PROMPTS)


@cases(
    (SHARED, {}, True),
    (SHARED, {"max_batch": 1}, False),
    (PROMPTS, {}, False),
    ids=["shared", "one at a time", "prefixes of their own"],
)
def test_threads_that_wait_share_a_decode_where_that_pays(
    prompts: list[PromptSpec], options: dict[str, int], is_shared: bool, open_classifier: OpenClassifier
) -> None:
    classifier, queries = open_classifier("qwen3", prompts, **options), QUERIES * 20
    wanted = [classifier.classify(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(classifier.classify, queries))
    assert [result.query for result in results] == queries
    for result, alone in zip(results, wanted, strict=True):
        assert_alike(result, alone)
        assert is_shared or result.results == alone.results
    most = max(result.counts.n_queries for result in results)
    assert 1 < most <= 4 if is_shared else most == 1
    assert any(result.wait_ms > 0 for result in results)
    assert all(result.total_ms == pytest.approx(sum(result.stage_ms.values())) for result in results)


def test_answers_can_be_pickled_and_classifiers_cannot(classifier: Classifier) -> None:
    result = classifier.classify("red dress")
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result
    for take in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match=r"a Classifier cannot be pickled or copied.* make one in each process"):
            take(classifier)


def test_what_a_result_is_asked_and_shows(classifier: Classifier) -> None:
    result = classifier.classify("red dress")
    answer = result["item"]
    assert answer.label == result.labels["item"]
    assert "item" in result
    assert "size" not in result
    with pytest.raises(KeyError, match="'size' is no prompt: there are color, item"):
        result["size"]
    assert len({result, pickle.loads(pickle.dumps(result))}) == 1
    model = classifier.model
    assert repr(classifier) == f"<Classifier of color, item ({model.description}, {model.device})>"
    with classifier.prompt_set(classifier.config.prompts[:1]) as handle:
        assert "PromptHandle of color (" in repr(handle)
    assert repr(handle).endswith(", closed)>")
    classifier.close()
    assert repr(classifier).endswith(", closed)>")


def test_closing_is_idempotent_and_final(write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config("qwen3", PROMPTS)) as classifier:
        model = classifier.model
        classifier.close()
        classifier.close()
    classifier.close()
    for _ in range(2):
        with pytest.raises(QclsError, match="closed"):
            classifier.classify("red dress")
        with pytest.raises(QclsError, match="closed"):
            classifier.classify_batch(["red dress"])
    assert classifier.classify_batch([]) == []
    with pytest.raises(PlanError, match="one query to classify"):
        classifier.classify_batch("red dress")
    with pytest.raises(ConfigError, match=r"made by Classifier\.from_config, not by Classifier\('mission'\)"):
        Classifier("mission")  # type: ignore[arg-type]
    assert (classifier.model, [prompt.name for prompt in classifier.prompts]) == (model, ["color", "item"])


def test_a_queued_decode_changes_no_answer(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a decode is queued, then waited for; that it is done here is all that is made up."""
    wanted = [classifier.classify(query).results for query in QUERIES]
    monkeypatch.setattr(classifier.engine, "_queued", True)
    assert [classifier.classify(query).results for query in QUERIES] == wanted


def test_start_up_is_accounted_for(write_config: WriteConfig) -> None:
    steps: list[tuple[str, str, float]] = []
    loaded: list[float] = []
    config = load_config(write_config("qwen3", PROMPTS))
    with Classifier.from_config(config, on_step=lambda *step: steps.append(step), on_load=loaded.append) as classifier:
        assert {"find model", "load model", "open context", "warm-up"} < classifier.startup_ms.keys()
        assert classifier.startup_ms == {step: ms for step, _, ms in steps}
        assert all(what and ms >= 0 for _, what, ms in steps)
        assert loaded[-1] == 1.0
        classifier.startup_ms.clear()
        assert classifier.startup_ms


def test_a_long_step_is_told_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "_LONG_S", 0.0)
    told: SimpleQueue[tuple[str, str]] = SimpleQueue()
    with Ledger(lambda name, what, ms: told.put((name, what))).at_work("compile prompts", "9 labels"):
        assert told.get(timeout=60) == ("compile prompts", "9 labels, at work …")


def test_a_result_as_plain_values(make_model: MakeModel, classifier: Classifier) -> None:
    result = classifier.classify("红色 dress")
    tree = json.loads(json.dumps(result.to_dict()))
    assert list(tree) == ["query", "total_ms", "stage_ms", "counts", "results", "model", "wait_ms"]
    assert tree["query"] == "红色 dress"
    assert tuple(tree["stage_ms"]) == STAGES == ("tokenize", "plan", "batch", "decode", "score", "cleanup")
    assert min(tree["stage_ms"].values()) >= 0
    assert sum(tree["stage_ms"].values()) == pytest.approx(tree["total_ms"], abs=1e-5)
    assert result.labels == {answer["prompt"]: answer["label"] for answer in tree["results"]}
    for answer, prompt in zip(tree["results"], PROMPTS, strict=True):
        assert (answer["prompt"], [score["label"] for score in answer["scores"]]) == (prompt.name, [*prompt.labels])
        assert {tuple(score) for score in answer["scores"]} == {("label", "score", "probability", "n_tokens")}
        assert answer["label"] == max(answer["scores"], key=lambda score: score["probability"])["label"]
        assert sum(score["probability"] for score in answer["scores"]) == pytest.approx(1, abs=1e-6)
    data = make_model().read_bytes()
    assert tree["model"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert (tree["model"]["size_bytes"], tree["model"]["path"]) == (len(data), str(make_model()))


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_K_M"])
def test_no_other_request_changes_a_winner_of_the_embedded_model(quantization: str, name: str) -> None:
    """In a new classifier, in a batch, after it, with prefixes computed anew; docs/measurements.md has all figures."""
    model = ModelConfig(path=ROOT / "models" / f"fashion-tiny-{quantization}.gguf")
    config = load_config(name).changed(model=model)
    queries = [row["query"] for row in tiny_rows("heldout")[::40]]
    with Classifier.from_config(config) as classifier:
        first = [classifier.classify(query) for query in queries]
    with Classifier.from_config(config) as classifier:
        assert [classifier.classify(query).results for query in queries] == [each.results for each in first]
        together = classifier.classify_batch(queries)
        afterwards = [classifier.classify(query) for query in queries]
        restored = []
        for query in queries:
            classifier.engine.restore()
            restored.append(classifier.classify(query))
    for again in (together, afterwards, restored):
        assert [each.labels for each in again] == [each.labels for each in first]
