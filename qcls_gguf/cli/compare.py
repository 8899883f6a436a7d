"""`qcls-gguf compare`: parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..compare.peers import METHOD_NAMES, PeerKernels, Peers
from ..data.queries import read_queries
from ..errors import ConfigError
from ..report.files import Output, check_writable
from .option_names import with_options
from .options import (
    ConfigOption,
    DiagramOption,
    FormatOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ThreadsOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes, print_step


def compare_command(
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", metavar="|".join(METHOD_NAMES), help="A method to compare with; repeatable. Default: all."
        ),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", metavar="TEXT", help="A query to label; repeatable.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", metavar="FILE|-", help="A file with one query a line.")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, metavar="N", help="Timed requests of every query by every method.")
    ] = 10,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, metavar="N", help="Rounds before the timed ones.")] = 2,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of the order in which the methods take turns.")
    ] = 0,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    hf_folder: Annotated[
        Path | None,
        typer.Option(
            "--hf-folder", metavar="DIR", help="For torch: a folder with the weights in transformers' format."
        ),
    ] = None,
    synthetic: Annotated[
        bool,
        typer.Option("--synthetic", help="For torch: random weights of the model's shape; its answers mean nothing."),
    ] = False,
    llama_server: Annotated[
        str | None, typer.Option("--llama-server", metavar="URL", help="The address of a running llama-server.")
    ] = None,
    spawn_llama_server: Annotated[
        Path | None,
        typer.Option("--spawn-llama-server", metavar="BINARY", help="A llama-server program to start and stop."),
    ] = None,
    ollama: Annotated[
        str | None, typer.Option("--ollama", metavar="URL", help="The address of a running Ollama.")
    ] = None,
    ollama_model: Annotated[
        str | None, typer.Option("--ollama-model", metavar="NAME", help="Ollama's model, made from the same file.")
    ] = None,
    other_weights: Annotated[
        bool, typer.Option("--other-weights", help="Allow an Ollama model from another file.")
    ] = False,
    peer_kernels: Annotated[
        PeerKernels,
        typer.Option("--peer-kernels", help="CUDA matrix kernels for the other methods that use this llama.cpp."),
    ] = PeerKernels.stock,
    format_: FormatOption = RecordFormat.table,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON here.", metavar="FILE")] = None,
    html: DiagramOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare latency and answers with other methods of labelling the same queries by the same prompts and model.

    The methods take turns, request by request, in one run and in a random order. A request is timed from the query's
    text to an answer for every prompt; loading and caching are not timed. Every method but the first four loads the
    model once more: on a GPU choose with --method those that fit. A method that cannot run here is listed with the
    reason. On a CUDA device the other methods that use this llama.cpp run its stock matrix kernels, as their users do;
    --peer-kernels ours gives them this project's. Stock kernels read weights in the file's order: with naive, prefix
    and batched, which share the loaded model, qcls reads that order, too, whatever GGML_CUDA_LANE_ORDER says.

    \b
    qcls              this package, in the configuration's scoring
    naive             stock llama.cpp with all logits, one decode a prompt, nothing cached
    prefix            naive with each prompt's prefix cached
    batched           prefix with all prompts in one decode
    llama-cpp-python  its class Llama, prompt after prompt       (extra `peers`)
    cappr             mean log-probabilities on llama-cpp-python (pip install cappr)
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
    from ..compare.run import QUERIES, ComparisonSettings, compare  # see app.py for why here
    from ..compare.table import comparison_table
    from .long_work import check_html, long_work
    from .shown import show_record

    with exit_codes():
        comparison = ComparisonSettings(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            queries=_queries(query, queries) if query or queries is not None else QUERIES,
            methods=tuple(dict.fromkeys(method or ())),
            n_rounds=rounds,
            n_warm_up=warm_up,
            seed=seed,
            peers=Peers(
                llama_server=llama_server,
                spawn_llama_server=spawn_llama_server,
                ollama=ollama,
                ollama_model=ollama_model,
                other_weights=other_weights,
                hf_folder=hf_folder,
                synthetic=synthetic,
            ),
            peer_kernels=peer_kernels,
        )
        inputs = {"--config": config, "--queries": Path(queries) if queries else None, "--model": model}
        if out:
            check_writable(out, "--out", inputs)
        if html:
            check_html(html, {**inputs, "--out": out})
        with long_work(offline, quiet) as (opener, on_progress):
            record = compare(comparison, opener, on_step=None if quiet else print_step, on_progress=on_progress)
        absent = [each.model_copy(update={"reason": with_options(each.reason)}) for each in record.absent]
        record = record.model_copy(update={"absent": tuple(absent)})
        outputs = []
        if out:
            outputs.append(Output(name="--out", path=out, text=lambda: f"{record.to_json()}\n"))
        if html:
            from ..compare.html import comparison_html  # matplotlib is an extra

            outputs.append(Output(name="--html", path=html, text=lambda: comparison_html(record)))

        show_record(record, format_, lambda: comparison_table(record), outputs)
    if any(absent.asked_for or absent.started for absent in record.absent):
        raise typer.Exit(EXIT_OTHER)


def _queries(texts: list[str] | None, source: str | None) -> tuple[str, ...]:
    """The queries of both options."""
    queries = list(texts or ())
    if source is not None:
        for line in read_queries(source):
            if line.error:
                raise ConfigError(f"--queries {source}: {line.error}")
            queries.append(line.text)
    return tuple(queries)
