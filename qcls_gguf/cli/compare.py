"""`qcls-gguf compare`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.rows import all_queries
from .options import GivenQueries, ModelOptions, Reporting, command, option, settings_of
from .terminal import EXIT_OTHER, check_outputs, long_work, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions(GivenQueries):
    """What is compared on which queries."""

    method: tuple[str, ...] = option("--method NAME", "One of the methods above; repeatable. Default: all.")
    n_rounds: int = option("--rounds N", "Timed requests of every query by every method.", 10, low=1)
    n_warm_up: int = option("--warm-up N", "Rounds before the timed ones.", 2, low=0)

    def texts(self) -> tuple[str, ...] | None:
        """All queries; None where none are given. Raises ConfigError."""
        if not self.query and self.queries is None:
            return None
        read = [] if self.queries is None else all_queries(self.queries, self.reading)
        return (*self.query, *read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Where the servers are."""

    llama_server: str | None = option("--llama-server URL", "The address of a running llama-server.")
    ollama: str | None = option("--ollama URL", "The address of a running Ollama.")
    ollama_model: str | None = option("--ollama-model NAME", "Ollama's model, made from the same file.")


@command
def compare_command(
    chosen: ComparisonOptions, peers: PeerOptions, model: ModelOptions, reporting: Reporting
) -> int | None:
    """Compare latency and answers with other methods of labelling the same queries by the same prompts and model.

    The methods take turns, request by request, in one run and in a random order. A request is timed from the query's
    text to an answer for every prompt; loading and caching are not timed. A method that cannot run here is listed with
    the reason. naive, prefix and batched run the stock kernels of this llama.cpp, which read weights in the file's
    order: on a CPU they have a copy of the model; on a GPU they share the loaded one, and qcls reads that order, too,
    whatever QCLS_LANE_ORDER says. Start servers before, with the same file; without --llama-server the command that
    starts a fair one is printed.

    \b
    qcls          this package, in the configuration's scoring
    naive         stock llama.cpp with all logits, one decode a prompt, nothing cached
    prefix        naive with each prompt's prefix cached
    batched       prefix with all prompts in one decode
    llama-server  parallel HTTP requests in pinned slots  (--llama-server)
    ollama        parallel raw HTTP requests              (--ollama and --ollama-model)

    Exit codes: 0; 1 if a method named with --method is absent, or one failed while it ran; 2 for usage and
    configuration; 3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf compare
    qcls-gguf compare --method naive --method prefix --method batched --rounds 30 --format json
    qcls-gguf compare --llama-server http://127.0.0.1:8080 --html compare.html
    qcls-gguf compare --ollama http://127.0.0.1:11434 --ollama-model fashion-tiny --queries queries.txt
    """
    from ..compare.method import ComparisonSettings  # see app.py for why here
    from ..compare.records import QUERIES, comparison_document
    from ..compare.run import compare

    texts = chosen.texts()
    comparison = settings_of(
        ComparisonSettings,
        chosen,
        peers,
        config=model.settings(),
        queries=QUERIES if texts is None else texts,
        methods=tuple(dict.fromkeys(chosen.method)),
    )
    inputs = {"--config": model.config, "--queries": chosen.path, "--model": model.model}
    check_outputs({"--html": reporting.html}, inputs)
    with long_work(model.offline, reporting.quiet) as opener:
        record = compare(comparison, opener)
    absent = [each.model_copy(update={"reason": with_options(each.reason)}) for each in record.absent]
    record = record.model_copy(update={"absent": tuple(absent)})
    reporting.show(record, comparison_document(record))
    return EXIT_OTHER if any(each.asked_for or each.started for each in record.absent) else None
