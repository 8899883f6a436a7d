"""A benchmark for people: tables on standard output. The rows are those of the HTML report too."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from ..report.numbers import difference as _difference
from ..report.numbers import measured as _number
from ..report.tables import Table, fact_table, terminal_table
from ..timing import STAGES

TIME_COLUMNS = ("total ms", "min", "p50", "p90", "p99", "spread", "floor", "p50/floor")
STAGE_COLUMNS = ("stages, p50 ms", *STAGES)
TOKEN_COLUMNS = ("tokens a request", "new", "least", "cached", "decodes", "graphs reused")
START_COLUMNS = ("start", "start-up ms", "first request ms", "after silence ms", "RSS MiB", "GPU memory MiB")
QUEUE_COLUMNS = ("at a fixed rate", "rate/s", "answered/s", "busy", "wait p50 ms", "wait p99 ms", "service p50 ms")
FORWARD_COLUMNS = ("tokens", "min ms", "p50 ms", "p90 ms", "tokens/s", "floor ms", "p50/floor")

AB_COLUMNS = ("kernels", "tokens", "min ms", "p50 ms", "spread", "of stock", "range", "difference", "rounding")

Rows = list[list[str]]


def time_rows(record: dict[str, Any]) -> Rows:
    """The cells of TIME_COLUMNS."""
    return [
        [
            each["name"],
            *(_number(each["total_ms"][name]) for name in ("min", "p50", "p90", "p99")),
            "–" if each["p50_spread"] is None else f"{each['p50_spread']:.1%}",
            _number(each["floor_ms"]),
            _number(each["floor_ratio"]),
        ]
        for each in record["workloads"]
    ]


def stage_rows(record: dict[str, Any]) -> Rows:
    """The cells of STAGE_COLUMNS."""
    return [
        [each["name"], *(_number(each["stage_ms"][stage]["p50"]) for stage in STAGES)] for each in record["workloads"]
    ]


def token_rows(record: dict[str, Any]) -> Rows:
    """The cells of TOKEN_COLUMNS."""
    return [
        [
            each["name"],
            *(f"{each['tokens'][name]:.1f}" for name in ("new", "least", "cached")),
            f"{each['n_decodes']:.1f}",
            f"{each['graph_reuse_rate']:.0%}",
        ]
        for each in record["workloads"]
    ]


def queue_rows(record: dict[str, Any]) -> Rows:
    """The cells of QUEUE_COLUMNS; none where the next request came when the answer was there."""
    return [
        [
            each["name"],
            f"{each['rate']:.1f}",
            f"{each['achieved_rate']:.1f}",
            f"{each['utilization']:.0%}",
            _number(each["wait_ms"]["p50"]),
            _number(each["wait_ms"]["p99"]),
            _number(each["service_ms"]["p50"]),
        ]
        for each in record["workloads"]
        if "wait_ms" in each
    ]


def start_rows(record: dict[str, Any]) -> Rows:
    """The cells of START_COLUMNS."""
    rows = []
    for each in record["classifiers"]:
        memory, idle = each["memory"], each["after_idle"]
        before, after = memory["vram_free_before_bytes"], memory["vram_free_after_bytes"]
        rows.append(
            [
                each["name"],
                _number(sum(each["startup_ms"].values())),
                _number(each["first_request_ms"]),
                "–" if idle is None else ", ".join(map(_number, idle["ms"])),
                "–" if memory["rss_after_bytes"] is None else f"{memory['rss_after_bytes'] / 2**20:.0f}",
                "–" if before is None else f"{(before - after) / 2**20:.0f}",
            ]
        )
    return rows


def forward_rows(record: dict[str, Any]) -> Rows:
    """The cells of FORWARD_COLUMNS; none where no sweep was made."""
    return [
        [
            str(each["n_tokens"]),
            *(_number(each["ms"][name]) for name in ("min", "p50", "p90")),
            f"{each['tokens_per_s']:.0f}",
            _number(each["floor_ms"]),
            _number(each["floor_ratio"]),
        ]
        for each in (record["forward"] or {"sizes": []})["sizes"]
    ]


def ab_rows(record: dict[str, Any]) -> Rows:
    """The cells of AB_COLUMNS, the variants of each size together; none where they were not compared."""
    return [
        [
            each["name"],
            str(size["n_tokens"]),
            *(_number(each["ms"][name]) for name in ("min", "p50")),
            "–" if each["spread"] is None else f"{each['spread']:.1%}",
            f"{each['ratio']:.3f}",
            "–".join(f"{end:.2f}" for end in each["ratio_range"]),
            _difference(each["difference"]),
            _difference(size["rounding"]),
        ]
        for size in (record["forward_ab"] or {"sizes": []})["sizes"]
        for each in size["variants"]
    ]


def facts(record: dict[str, Any]) -> Rows:
    """Where and how it was measured: a name and a text each."""
    where, how, memory = record["environment"], record["method"], record["memory"]
    driver = where["gpu"]["driver"] if where["gpu"] else "none"
    loop = "each when the last is answered" if how["loop"] == "closed" else f"{how['rate']:g} arrive a second"
    rows = [
        ["model", f"{where['model']}, {where['quantization']}, sha256 {where['model_sha256'][:16]}…"],
        ["device", f"{where['device']}, driver {driver}, {where['n_gpu_layers']} layers on the GPU, "
                   f"{where['backend']}"],
        ["machine", f"{where['cpu']}, {where['n_cores']} cores, {where['n_threads']} threads, {where['os']}"],
        ["versions", f"qcls-gguf {where['package_version']}, llama.cpp {where['llama_cpp_commit']} patched "
                     f"({where['source_digest']}), Python {where['python']}"],
        ["requests", f"{how['n_requests']} × {how['n_repeats']} of each kind, {loop}, {how['order']}"],
        ["date", where["date"]],
    ]  # fmt: skip
    floors = {_floor_text(each["floor"]): None for each in record["classifiers"]}
    rows += [["floor", text] for text in floors]
    rows += _gpu_rows(record["gpu"]) if where["n_gpu_layers"] else []
    if cut := where["sm_slice"]:
        text = (
            f"{cut['n_given']} of {cut['n_device']} multiprocessors, kernels planned for {cut['n_planned']}, without "
            "CUDA graphs: these are no figures of the whole card; its memory, caches and clocks are all there"
        )
        rows.insert(2, ["a slice", text])
    if memory["peak_rss_bytes"] is not None:
        rows.append(["memory", f"at most {memory['peak_rss_bytes'] / 2**20:.0f} MiB in the process"])
    return rows


def _gpu_rows(gpu: dict[str, Any]) -> Rows:
    """The GPU's clock, power and temperature before, while and after it was measured."""
    if gpu["not_known"]:
        return [["GPU", f"not known: {gpu['not_known']}"]]
    names = {"sm_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
    rows = []
    for when in ("before", "after"):
        state = gpu[when]["gpu"]
        rows.append([f"GPU {when}", ", ".join(f"{state[key]} {unit}" for key, unit in names.items())])
    if during := gpu["during"]:
        known = {unit: during[key] for key, unit in names.items() if during[key]}
        parts = [f"{each['min']:g} to {each['max']:g} {unit}, mostly {each['p50']:g}" for unit, each in known.items()]
        parts += [f"held down by {name} {share:.0%} of the time" for name, share in during["brakes"].items()]
        rows.insert(1, ["GPU while measured", "; ".join(parts)])
    return rows


def _floor_text(floor: dict[str, Any]) -> str:
    method = floor["method"]
    if method is None:
        return f"not measured: {floor['error']}"
    return (
        f"{floor['weight_bytes'] / 1e6:.1f} MB of weights at {floor['bytes_per_s'] / 1e9:.1f} GB/s (copy), or their "
        f"products at {floor['operations_per_s'] / 1e9:.0f} G operations/s ({method['matmul_type']}, "
        f"{' × '.join(map(str, method['matmul_shape']))}), the larger; without attention, norms, launches and the "
        "host's work"
    )


def record_tables(record: dict[str, Any]) -> dict[str, Table]:
    """The tables of a record in their order, some without rows."""
    return {
        "time": Table(columns=TIME_COLUMNS, rows=time_rows(record)),
        "queue": Table(columns=QUEUE_COLUMNS, rows=queue_rows(record)),
        "stages": Table(columns=STAGE_COLUMNS, rows=stage_rows(record)),
        "tokens": Table(columns=TOKEN_COLUMNS, rows=token_rows(record)),
        "start": Table(columns=START_COLUMNS, rows=start_rows(record)),
        "forward": Table(columns=FORWARD_COLUMNS, rows=forward_rows(record), n_text=0),
        "ab": Table(columns=AB_COLUMNS, rows=ab_rows(record)),
    }


def benchmark_tables(record: dict[str, Any]) -> Group:
    """Everything, a table a question."""
    tables = [terminal_table(table) for table in record_tables(record).values() if table.rows]
    return Group(fact_table([(name, text) for name, text in facts(record)]), *tables)
