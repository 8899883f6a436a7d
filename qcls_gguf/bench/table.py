"""A benchmark as text on a terminal: tables, whose rows the HTML report shows too."""

from __future__ import annotations

from rich.console import Group

from ..model.placement import weights_text
from ..report.gpu import GpuSamples, GpuState
from ..report.numbers import NO_VALUE, difference, measured, percent
from ..report.tables import Table, fact_table, terminal_table
from ..timing import STAGES
from .records import BenchmarkRecord, GpuStates, OpenLoopWorkload, Quantiles, RooflineRecord

TIME_COLUMNS = ("total ms", "min", "p50", "p90", "p99", "spread", "roofline", "p50/roofline")
STAGE_COLUMNS = ("stages, p50 ms", *STAGES)
TOKEN_COLUMNS = ("tokens a request", "new", "least", "cached", "decodes", "graphs reused")
START_COLUMNS = ("start", "start-up ms", "first request ms", "after silence ms", "RSS MiB", "GPU memory MiB")
QUEUE_COLUMNS = ("at a fixed rate", "rate/s", "answered/s", "busy", "wait p50 ms", "wait p99 ms", "service p50 ms")
FORWARD_COLUMNS = ("tokens", "min ms", "p50 ms", "p90 ms", "tokens/s", "roofline ms", "p50/roofline")

AB_COLUMNS = ("kernels", "tokens", "min ms", "p50 ms", "spread", "of stock", "range", "difference", "rounding")
CASCADE_COLUMNS = ("cascade", "stage", "of the answers")

Rows = list[list[str]]


def time_rows(record: BenchmarkRecord) -> Rows:
    """The cells of TIME_COLUMNS."""
    return [
        [
            workload.name,
            *_quantile_cells(workload.total_ms),
            percent(workload.p50_spread),
            measured(workload.roofline_ms),
            measured(workload.roofline_ratio),
        ]
        for workload in record.workloads
    ]


def _quantile_cells(ms: Quantiles) -> list[str]:
    return [measured(ms.min), measured(ms.p50), measured(ms.p90), measured(ms.p99)]


def stage_rows(record: BenchmarkRecord) -> Rows:
    """The cells of STAGE_COLUMNS."""
    return [
        [workload.name, *(measured(workload.stage_ms[stage].p50) for stage in STAGES)] for workload in record.workloads
    ]


def token_rows(record: BenchmarkRecord) -> Rows:
    """The cells of TOKEN_COLUMNS."""
    return [
        [
            workload.name,
            *(f"{n:.1f}" for n in (workload.tokens.new, workload.tokens.least, workload.tokens.cached)),
            f"{workload.n_decodes:.1f}",
            f"{workload.graph_reuse_rate:.0%}",
        ]
        for workload in record.workloads
    ]


def cascade_rows(record: BenchmarkRecord) -> Rows:
    """The cells of CASCADE_COLUMNS; no rows without a cascade."""
    return [
        [workload.name, stage, percent(share)]
        for workload in record.workloads
        for stage, share in (workload.stages or {}).items()
    ]


def queue_rows(record: BenchmarkRecord) -> Rows:
    """The cells of QUEUE_COLUMNS; no rows for a closed loop."""
    return [
        [
            workload.name,
            f"{workload.rate:.1f}",
            f"{workload.achieved_rate:.1f}",
            f"{workload.utilization:.0%}",
            measured(workload.wait_ms.p50),
            measured(workload.wait_ms.p99),
            measured(workload.service_ms.p50),
        ]
        for workload in record.workloads
        if isinstance(workload, OpenLoopWorkload)
    ]


def start_rows(record: BenchmarkRecord) -> Rows:
    """The cells of START_COLUMNS."""
    rows = []
    for classifier in record.classifiers:
        memory, idle = classifier.memory, classifier.after_idle
        before, after = memory.vram_free_before_bytes, memory.vram_free_after_bytes
        rows.append(
            [
                classifier.name,
                measured(sum(classifier.startup_ms.values())),
                measured(classifier.first_request_ms),
                NO_VALUE if idle is None else ", ".join(map(measured, idle.ms)),
                f"{memory.rss_after_bytes / 2**20:.0f}",
                NO_VALUE if before is None or after is None else f"{(before - after) / 2**20:.0f}",
            ]
        )
    return rows


def forward_rows(record: BenchmarkRecord) -> Rows:
    """The cells of FORWARD_COLUMNS; none where no sweep was made."""
    return [
        [
            str(size.n_tokens),
            *map(measured, (size.ms.min, size.ms.p50, size.ms.p90)),
            f"{size.tokens_per_s:.0f}",
            measured(size.roofline_ms),
            measured(size.roofline_ratio),
        ]
        for size in (record.forward.sizes if record.forward else ())
    ]


def ab_rows(record: BenchmarkRecord) -> Rows:
    """The cells of AB_COLUMNS, the variants of each size together; none where they were not compared."""
    return [
        [
            variant.name,
            str(size.n_tokens),
            *map(measured, (variant.ms.min, variant.ms.p50)),
            percent(variant.spread),
            f"{variant.ratio:.3f}",
            "–".join(f"{end:.2f}" for end in variant.ratio_range),
            difference(variant.difference),
            difference(size.rounding),
        ]
        for size in (record.forward_ab.sizes if record.forward_ab else ())
        for variant in size.variants
    ]


