"""An inspection, and prompts as the model reads them, on a terminal."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from ..config.prompt import LikelyMistake
from ..config.words import counted, listed, printable, printable_lines, shown
from ..model.placement import stock_text
from ..report.document import TEXT, Document, Paragraph, Part, Section, Table, facts, measured, percent
from .inspect import Inspection, LabelNode, PromptInspection, ShownPrompt, ShownPrompts, Token

_CACHED, _FED, _CONTROL, _LABEL = "blue", "bold green", "reverse", "yellow"


def inspection_document(inspection: Inspection) -> Document:
    """The whole, a row a prompt, prompts' tokens, labels and heads, and warnings."""
    prompts = [Section(title=prompt.name, parts=[facts(_prompt_facts(prompt))]) for prompt in inspection.prompts]
    parts = [facts(_facts(inspection)), _prompts(inspection), *prompts, *_warnings(inspection.warnings)]
    return Document(title="", parts=parts)


def shown_prompts_view(shown: ShownPrompts) -> Group:
    """The prompts' texts, tokens and label tries, then the warnings."""
    prompts = (part for prompt in shown.prompts for part in (*_shown_prompt(prompt), Text()))
    return Group(*prompts, Document(title="", parts=_warnings(shown.warnings)))


def _warnings(warnings: tuple[LikelyMistake, ...]) -> list[Part]:
    lines = [Paragraph(f"- {warning}", "warning") for warning in warnings]
    return [Paragraph("warnings", "strong"), *lines] if lines else []


def _facts(inspection: Inspection) -> dict[str, str]:
    model, context, request = inspection.model, inspection.context, inspection.request
    startup, why = inspection.startup_ms, context.why_no_visible_cells
    states, n_states = context.state_bytes, context.n_state_seqs
    of_states = f", {_mib(states * n_states)} of them for {n_states} states of {_mib(states)} MiB" if states else ""
    longest = "depends on its tokens"
    if request.n_decodes_longest is not None:
        decodes = counted(request.n_decodes_longest, "decode")
        longest = f"{request.n_longest} tokens: {request.n_tokens_longest} fed in {decodes}"
    now, *others = inspection.costs
    cheaper = ", ".join(f"{cost.n_tokens} ({cost.share:.0%}) {cost.what}" for cost in others)
    return {
        "model": f"{Path(model.path).name}, {model.description}, {model.device}",
        **({"kernels": kernels} if (kernels := stock_text(model.stock_types)) else {}),
        "start-up": f"{sum(startup.values()):.0f} ms: " + ", ".join(f"{name} {ms:.0f}" for name, ms in startup.items()),
        "context": f"{context.n_ctx} cells, {context.n_cells_prefixes} of them prefixes; {context.n_batch} tokens and "
        f"{context.n_outputs_max} rows a decode",
        "attention": "to the cells that a token may see" if why is None else f"to every used cell: {why}",
        "sequences": f"{context.n_seq_needed}: prefixes {context.n_holders} + leaves {context.n_leaves} × max_batch "
        f"{context.max_batch}; {context.n_seq_max} opened",
        "empty query": f"{counted(request.n_tokens, 'token')} in {counted(request.n_decodes, 'decode')}, "
        f"{request.n_tokens_unshared} if prompts shared none; {request.n_tokens_cached} cached, "
        f"{request.n_positions} positions",
        "query token": f"fed {counted(request.n_query_copies, 'time')}",
        "6 tokens": f"{now.n_tokens} fed" + (f"; about {cheaper}" if cheaper else ""),
        "longest query": longest,
        "memory": f"{_mib(context.cache_bytes)} MiB KV cache{of_states}; compute buffers: "
        f"{_mib(context.compute_bytes)} MiB for the largest decode",
    }


def _mib(n_bytes: int) -> str:
    return measured(n_bytes / (1 << 20))


def _prompts(inspection: Inspection) -> Table:
    numbers = ("cached", "shared", "added", "labels", "fed", "read", "leaves")
    n = len(inspection.prompts)
    rows = []
    for prompt in inspection.prompts:
        head, others = prompt.head, prompt.shared_with
        scored_by = prompt.scoring if head is None else f"head, {head.depth} of {head.n_layer} layers"
        counts = (prompt.n_labels, prompt.n_tokens_labels, prompt.n_positions, prompt.n_leaves)
        shared_with = "all" if n > 2 and len(others) == n - 1 else listed(others, "prompt")
        rows.append([
            *(prompt.name, scored_by, prompt.n_cached, prompt.n_shared, prompt.n_added, *counts),
            *("yes" if prompt.fast_path else "no", shared_with),
        ])  # fmt: skip
    texts = {"prompt": TEXT, "scoring": TEXT}
    return Table(columns={**texts, **dict.fromkeys(numbers, "d"), "fast": TEXT, "shared with": TEXT}, rows=rows)


def _prompt_facts(prompt: PromptInspection) -> dict[str, str]:
    labels = listed(list(_spelt(prompt.labels)), "label")
    found = {"added": f"{_sequence(prompt.fragment)} + {_sequence(prompt.suffix)}", "labels": labels}
    if head := prompt.head:
        parts = [
            f"after {head.depth} of {head.n_layer} layers",
            f"of the text {shown(head.text)}" if head.text else "of the prompt's own text",
            "beside the labels' texts" if head.reads_labels else "",
            f"learnt from {counted(head.n_rows, 'row')}" if head.n_rows else "",
            f"{percent(head.accuracy)} right on rows left out" if head.accuracy is not None else "",
        ]
        found["head"] = ", ".join(filter(None, parts))
    return found


def _spelt(node: LabelNode) -> Iterator[str]:
    """The tokens of the labels below a node, those that are fed in brackets."""
    text = f"[{_visible(node.text)}]" if node.fed else _visible(node.text)
    yield from [text] * (node.label is not None)
    yield from (f"{text} {rest}".strip() for child in node.children for rest in _spelt(child))


def _sequence(tokens: tuple[Token, ...]) -> str:
    return " ".join(_visible(token.text) for token in tokens) or "nothing"


def _visible(text: str) -> str:
    """A token's text with its spaces visible, so that tokens can be parted by spaces."""
    return printable(text).replace(" ", "␣")


def _shown_prompt(prompt: ShownPrompt) -> Iterator[RenderableType]:
    how = "" if prompt.fast_path else ", the query changes the cached prefix"
    yield Text.assemble(
        (printable(prompt.name), "bold"),
        f"  {len(prompt.tokens)} tokens: ",
        (f"{prompt.n_cached} cached", _CACHED),
        ", ",
        (f"{prompt.n_fed} fed", _FED),
        f"{how}; then a label",
    )
    yield Text(printable_lines(prompt.text), no_wrap=True, overflow="ignore")  # a terminal wraps it, a file does not
    for title, cached in (("cached", True), ("fed   ", False)):
        style = _CACHED if cached else _FED
        shown = [token for token in prompt.tokens if token.is_cached is cached]
        tokens = [(_visible(token.text), f"{style}{f' {_CONTROL}' * token.is_control}") for token in shown]
        yield Text.assemble(title, *(part for token in tokens for part in (" ", token)))
    yield Text(f"labels {listed(list(_spelt(prompt.labels)), 'label')}", _LABEL)
