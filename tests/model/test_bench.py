"""`qcls-gguf bench`: its record, its requests against the planner, its clock, its refusals. No time is asserted."""

import json
from typing import Any

import pytest
from commands import invoked
from conftest import ROOT, OpenClassifier
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.benchmark import BenchmarkRecord, BenchmarkSettings, benchmark
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.score.result import STAGES

SEPARATE, JOINT = (str(ROOT / "configs" / name) for name in ("fashion-8.yaml", "fashion-8-joint.yaml"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The record and the page of one run of the command."""
    html = tmp_path_factory.mktemp("bench") / "report.html"
    asked = ["-c", SEPARATE, "-c", JOINT, "--batch", 1, "--batch", 2, "-n", 3]
    done = invoked("bench", *asked, "--warm-up", 1, "--repeat", 2, "--format", "json", "--html", html, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout), html.read_text()


def test_a_record_and_its_page_have_the_numbers(written: tuple[dict[str, Any], str]) -> None:
    record, page = written
    assert BenchmarkRecord.model_validate(record).to_dict() == record
    assert "No queries were given: these are about clothes and short" in page
    assert "http" not in page
    assert [each["name"] for each in record["workloads"]] == [
        f"{name}, batch {batch}" for batch in (1, 2) for name in ("fashion-8", "fashion-8-joint")
    ]
    assert all(6e6 < classifier["weight_bytes"] < 7e6 for classifier in record["classifiers"])
    for each in record["workloads"]:
        assert each["name"] in page
        assert (each["n_requests"], list(each["stage_ms"])) == (6, list(STAGES))
        for times in (each["total_ms"], *each["stage_ms"].values()):
            assert list(times.values()) == sorted(times.values())
        assert each["total_ms"]["min"] >= sum(times["min"] for times in each["stage_ms"].values())
        assert 0 <= each["graph_reuse_rate"] <= 1


# --- parts -----------------------------------------------------------------------------------------------------------

QUERIES = ["", "red dress for girls", "孕妇牛仔裤", "<|im_end|>", "light blue jump suit"]
ITEM = "<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
USER = "<|im_start|>system\nanalyze the user<|im_end|>\n<|im_start|>user\nquery: {query}<|im_end|>\nlabel:"
SPECS = [
    COLOR,
    PromptSpec(name="item", template=ITEM, labels=("jump", "jumper", "none")),
    PromptSpec(name="user", template=USER, labels=("boy", "girl", "none")),
]


@pytest.fixture
def classifier(open_classifier: OpenClassifier) -> Classifier:
    return open_classifier("qwen3", SPECS)


def least_tokens(classifier: Classifier, queries: list[str]) -> int:
    """The distinct token paths from position 0 to every hidden state that a score reads, without stored ones.

    The last token of a stored prefix counts if a score reads its hidden state: only its keys and values are stored.
    """

    def beginnings(path: tuple[int, ...]) -> set[tuple[int, ...]]:
        return {path[:n] for n in range(1, len(path) + 1)}

    stored = set().union(*(beginnings(prompt.prefix) for prompt in classifier.prompts))
    needed, read = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for query in queries:
        for prompt in classifier.prompts:
            fragment = prompt.fragment_tokens(classifier.engine.model, query)
            ends: list[tuple[int, ...]] = [(*prompt.opening, *fragment, *prompt.closing)]
            for parent, token in prompt.trie.fed:
                ends.append((*ends[parent], token))
            for node in prompt.trie.read:
                read.add(ends[node])
                needed |= beginnings(ends[node])
    return len((needed - stored) | read)


@pytest.mark.parametrize("queries", [*([query] for query in QUERIES), QUERIES[1:4], QUERIES[1:5]])
def test_the_planner_feeds_the_least(queries: list[str], classifier: Classifier) -> None:
    results = classifier.classify_batch(queries)
    counts, least = results[0].counts, least_tokens(classifier, queries)
    assert least <= counts.n_tokens_new
    if counts.n_decodes == 1 and all(answer.fast_path for result in results for answer in result.results):
        assert least == counts.n_tokens_new


def test_requests_are_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    real = Classifier.classify_batch

    def spy(self: Classifier, queries: Any, **options: Any) -> Any:
        asked.append((len(self.prompts), len(queries)))
        return real(self, queries, **options)

    monkeypatch.setattr(Classifier, "classify_batch", spy)
    configs = (load_config("mission"), load_config("fashion-8"))
    numbers: Any = {"queries": ("red", "blue"), "batches": (1, 2), "n_requests": 2, "n_warm_up": 1, "n_repeats": 1}
    with ClassifierOpener() as opener:
        record = benchmark(BenchmarkSettings(configs=configs, **numbers), opener)
    assert asked == [(2, 1), (8, 1), *[(2, 1), (8, 1)] * 3, *[(2, 2), (8, 2)] * 3]
    assert [workload.n_requests for workload in record.workloads] == [2] * 4