def facts(record: BenchmarkRecord) -> list[tuple[str, str]]:
    """Where and how it was measured, in rows of a name and a text."""
    environment, method, memory = record.environment, record.method, record.memory
    driver = (environment.gpu and environment.gpu.driver) or "none"
    weights = f", weights: {weights_text(environment.n_lane_ordered)}" if environment.n_gpu_layers else ""
    loop = "each when the last is answered" if method.loop == "closed" else f"{method.rate:g} arrive a second"
    rows = [
        ("model", f"{environment.model}, {environment.quantization}, sha256 {environment.model_sha256[:16]}…"),
        ("device", f"{environment.device}, driver {driver}, {environment.n_gpu_layers} layers on the GPU, "
                   f"{environment.backend}{weights}"),
        ("CPU code", " ".join(environment.instruction_sets) or "no special instruction set"),
        ("machine", f"{environment.cpu}, {environment.n_cores} cores, {environment.n_threads} threads, "
                    f"{environment.os}"),
        ("versions", f"qcls-gguf {environment.package_version}, llama.cpp {environment.llama_cpp_commit} patched "
                     f"({environment.source_digest}), Python {environment.python}"),
        ("requests", f"{method.n_requests} × {method.n_repeats} of each kind, {loop}, {method.order}"),
        ("date", environment.date),
    ]  # fmt: skip
    texts = dict.fromkeys(_roofline_text(classifier.roofline) for classifier in record.classifiers)
    rows += [("roofline", text) for text in texts]
    rows += _gpu_rows(record.gpu) if environment.n_gpu_layers else []
    if record.forward_ab and record.forward_ab.left_out:
        rows.append(("lane order", f"not compared: {record.forward_ab.left_out}"))
    if memory.peak_rss_bytes is not None:
        rows.append(("memory", f"at most {memory.peak_rss_bytes / 2**20:.0f} MiB in the process"))
    return rows


def _gpu_rows(gpu: GpuStates) -> list[tuple[str, str]]:
    """The GPU's clock, power and temperature before, while and after it was measured."""
    if gpu.not_known:
        return [("GPU", f"not known: {gpu.not_known}")]
    texts = {
        "GPU before": _state_text(gpu.before.gpu),
        "GPU while measured": _samples_text(gpu.during),
        "GPU after": _state_text(gpu.after.gpu),
    }
    return [(name, text) for name, text in texts.items() if text]


def _state_text(state: GpuState | None) -> str:
    if state is None:
        return ""
    values = ((state.sm_mhz, "MHz"), (state.power_w, "W"), (state.temperature_c, "°C"))
    return ", ".join(f"{value} {unit}" for value, unit in values if value is not None)


def _samples_text(samples: GpuSamples | None) -> str:
    if samples is None:
        return ""
    ranges = ((samples.sm_mhz, "MHz"), (samples.power_w, "W"), (samples.temperature_c, "°C"))
    parts = [f"{each.min:g} to {each.max:g} {unit}, mostly {each.p50:g}" for each, unit in ranges if each]
    return "; ".join(parts + [f"held down by {name} {share:.0%} of the time" for name, share in samples.brakes.items()])


def _roofline_text(roofline: RooflineRecord) -> str:
    method = roofline.method
    if method is None or roofline.bytes_per_s is None or roofline.operations_per_s is None:
        return f"not measured: {roofline.error}"
    return (
        f"{roofline.weight_bytes / 1e6:.1f} MB of weights at {roofline.bytes_per_s / 1e9:.1f} GB/s (copy), or their "
        f"products at {roofline.operations_per_s / 1e9:.0f} G operations/s ({method.matmul_type}, "
        f"{' × '.join(map(str, method.matmul_shape))}), the larger; without attention, norms, launches and the "
        "host's work"
    )


def record_tables(record: BenchmarkRecord) -> dict[str, Table]:
    """The tables of a record in their order, some without rows."""
    return {
        "time": Table(columns=TIME_COLUMNS, rows=time_rows(record)),
        "queue": Table(columns=QUEUE_COLUMNS, rows=queue_rows(record)),
        "stages": Table(columns=STAGE_COLUMNS, rows=stage_rows(record)),
        "tokens": Table(columns=TOKEN_COLUMNS, rows=token_rows(record)),
        "cascade": Table(columns=CASCADE_COLUMNS, rows=cascade_rows(record), n_text=2),
        "start": Table(columns=START_COLUMNS, rows=start_rows(record)),
        "forward": Table(columns=FORWARD_COLUMNS, rows=forward_rows(record), n_text=0),
        "ab": Table(columns=AB_COLUMNS, rows=ab_rows(record)),
    }


def benchmark_tables(record: BenchmarkRecord) -> Group:
    """The whole record: where and how it was measured, then a table for each part."""
    tables = [terminal_table(table) for table in record_tables(record).values() if table.rows]
    return Group(fact_table(facts(record)), *tables)
