"""What is shown of a benchmark: where it was measured, then tables."""

from __future__ import annotations

from ..report.document import TEXT, Document, Facts, Paragraph, Table, measured, provenance
from ..report.environment import GpuState
from ..system.timing import STAGES
from .records import BenchmarkRecord, ClassifierRecord, RooflineRecord

_MADE = (
    "No queries were given: these are made of words about clothes, in the numbers of tokens that the names of the rows "
    "say. Your queries may be longer, and the times then are others."
)


def document(record: BenchmarkRecord) -> Document:
    """All that is shown of a record."""
    workloads, classifiers = record.workloads, record.classifiers
    return Document(
        title=f"Benchmark of {', '.join(each.name for each in classifiers)}",
        parts=[
            Facts(_facts(record)),
            None if record.method.input else Paragraph(_MADE),
            Table(
                columns={
                    **{"total ms": TEXT, **dict.fromkeys(("min", "p50", "p90", "p99"), measured), "spread": ".1%"},
                    **{"roofline": measured, "utilisation": ".0%"},
                },
                rows=[
                    [
                        *(each.name, ms.min, ms.p50, ms.p90, ms.p99, each.p50_spread, each.roofline_ms),
                        each.roofline_ratio and 1 / each.roofline_ratio,
                    ]
                    for each in workloads
                    for ms in [each.total_ms]
                ],
                note="Spread: the largest less the smallest p50 of the repetitions, by their median. Roofline: what "
                "the decode would take if nothing but reading the weights, or nothing but multiplying by them, took "
                "time. Utilisation: the roofline's part of p50.",
            ),
            Table(
                columns={"stages, p50 ms": TEXT, **dict.fromkeys(STAGES, measured)},
                rows=[[each.name, *(each.stage_ms[stage].p50 for stage in STAGES)] for each in workloads],
            ),
            Table(
                columns={
                    **{"tokens a request": TEXT, "new": ".1f", "least": ".1f", "cached": ".1f", "decodes": ".1f"},
                    "graphs reused": ".0%",
                },
                rows=[
                    [each.name, tokens.new, tokens.least, tokens.cached, each.n_decodes, each.graph_reuse_rate]
                    for each in workloads
                    for tokens in [each.tokens]
                ],
                note="Least: what any plan must feed, the distinct token paths less those stored.",
            ),
            Table(
                columns={"cascade": TEXT, "stage": TEXT, "of the answers": ".1%"},
                rows=[[each.name, *stage] for each in workloads for stage in (each.stages or {}).items()],
            ),
            Table(
                columns={
                    **{"start": TEXT, "start-up ms": measured, "first request ms": measured},
                    **{"RSS MiB": ".0f", "GPU memory MiB": ".0f"},
                },
                rows=[_start_row(each) for each in classifiers],
            ),
        ],
    )


def _start_row(classifier: ClassifierRecord) -> list[object]:
    memory = classifier.memory
    before, after = memory.vram_free_before_bytes, memory.vram_free_after_bytes
    return [
        classifier.name,
        sum(classifier.startup_ms.values()),
        classifier.first_request_ms,
        memory.rss_after_bytes / 2**20,
        None if before is None or after is None else (before - after) / 2**20,
    ]


def _facts(record: BenchmarkRecord) -> dict[str, str]:
    """Where and how it was measured."""
    method, model = record.method, record.classifiers[0].model
    texts = {
        **provenance(model, record.environment),
        "requests": f"{method.n_requests} × {method.n_repeats} of each kind, each when the last is answered, "
        "configurations in turns",
        "roofline": " / ".join(dict.fromkeys(_roofline_text(each.roofline) for each in record.classifiers)),
    }
    if model.n_gpu_layers:
        texts["GPU"] = f"before: {_gpu_text(record.gpu_before)}; after: {_gpu_text(record.environment.gpu)}"
    return texts


def _gpu_text(gpu: GpuState | None) -> str:
    if gpu is None:
        return "not known (needs the extra `bench`)"
    held = f", held down by {', '.join(gpu.throttle_reasons)}" if gpu.throttle_reasons else ""
    return f"{gpu.sm_mhz} of {gpu.max_sm_mhz} MHz{held}"


def _roofline_text(roofline: RooflineRecord) -> str:
    method = roofline.method
    if method is None or roofline.bytes_per_s is None or roofline.operations_per_s is None:
        return f"not measured: {roofline.error}"
    operations = (
        f"{method.weight_type}, {' × '.join(map(str, method.product_shape))}"
        if method.product_shape
        else f"the multiplications of {method.weight_type} products on registers"
    )
    bytes_per_s, operations_per_s = method.bytes_per_s_of_one, method.operations_per_s_of_one
    return (
        f"{roofline.weight_bytes / 1e6:.1f} MB of weights at {_giga(roofline.bytes_per_s)}B/s "
        f"({'reads' if bytes_per_s else 'copy'}), or their products at {_giga(roofline.operations_per_s)} operations/s "
        f"({operations}), the larger; "
        + (f"one thread {_giga(bytes_per_s)}B/s; " if bytes_per_s else "")
        + (f"one thread {_giga(operations_per_s)} operations/s; " if operations_per_s else "")
        + "without attention, norms, launches and the host's work"
    )


def _giga(per_s: float) -> str:
    return f"{per_s / 1e9:.3g} G"
