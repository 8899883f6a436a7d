"""`qcls-gguf bench`: its record, its requests against the planner, its clock, its refusals. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from light_bench import bench
from oracle import PromptSpec
from typer.testing import CliRunner

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.forward import DEFAULT_TOKENS, forward_tokens
from qcls_gguf.bench.least_tokens import least_tokens
from qcls_gguf.bench.load import Runner, closed_loop, open_loop
from qcls_gguf.bench.subject import Asked, Subject, fits, groups, names_of, started
from qcls_gguf.bench.workloads import QuerySet, generated_queries, mixed_queries
from qcls_gguf.cli.app import app
from qcls_gguf.config.schema import Config
from qcls_gguf.errors import ConfigError, QclsError
from qcls_gguf.native import NativeModel
from qcls_gguf.timing import STAGES

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
SEPARATE, JOINT = (str(ROOT / "configs" / name) for name in ("fashion-8.yaml", "fashion-8-joint.yaml"))
QUERIES = ["", "red dress for girls", "孕妇牛仔裤", "<|im_end|>", "light blue jump suit"]
QUANTILES = ["min", "p50", "p90", "p99"]
SPECS = [
    PromptSpec(
        name="color",
        template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:",
        labels=("light blue", "light pink", "red", "none"),
    ),
    PromptSpec(
        name="item",
        template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\nlabel:",
        labels=("jump", "jumper", "none"),
    ),
    PromptSpec(
        name="user",
        template="<|im_start|>system\nanalyze the user<|im_end|>\n<|im_start|>user\nquery: {query}<|im_end|>\nlabel:",
        labels=("boy", "girl", "none"),
    ),
]


@dataclass(frozen=True)
class Written:
    """What one run of the command wrote."""

    record: dict[str, Any]
    file: dict[str, Any]
    page: str
    stderr: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("bench")
    out, html = folder / "report.json", folder / "report.html"
    done = bench(
        *("-c", SEPARATE, "-c", JOINT, "--query-tokens", "2", "--batch", "1,2", "-n", 3, "--warm-up", 1, "--repeat", 2),
        *("--idle", 0.01, "--tokens", "1,8", "--format", "json", "--out", out, "--html", html, "--quiet"),
    )
    assert done.exit_code == 0, done.stderr
    return Written(json.loads(done.stdout), json.loads(out.read_text()), html.read_text(), done.stderr)


def test_a_record_has_every_part(written: Written) -> None:
    record = written.record
    assert written.file == record
    assert written.stderr == ""
    assert list(record) == [
        "environment", "startup_ms", "classifiers", "method", "workloads", "forward", "forward_ab", "memory", "gpu",
    ]  # fmt: skip
    assert {"device", "gpu", "cpu", "n_cores", "n_threads", "os", "llama_cpp_commit", "source_digest", "date",
            "model_sha256", "quantization", "package_version", "sm_slice"} <= set(record["environment"])  # fmt: skip
    assert record["startup_ms"] == record["classifiers"][0]["startup_ms"]
    assert record["method"]["order"] == "classifiers in turns"
    assert [each["name"] for each in record["workloads"]] == [
        f"{name}, 2 tokens, batch {batch}" for batch in (1, 2) for name in ("fashion-8", "fashion-8-joint")
    ]
    for each in record["classifiers"]:
        assert each["n_prompts"] == 8
        assert each["first_request_ms"] > 0
        assert len(each["after_idle"]["ms"]) == 2
        for name in ("bytes_per_s", "operations_per_s", "weight_bytes", "n_weights_per_token", "n_weights_per_row"):
            assert 0 < each["floor"][name] < math.inf
        assert each["floor"]["method"]["matmul_type"] == "Q8_0"
    assert 0 < record["memory"]["rss_bytes"] <= record["memory"]["peak_rss_bytes"]


def test_a_workload_has_its_numbers(written: Written) -> None:
    for each in written.record["workloads"]:
        assert {"name", "n_prompts", "batch", "n_requests", "total_ms", "stage_ms", "tokens", "graph_reuse_rate",
                "floor_ms", "floor_ratio"} <= set(each)  # fmt: skip
        assert each["n_requests"] == 6
        assert list(each["stage_ms"]) == list(STAGES)
        for times in (each["total_ms"], *each["stage_ms"].values()):
            assert list(times) == QUANTILES
            assert list(times.values()) == sorted(times.values())
        assert (
            each["total_ms"]["min"]
            == each["total_ms_quantiles"][0]
            >= sum(times["min"] for times in each["stage_ms"].values())
        )
        assert set(each["tokens"]) == {"new", "cached", "padded", "least"}
        assert each["tokens"]["least"] <= each["tokens"]["new"]
        assert each["tokens"]["least"] == each["tokens"]["new"] or each["tokens"]["padded"]
        assert len(each["p50_runs_ms"]) == 2
        assert each["p50_spread"] >= 0
        assert 0 <= each["graph_reuse_rate"] <= 1
        assert each["floor_ratio"] == pytest.approx(each["total_ms"]["p50"] / each["floor_ms"])


def test_the_sweep_has_each_size(written: Written) -> None:
    forward = written.record["forward"]
    assert (forward["prompt"], forward["n_outputs"]) == ("category", 2)
    assert [each["n_tokens"] for each in forward["sizes"]] == [1, 8]
    for each in forward["sizes"]:
        assert 0 < each["ms"]["min"] <= each["ms"]["p50"] <= each["ms"]["p90"]
        assert each["tokens_per_s"] == pytest.approx(1000 * each["n_tokens"] / each["ms"]["p50"])
        assert each["floor_ms"] > 0


def test_the_page_stands_alone(written: Written) -> None:
    assert written.page.count("data:image/svg+xml;base64,") == 4  # stages, two sizes of requests, the sweep
    assert "http" not in written.page
    for text in ("fashion-8-joint, 2 tokens, batch 2", "graphs reused", "tokens/s", "silence"):
        assert text in written.page


def test_a_device_that_cannot_be_measured_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe refuses; what was measured before is shown without a floor."""
    page = tmp_path / "report.html"
    arguments = ["--query-tokens", "1", "-n", "1", "--repeat", "1", "--tokens", "1", "--html", str(page), "--quiet"]
    monkeypatch.setattr("qcls_gguf.bench.roofline.COPY_BYTES", 1 << 37)
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 0, done.stderr
    assert "not measured: probe: n_bytes must be between" in " ".join(done.stdout.split())
    assert "not measured" in page.read_text()


