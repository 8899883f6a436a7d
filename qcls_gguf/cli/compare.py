"""`qcls-gguf compare`: parsing and printing only."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..compare import METHOD_NAMES, PeerKernels, Peers
from ..data.queries import Columns, read_queries
from ..errors import ConfigError
from .options import ModelOptions, Reporting, command, option
from .terminal import EXIT_OTHER, check_outputs, file_output, long_work, print_step, show_record, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """What is compared on which queries."""

    method: list[str] = option(
        f"--method {'|'.join(METHOD_NAMES)}", "A method to compare with; repeatable. Default: all."
    )
    query: list[str] = option("--query -q TEXT", "A query to label; repeatable.")
    queries: str | None = option("--queries FILE|-", "A file with one query a line, or a table: .csv, .tsv, .jsonl.")
    query_column: str | None = option("--query-column NAME", "The table's column of queries. Default: query.")
    rounds: int = option("--rounds N", "Timed requests of every query by every method.", 10, low=1)
    warm_up: int = option("--warm-up N", "Rounds before the timed ones.", 2, low=0)
    seed: int = option("--seed N", "Seed of the order in which the methods take turns.", 0)
    peer_kernels: PeerKernels = option(
        "--peer-kernels", "CUDA matrix kernels for the other methods that use this llama.cpp.", PeerKernels.stock
    )
    out: Path | None = option("--out FILE", "Also write the JSON here.")

    def texts(self) -> tuple[str, ...] | None:
        """All queries; None where none are given. Raises ConfigError."""
        if not self.query and self.queries is None:
            return None
        texts = list(self.query)
        for line in (
            read_queries(self.queries, columns=Columns(query=self.query_column)) if self.queries is not None else ()
        ):
            if line.error:
                raise ConfigError(f"--queries {self.queries}: {line.error}")
            texts.append(line.text)
        return tuple(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Where the other methods are."""

    hf_folder: Path | None = option("--hf-folder DIR", "For torch: a folder with the weights in transformers' format.")
    synthetic: bool = option(
        "--synthetic", "For torch: random weights of the model's shape; its answers mean nothing.", False
    )
    llama_server: str | None = option("--llama-server URL", "The address of a running llama-server.")
    spawn_llama_server: Path | None = option("--spawn-llama-server BINARY", "A llama-server program to start and stop.")
    ollama: str | None = option("--ollama URL", "The address of a running Ollama.")
    ollama_model: str | None = option("--ollama-model NAME", "Ollama's model, made from the same file.")
    other_weights: bool = option("--other-weights", "Allow an Ollama model from another file.", False)


@command
def compare_command(
    chosen: ComparisonOptions, peers: PeerOptions, model: ModelOptions, reporting: Reporting
) -> int | None:
    """Compare latency and answers with other methods of labelling the same queries by the same prompts and model.

    The methods take turns, request by request, in one run and in a random order. A request is timed from the query's
    text to an answer for every prompt; loading and caching are not timed. Every method but the first four loads the
    model once more: on a GPU choose with --method those that fit. A method that cannot run here is listed with the
    reason. On a CUDA device the other methods that use this llama.cpp run its stock matrix kernels, as their users do;
    --peer-kernels ours gives them this project's. Stock kernels read weights in the file's order: with naive, prefix
    and batched, which share the loaded model, qcls reads that order, too, whatever QCLS_LANE_ORDER says.

    \b
    qcls              this package, in the configuration's scoring
    naive             stock llama.cpp with all logits, one decode a prompt, nothing cached
    prefix            naive with each prompt's prefix cached
    batched           prefix with all prompts in one decode
    llama-cpp-python  its class Llama, prompt after prompt       (extra `peers`)
    torch             PyTorch and transformers, prefix KV cache, CUDA graphs (--hf-folder or --synthetic)
    llama-server      parallel HTTP requests in pinned slots     (--llama-server or --spawn-llama-server)
    ollama            parallel raw HTTP requests                 (--ollama and --ollama-model)

    Exit codes: 0; 1 if a method named with --method is absent, or one failed while it ran; 2 for usage and
    configuration; 3 for a model that can't be loaded. JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf compare
    qcls-gguf compare --method naive --method prefix --method batched --rounds 30 --format json
    qcls-gguf compare --spawn-llama-server build/peers/bin/llama-server --html compare.html
    qcls-gguf compare --ollama http://127.0.0.1:11434 --ollama-model fashion-tiny --queries queries.txt
    """
    from ..compare.document import document  # see app.py for why here
    from ..compare.run import QUERIES, ComparisonSettings, compare

    texts = chosen.texts()
    comparison = ComparisonSettings(
        config=model.settings(),
        queries=QUERIES if texts is None else texts,
        methods=tuple(dict.fromkeys(chosen.method)),
        n_rounds=chosen.rounds,
        n_warm_up=chosen.warm_up,
        seed=chosen.seed,
        peers=Peers(**dataclasses.asdict(peers)),
        peer_kernels=chosen.peer_kernels,
    )
    queries = Path(chosen.queries) if chosen.queries else None
    check_outputs(
        {"--out": chosen.out, "--html": reporting.html},
        {"--config": model.config, "--queries": queries, "--model": model.model},
    )
    with long_work(model.offline, reporting.quiet) as (opener, on_progress):
        on_step = None if reporting.quiet else print_step
        record = compare(comparison, opener, on_step=on_step, on_progress=on_progress)
    absent = [each.model_copy(update={"reason": with_options(each.reason)}) for each in record.absent]
    record = record.model_copy(update={"absent": tuple(absent)})
    outputs = [file_output("--out", chosen.out, lambda: f"{record.to_json()}\n")]
    show_record(record, reporting, document(record), outputs)
    return EXIT_OTHER if any(each.asked_for or each.started for each in record.absent) else None
