"""`qcls-gguf inspect`: parsing and printing only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import Printing, ScoredModelOptions, command, option
from .terminal import classifier_opener

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..report.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsToShow:
    """What the model reads, in place of costs."""

    show_prompt: bool = option("--show-prompt", "Show the prompts' text and tokens with a query instead.", False)
    prompt: tuple[str, ...] = option("--prompt NAME", "A prompt to show so; repeatable. Default: all.")
    query: str | None = option("--query -q TEXT", "The query to show them with. Default: an empty one.")
    statement: bool = option("--statement", "Print what the calibration states, a paragraph for each prompt.", False)


@command
def inspect_command(chosen: PromptsToShow, model: ScoredModelOptions, printing: Printing) -> None:
    """Show what a configuration costs with a model, before any query.

    For each prompt it shows the cached tokens, the tokens that every request adds, each label's tokens and the label
    trie; for all prompts together the tokens of an empty query, the sequences and the context; and likely mistakes in
    the prompts. Exit codes are those of run.

    --show-prompt shows what the model reads: the exact text and tokens of each prompt with a query, and the labels.
    Control tokens are in reverse video, cached tokens blue, tokens that the request computes green, and tokens of
    labels yellow, underlined if they are computed too.

    --statement prints what `calibrate --target-error` found, as a paragraph that a person can sign: data,
    date, counts, error rate, coverage, and what is not promised.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf inspect --config my.yaml
    qcls-gguf inspect --config my.yaml --statement
    qcls-gguf inspect --config my.yaml --show-prompt --prompt colour --query "red dress"
    """
    from ..inspection.inspect import inspect_classifier, show_prompts, statements_of  # see app.py for why here
    from ..inspection.report import inspection_view, shown_prompts_view, statements_document

    config = model.settings()
    with (
        classifier_opener(model.offline, printing.quiet, warns=False) as opener,
        opener.open(config) as classifier,
    ):
        if chosen.statement:
            record: Record = (stated := statements_of(classifier))
            view: RenderableType = statements_document(stated)
        elif chosen.show_prompt or chosen.prompt or chosen.query is not None:
            record = (shown := show_prompts(classifier, chosen.prompt, chosen.query or ""))
            view = shown_prompts_view(shown)
        else:
            record = (inspection := inspect_classifier(classifier))
            view = inspection_view(inspection)
    printing.show(record, view)