def test_a_table_at_a_fixed_rate() -> None:
    """In a process of its own, with the probe as it is."""
    command = [COMMAND, "bench", *("--query-tokens", "1", "-n", "2", "--repeat", "1", "--rate", "500", "--quiet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("fashion-8, 1 token, batch 1", "at a fixed rate", "wait p50", "graphs reused", "p50/floor"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1,9"], "--batch 9: .*max_batch: 4"),
        (["--batch", "0"], "--batch 0: '0' is not a whole number"),
        (["--query-tokens", "6,x"], "'x' is no number or range"),
        (["--query-tokens", "2-3-4"], "'2-3-4' is no number or range"),
        (["--query-tokens", "9-2"], "'9-2' runs backwards: write 2-9"),
        (["--query-tokens", "2-257"], "max_query_tokens: 256"),
        (["--query-tokens", "257"], "max_query_tokens: 256"),
        (["--tokens", "1,100000"], "--tokens 100000: one decode holds"),
        (["--rate", "0"], "must be at least 0.001"),
        (["--rate", "1e-300"], "must be at least 0.001"),
        (["--rate", "nan"], "must be at least 0.001"),
        (["--batch", "1" * 5000], "is not a whole number"),
        (["--input", "x.txt", "--out", "x.txt"], "--out x.txt: is the file of --input: name another"),
        (["--out", "x.json", "--html", "x.json"], "--html x.json: is the file of --out: name another"),
        (["--idle", "-1"], "seconds from 0"),
        (["--input", "missing.txt"], "no such file"),
        (["--input", "x", "--query-tokens", "2"], "both given"),
        (["--out", "missing/report.json"], "--out missing/report.json: cannot be written"),
        (["--html", "missing/report.html"], "--html missing/report.html: cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: str) -> None:
    done = bench(*arguments, "-n", 1, "--repeat", 1, "--quiet")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert re.search(message, done.stderr)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "has no queries"),
        ("\n \n", [], "has no queries"),
        ("red\n", ["--batch", "2"], "1 different queries are too few for --batch 2"),
        ("red\n" + "x " * 600, [], "query 2: the query has 600 tokens"),
        ("red\n\udcff\n", [], "line 2 is not valid UTF-8"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused(text: str, options: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = bench("--input", path, *options, "--quiet")
    assert done.exit_code == 2
    assert re.search(message, done.stderr)


@pytest.fixture
def classifier(make_model: MakeModel, open_classifier: OpenClassifier) -> Classifier:
    return open_classifier(make_model(), SPECS)


def fragments(classifier: Classifier, query: str) -> list[list[int]]:
    tokenizer = classifier.parts.engine.model
    return [tokenizer.tokenize(p.before + query + p.after, parse_special=False).tolist() for p in classifier.prompts]


@pytest.mark.parametrize("queries", [*([query] for query in QUERIES), QUERIES[1:4], QUERIES[1:5]])
def test_the_planner_feeds_the_least(queries: list[str], classifier: Classifier) -> None:
    results = classifier.classify_batch(queries)
    counts = results[0].counts
    least = least_tokens(classifier.prompts, [fragments(classifier, query) for query in queries])
    assert least <= counts.n_tokens_new
    if counts.n_decodes == 1 and all(found.fast_path for each in results for found in each.results):
        assert least == counts.n_tokens_new


@pytest.mark.parametrize("kind", ["bpe", "spm"])
@pytest.mark.parametrize("n_tokens", [1, 2, 5, 12, 40])
def test_made_queries_have_so_many_tokens(kind: str, n_tokens: int, make_model: MakeModel) -> None:
    with NativeModel(make_model("qwen3" if kind == "bpe" else "llama", vocab=kind)) as model:
        found = generated_queries(model, n_tokens)
        assert found == generated_queries(model, n_tokens)
        assert len(set(found.queries)) == len(found.queries) >= 4
        n_before = len(model.tokenize("query", parse_special=False))
        for query in found.queries:
            assert query == query.strip()
            assert len(model.tokenize(f"query {query}", parse_special=False)) == n_before + n_tokens


def test_mixed_queries_have_every_length_equally_often(make_model: MakeModel) -> None:
    with NativeModel(make_model()) as model:
        found = mixed_queries(model, range(2, 6))
        assert found == mixed_queries(model, range(2, 6))
        assert found.name == "2–5 tokens"
        n_before = len(model.tokenize("query", parse_special=False))
        lengths = [len(model.tokenize(f"query {query}", parse_special=False)) - n_before for query in found.queries]
        assert {n: lengths.count(n) for n in set(lengths)} == dict.fromkeys(range(2, 6), 8)
        assert lengths != sorted(lengths)
        assert mixed_queries(model, range(3, 4)) == generated_queries(model, 3)


def test_a_closed_loop_takes_turns(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    real = classifier.classify_batch

    def spy(queries: list[str]) -> Any:
        asked.append(tuple(queries))
        return real(queries)

    monkeypatch.setattr(classifier, "classify_batch", spy)
    runners = [Runner(classifier, [["a"], ["b"]]), Runner(classifier, [["c", "d"]])]
    runners[0].warm_up(1)
    asked.clear()
    done: list[int] = []
    closed_loop(runners, 3, lambda: done.append(len(asked)))
    assert asked == [("a",), ("c", "d"), ("b",), ("c", "d"), ("a",), ("c", "d")]
    assert done == [1, 2, 3, 4, 5, 6]
    for runner in runners:
        samples = runner.samples
        assert len(samples.total_ms) == len(samples.counts) == 3
        assert samples.wait_ms == []
        for i, total in enumerate(samples.total_ms):
            assert total >= sum(samples.stage_ms[stage][i] for stage in STAGES)


def test_an_open_loop_counts_from_the_arrival(classifier: Classifier) -> None:
    """Far faster than it can be answered: each waits for those before it, and its time includes the wait."""
    runner = Runner(classifier, [["red dress"]])
    runner.warm_up(2)
    rate, n = 1e6, 10
    open_loop(runner, n, rate, lambda: None)
    samples = runner.samples
    assert len(samples.total_ms) == len(samples.wait_ms) == n
    service = [total - wait for total, wait in zip(samples.total_ms, samples.wait_ms, strict=True)]
    assert all(ms > 0 for ms in service)
    for (wait, following), took in zip(pairwise(samples.wait_ms), service, strict=False):
        assert following >= wait + took - 1e3 / rate - 1e-6  # it arrived one interval later
    assert samples.elapsed_s * 1e3 >= sum(service)


def test_an_open_loop_waits_for_arrivals(classifier: Classifier) -> None:
    """Slower than it is answered: nothing is sent before it arrives, and the whole takes its intervals."""
    runner = Runner(classifier, [["red dress"]])
    begun = perf_counter_ns()
    open_loop(runner, 4, 20.0, lambda: None)
    assert perf_counter_ns() - begun >= 3 * 50e6
    assert runner.samples.elapsed_s >= 0.15
    assert all(wait >= 0 for wait in runner.samples.wait_ms)


def test_sizes_beyond_a_decode_are_left_out_or_refused(classifier: Classifier) -> None:
    n_batch = classifier.parts.engine.context.n_batch
    assert forward_tokens(classifier, None) == tuple(n for n in DEFAULT_TOKENS if n <= n_batch)
    assert forward_tokens(classifier, [n_batch, 1]) == (n_batch, 1)
    with pytest.raises(ConfigError, match=f"holds {n_batch} tokens"):
        forward_tokens(classifier, [1, n_batch + 1])


def test_names_tell_configurations_apart() -> None:
    configs = [load_config(SEPARATE), load_config(JOINT), load_config(SEPARATE)]
    assert names_of(configs) == ["fashion-8", "fashion-8-joint", "fashion-8 (2)"]


@pytest.mark.parametrize("together", [True, False])
def test_classifiers_are_opened_as_memory_allows(
    together: bool, make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[Config] = [load_config(write_config(make_model(), SPECS[:n])) for n in (1, 2, 3)]
    if not together:
        monkeypatch.setattr("qcls_gguf.bench.subject.available_bytes", lambda: 1 << 10)
    queries = QuerySet(name="q", queries=("red dress", "coat"))
    asked = Asked(given=queries, lengths=(), first_batch=1, largest_batch=2)
    opened: list[Classifier] = []
    sizes = []
    for group in groups(
        configs, lambda name, config: started(name, config, asked, offline=True, on_step=None, on_load=None)
    ):
        sizes.append(len(group))
        opened += [subject.classifier for subject in group]
        for subject in group:
            assert subject.first_request_ms > 0
            assert len(subject.classifier.classify("red dress").labels) == len(subject.classifier.prompts)
    assert sizes == ([3] if together else [1, 1, 1])
    for classifier in opened:
        with pytest.raises(QclsError, match="closed"):
            classifier.classify("red dress")


@pytest.mark.parametrize(("after", "n_more"), [(9.0, 1), (3.3, 1), (5.7, 2), (3.1, 0)])
def test_a_gpu_holds_more_classifiers_in_what_the_first_left(after: float, n_more: int, classifier: Classifier) -> None:
    """The first took 2 GiB; each further one is counted as 2.4, and 1 GiB stays free."""
    parts = classifier.parts
    on_gpu = Classifier(dataclasses.replace(parts, model=dataclasses.replace(parts.model, n_gpu_layers=9)))
    gib = 1 << 30
    memory: dict[str, int | None] = {
        "vram_free_before_bytes": int((after + 2) * gib),
        "vram_free_after_bytes": int(after * gib),
    }
    subject = Subject(name="s", classifier=on_gpu, sets=(), first_request_ms=0.0, memory=memory)
    assert fits(subject, n_more) == (after >= 1 + 2.4 * n_more)
    in_memory = dataclasses.replace(subject, classifier=classifier)
    assert fits(in_memory, n_more)  # on the CPU the memory of a GPU does not matter
