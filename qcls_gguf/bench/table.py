"""A benchmark as text on a terminal: tables, whose rows the HTML report shows too."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..report.results import printable
from ..timing import STAGES
from .records import BenchmarkRecord, OpenLoopWorkload, Quantiles, RooflineRecord

TIME_COLUMNS = ("total ms", "min", "p50", "p90", "p99", "spread", "roofline", "p50/roofline")
STAGE_COLUMNS = ("stages, p50 ms", *STAGES)
TOKEN_COLUMNS = ("tokens a request", "new", "least", "cached", "decodes", "graphs reused")
START_COLUMNS = ("start", "start-up ms", "first request ms", "after silence ms", "RSS MiB", "GPU memory MiB")
QUEUE_COLUMNS = ("at a fixed rate", "rate/s", "answered/s", "busy", "wait p50 ms", "wait p99 ms", "service p50 ms")
FORWARD_COLUMNS = ("tokens", "min ms", "p50 ms", "p90 ms", "tokens/s", "roofline ms", "p50/roofline")

AB_COLUMNS = ("kernels", "tokens", "min ms", "p50 ms", "spread", "of stock", "range", "difference", "rounding")

Rows = list[list[str]]


def time_rows(record: BenchmarkRecord) -> Rows:
    """The cells of TIME_COLUMNS."""
    return [
        [
            workload.name,
            *_quantile_cells(workload.total_ms),
            "–" if workload.p50_spread is None else f"{workload.p50_spread:.1%}",
            _number(workload.roofline_ms),
            _number(workload.roofline_ratio),
        ]
        for workload in record.workloads
    ]


def _quantile_cells(ms: Quantiles) -> list[str]:
    return [_number(ms.min), _number(ms.p50), _number(ms.p90), _number(ms.p99)]


def stage_rows(record: BenchmarkRecord) -> Rows:
    """The cells of STAGE_COLUMNS."""
    return [
        [workload.name, *(_number(workload.stage_ms[stage].p50) for stage in STAGES)] for workload in record.workloads
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


def queue_rows(record: BenchmarkRecord) -> Rows:
    """The cells of QUEUE_COLUMNS; no rows for a closed loop."""
    return [
        [
            workload.name,
            f"{workload.rate:.1f}",
            f"{workload.achieved_rate:.1f}",
            f"{workload.utilization:.0%}",
            _number(workload.wait_ms.p50),
            _number(workload.wait_ms.p99),
            _number(workload.service_ms.p50),
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
                _number(sum(classifier.startup_ms.values())),
                _number(classifier.first_request_ms),
                "–" if idle is None else ", ".join(map(_number, idle.ms)),
                "–" if memory.rss_after_bytes is None else f"{memory.rss_after_bytes / 2**20:.0f}",
                "–" if before is None or after is None else f"{(before - after) / 2**20:.0f}",
            ]
        )
    return rows


def forward_rows(record: BenchmarkRecord) -> Rows:
    """The cells of FORWARD_COLUMNS; none where no sweep was made."""
    return [
        [
            str(size.n_tokens),
            *map(_number, (size.ms.min, size.ms.p50, size.ms.p90)),
            f"{size.tokens_per_s:.0f}",
            _number(size.roofline_ms),
            _number(size.roofline_ratio),
        ]
        for size in (record.forward.sizes if record.forward else ())
    ]


def ab_rows(record: BenchmarkRecord) -> Rows:
    """The cells of AB_COLUMNS, the variants of each size together; none where they were not compared."""
    return [
        [
            variant.name,
            str(size.n_tokens),
            *map(_number, (variant.ms.min, variant.ms.p50)),
            "–" if variant.spread is None else f"{variant.spread:.1%}",
            f"{variant.ratio:.3f}",
            "–".join(f"{end:.2f}" for end in variant.ratio_range),
            _difference(variant.difference),
            _difference(size.rounding),
        ]
        for size in (record.forward_ab.sizes if record.forward_ab else ())
        for variant in size.variants
    ]


def facts(record: BenchmarkRecord) -> Rows:
    """Where and how it was measured, in rows of a name and a text."""
    environment, method, memory = record.environment, record.method, record.memory
    loop = "each when the last is answered" if method.loop == "closed" else f"{method.rate:g} arrive a second"
    rows = [
        ["model", f"{environment.model}, {environment.quantization}, sha256 {environment.model_sha256[:16]}…"],
        ["device", f"{environment.device}, driver {environment.driver or 'none'}, "
                   f"{environment.n_gpu_layers} layers on the GPU, {environment.backend}"],
        ["CPU code", " ".join(environment.instruction_sets) or "no special instruction set"],
        ["machine", f"{environment.cpu}, {environment.n_cores} cores, {environment.n_threads} threads, "
                    f"{environment.os}"],
        ["versions", f"qcls-gguf {environment.package_version}, llama.cpp {environment.llama_cpp_commit} patched "
                     f"({environment.source_digest}), Python {environment.python}"],
        ["requests", f"{method.n_requests} × {method.n_repeats} of each kind, {loop}, {method.order}"],
        ["date", environment.date],
    ]  # fmt: skip
    texts = dict.fromkeys(_roofline_text(classifier.roofline) for classifier in record.classifiers)
    rows += [["roofline", text] for text in texts]
    for when, state in (("before", record.gpu.before), ("after", record.gpu.after)):
        if state.gpu:
            rows.append([f"GPU {when}", ", ".join(f"{name} {value}" for name, value in state.gpu.items())])
    if cut := environment.sm_slice:
        text = (
            f"{cut.n_given} of {cut.n_device} multiprocessors, kernels planned for {cut.n_planned}, without "
            "CUDA graphs: these are no figures of the whole card; its memory, caches and clocks are all there"
        )
        rows.insert(2, ["a slice", text])
    if memory.peak_rss_bytes is not None:
        rows.append(["memory", f"at most {memory.peak_rss_bytes / 2**20:.0f} MiB in the process"])
    return rows


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


def benchmark_tables(record: BenchmarkRecord) -> Group:
    """The whole record: where and how it was measured, then a table for each part."""
    plain = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    plain.add_column(style="bold", no_wrap=True)
    plain.add_column(overflow="fold")
    for row in facts(record):
        plain.add_row(*(Text(printable(cell)) for cell in row))
    plain.add_row()
    parts: list[RenderableType] = [plain]
    for columns, rows in (
        (TIME_COLUMNS, time_rows(record)),
        (QUEUE_COLUMNS, queue_rows(record)),
        (STAGE_COLUMNS, stage_rows(record)),
        (TOKEN_COLUMNS, token_rows(record)),
        (START_COLUMNS, start_rows(record)),
        (FORWARD_COLUMNS, forward_rows(record)),
        (AB_COLUMNS, ab_rows(record)),
    ):
        if rows:
            parts.append(_table(columns, rows))
    return Group(*parts)


def _table(columns: Sequence[str], rows: Rows) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        is_text = index == 0 and not rows[0][0].isdecimal()
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    table.add_row()
    return table


def _difference(value: float | None) -> str:
    return "NOT FINITE" if value is None else "0" if value == 0 else f"{value:.1e}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
