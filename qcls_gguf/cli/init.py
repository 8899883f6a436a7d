"""`qcls-gguf init`: options or answers on a terminal to a draft, the draft to a file, and what to do next."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..drafting.models import Family
from ..errors import ConfigError
from ..report.files import check_writable
from .option_names import with_options
from .options import ModelOption, QueryColumnOption, RepoOption
from .terminal import exit_codes

if TYPE_CHECKING:
    from ..drafting.draft import DraftPrompt
    from ..drafting.rows import FoundLabels

_ABOUT = "a text"


def init_command(
    labels: Annotated[
        list[str] | None,
        typer.Option("--labels", metavar="NAME=LABEL,…", help="A prompt and its labels; repeatable."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="FILE", help="Labelled queries, CSV or JSON lines.")
    ] = None,
    query_column: QueryColumnOption = None,
    label_column: Annotated[
        list[str] | None,
        typer.Option(
            "--label-column", metavar="NAME", help="A column of labels; repeatable. Default: those with few values."
        ),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="FILE|NAME", help="A configuration to rewrite in the current form.")
    ] = None,
    about: Annotated[
        str | None, typer.Option("--about", metavar="TEXT", help="What the texts are, such as 'a support ticket'.")
    ] = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    family: Annotated[
        Family | None, typer.Option("--family", help="The models to choose from, by free memory.  [default: qwen3]")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented configuration from labels, labelled queries, an older configuration, or answers to questions.

    Without --labels, --data and --from it asks on a terminal. Without --model and --hf-repo it names the largest model
    of --family that fits the free memory of the GPU, or without a GPU a small one; all of them answer at once, without
    thinking. qwen3 and gemma-4 have attention layers only; the others also have recurrent ones, with which requests
    take longer (docs/models.md). All prompts get one common text, so that a request for several of them computes
    little more than for one. Columns of --data with few values are taken as labels, and rare labels are reported.
    Nothing is downloaded or loaded. Exit codes: 0; 2 for usage, data and configuration; 3 for a model that can't be
    used.

    \b
    qcls-gguf init --labels category=dress,jeans,none --labels season=summer,winter,none
    qcls-gguf init --data tickets.csv --about "a support ticket" --family qwen3.5 --out tickets.yaml
    qcls-gguf init --from mission --model qwen3-8b-q8_0.gguf --out mine.yaml
    """
    with exit_codes():
        from ..config.words import counted
        from ..drafting.draft import Draft, draft_text, labels_of, modern_text
        from ..drafting.models import fitting_model, given_model
        from ..drafting.rows import find_labels

        if sum(map(bool, (labels, data, from_))) > 1:
            raise ConfigError("--labels, --data and --from are given together: keep one of them")
        if model is not None and hf_repo is not None:
            raise ConfigError("--model and --hf-repo are both given: keep one of them")
        if family is not None and (model is not None or hf_repo is not None):
            raise ConfigError("--family chooses a model, and --model or --hf-repo names one: keep one of them")
        if (label_column or query_column) and data is None:
            raise ConfigError("--label-column and --query-column are for --data, which is not given")
        check_writable(out, "--out", {"--data": data, "--from": Path(from_) if from_ else None}, force=force)
        folder = out.absolute().parent
        given = given_model(None if model is None else str(model), hf_repo, folder)
        chosen = given or fitting_model(family or Family.QWEN3)
        found: FoundLabels | None = None
        remarks: list[str] = []
        if from_ is not None:
            text, remarks = modern_text(from_, folder, chosen, override=given is not None)
        else:
            if data is not None:
                found = find_labels(data, query_column, label_column or ())
                prompts, remarks = found.prompts, list(found.remarks)
                source = f"{data.name}, {counted(found.n_rows, 'row')}"
            elif labels:
                prompts, source = labels_of(labels), "labels"
            else:
                about, prompts = _ask(about)
                source = "answers"
            draft = Draft(prompts=prompts, model=chosen, about=about or _ABOUT, source=source)
            text = draft_text(draft, folder)
        out.write_text(text, encoding="utf-8")
        print(f"wrote {out}", file=sys.stderr)
        for remark in remarks:
            print(f"note: {with_options(remark)}", file=sys.stderr)
        print("next:", file=sys.stderr)
        for command in _next(out, data, found):
            print(f"  {command}", file=sys.stderr)


def _next(out: Path, data: Path | None, found: FoundLabels | None) -> list[str]:
    """The commands that follow."""
    config = shlex.quote(str(out))
    commands = [f"qcls-gguf inspect -c {config}"]
    if data is not None and found is not None:
        columns = "" if found.query == "query" else f" --query-column {shlex.quote(found.query)}"
        if found.ignored:
            columns += f" --ignore-columns {shlex.quote(','.join(found.ignored))}"
        commands.append(f"qcls-gguf eval -c {config} --data {shlex.quote(str(data))}{columns}")
    return [*commands, f"qcls-gguf run -c {config}"]


def _ask(about: str | None) -> tuple[str, tuple[DraftPrompt, ...]]:
    """What a person says on the terminal."""
    from ..drafting.draft import labels_of

    if not _is_terminal():
        raise ConfigError("give --labels NAME=LABEL,… or --data FILE or --from FILE: there is no terminal to ask on")
    about = about or _line(f"What is labelled, in a few words? [{_ABOUT}] ") or _ABOUT
    options: list[str] = []
    while True:
        which = "the first attribute, such as category" if not options else "another attribute, or nothing"
        name = _line(f"Name of {which}: ")
        if not name and options:
            return about, labels_of(options)
        if name:
            options.append(f"{name}={_line(f'Labels of {name}, separated by commas: ')}")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _line(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        raise ConfigError("the answers ended: nothing is written") from None
