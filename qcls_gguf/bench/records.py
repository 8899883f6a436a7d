"""The record of a benchmark: what `qcls-gguf bench` prints as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config.schema import RuntimeConfig
from ..errors import ConfigError, readable
from ..report.environment import Environment, GpuState
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo


class Quantiles(Record):
    """Quantiles of times, in ms."""

    min: float
    """the smallest"""
    p50: float
    """the median"""
    p90: float
    """90 % quantile"""
    p99: float
    """99 % quantile"""


class SampleTimes(Record):
    """Times of the samples of a probe, in ms: five, of reads and multiplications fifty."""

    best: float
    """the shortest"""
    median: float
    """the middle one"""


class ProbeMethod(Record):
    """How a device was probed: a GPU by a copy and a product; a CPU by reads and by multiplications on registers."""

    device: str
    """its name"""
    n_threads: int
    """CPU threads"""
    memory_bytes: int
    """bytes that were read once, of a copy also written once"""
    memory_ms: SampleTimes
    weight_type: str
    """of the product, or whose products use these multiplications, such as Q4_K"""
    product_shape: tuple[int, int, int] | None
    """inner dimension, rows and columns of the product; null: 10^9 operations on registers"""
    operations_ms: SampleTimes
    bytes_per_s_of_one: float | None
    """what one thread of the CPU reads; null of GPUs, as is the next"""
    operations_per_s_of_one: float | None
    """of one thread; null also where it was a product"""


class RooflineRecord(Record):
    """The least time of a decode: its weights read once, or its multiplications, whichever takes longer."""

    bytes_per_s: float | None = None
    """bandwidth; null where the device could not be probed, as are the next and `method`"""
    operations_per_s: float | None = None
    """of multiplying by weights: a multiplication and an addition are two"""
    weight_bytes: int
    """weights that a decode reads"""
    n_weights_per_token: int
    """weights that every token is multiplied by; two operations each"""
    n_weights_per_row: int
    """weights that are multiplied only by tokens whose hidden state is read"""
    weight_type: str
    """the type that most weights have"""
    method: ProbeMethod | None = None
    error: str | None = None
    """why the device could not be probed"""

    def ms(self, *, n_tokens: float, n_rows: float) -> float | None:
        """Milliseconds that a decode of n_tokens tokens takes at least, of which n_rows are read; None if not known."""
        if self.bytes_per_s is None or self.operations_per_s is None:
            return None
        n_products = self.n_weights_per_token * n_tokens + self.n_weights_per_row * n_rows
        return 1e3 * max(self.weight_bytes / self.bytes_per_s, 2 * n_products / self.operations_per_s)


class Memory(Record):
    """Memory before and after a classifier's start; null where there is no GPU."""

    rss_before_bytes: int
    """memory of the process before the start"""
    rss_after_bytes: int
    """after the start and the first request"""
    vram_free_before_bytes: int | None
    """free memory of all GPUs"""
    vram_free_after_bytes: int | None
    """after the start and the first request"""


class ClassifierRecord(Record):
    """One configuration: its start, its memory, its first request and its roofline."""

    name: str
    """the configuration's name, unique in the record"""
    config: str | None
    """the configuration's file"""
    n_prompts: int
    """prompts that a request answers"""
    scoring: tuple[str, ...]
    """the scorings of its prompts, each once"""
    runtime: RuntimeConfig
    """the configuration's, with the command's options"""
    model: ModelInfo
    startup_ms: dict[str, float]
    """by step of the start-up"""
    first_request_ms: float
    """time of the first request"""
    memory: Memory
    roofline: RooflineRecord


class MeasuringMethod(Record):
    """How the requests were sent."""

    input: str | None
    """the file of the queries; null where queries were made"""
    n_requests: int
    """of each workload in each repetition"""
    n_warm_up: int
    """requests before them that are not counted"""
    n_repeats: int
    """how often all of it was repeated"""


class Tokens(Record):
    """Tokens of a request, on average."""

    new: float
    """tokens fed to the model"""
    cached: float
    """of the rendered prompts, taken from the cache"""
    least: float
    """the least that any plan must feed: the distinct token paths that are not stored"""


class WorkloadRecord(Record):
    """Requests of one size to one configuration, all repetitions together."""

    name: str
    """configuration, queries and batch"""
    config: str
    """the name of the configuration"""
    queries: str
    """the name of the queries"""
    n_prompts: int
    """prompts that a request answers"""
    batch: int
    """queries of a request"""
    n_requests: int
    """requests that were timed"""
    total_ms: Quantiles
    """time of a request as its caller sees it"""
    p50_runs_ms: tuple[float, ...]
    """the median of each repetition"""
    p50_spread: float | None
    """(largest - smallest) / median of p50_runs_ms; null for one repetition"""
    stage_ms: dict[str, Quantiles]
    """by stage of a request"""
    tokens: Tokens
    n_positions: float
    """hidden states that a request reads, on average"""
    n_decodes: float
    """decodes of a request, on average"""
    graph_reuse_rate: float
    """share of the decodes that reused a graph, 0 to 1"""
    cuda_graphs_per_decode: float | None
    """CUDA graphs launched by a decode, on average; null in a build without CUDA"""
    roofline_ms: float | None
    """the least time of the decode by its roofline; null where the device could not be probed"""
    roofline_ratio: float | None
    """the median of the requests, divided by roofline_ms"""
    stages: dict[str, float] | None = left_out_if_none()
    """share of the answers to prompts by the stage that gave them; only of a cascade"""


class BenchmarkRecord(Record):
    """How long requests take, where the time goes, and what the device could do at best."""

    environment: Environment
    """when the last request was answered"""
    classifiers: tuple[ClassifierRecord, ...]
    method: MeasuringMethod
    workloads: tuple[WorkloadRecord, ...]
    gpu_before: GpuState | None
    """the GPU before the first request; null where it cannot be queried, or computed nothing"""


def read_benchmarks(path: Path) -> dict[str, BenchmarkRecord]:
    """The benchmarks of a file that `bench` printed as JSON or `make t4` wrote, by the names of their parts.

    Raises ConfigError for a file without any, or with one that another version wrote.
    """
    try:
        with readable(str(path)):
            whole = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: is not JSON: {e}") from None
    parts: Any = whole.get("parts") if isinstance(whole, dict) else None
    parts = parts if isinstance(parts, dict) else {"": {"printed": whole}}
    found = {}
    for name, part in parts.items():
        value = part.get("printed") if isinstance(part, dict) else None
        if isinstance(value, dict) and "workloads" in value:
            try:
                found[name] = BenchmarkRecord.model_validate(value)
            except ValidationError as e:
                place, what = ".".join(map(str, e.errors()[0]["loc"])), e.errors()[0]["msg"]
                message = f"{path}: {place}: {what}: show it with the version of qcls-gguf that measured it"
                raise ConfigError(message) from None
    if not found:
        raise ConfigError(f"{path}: has no benchmark: give what `qcls-gguf bench` printed as JSON, or `make t4` wrote")
    return found
