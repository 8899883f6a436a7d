"""An inspection, prompts as the model reads them, and statements, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from ..config.prompt import LikelyMistake
from ..config.words import MAX_LISTED, counted, listed, printable, printable_lines, shown
from ..model.placement import weights_text
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, measured, percent
from . import records

_CACHED, _FED, _CONTROL, _LABEL = "blue", "bold green", "reverse", "yellow"
_LEAST_STOCK = 0.1
"""the share of weights from which on a type without kernels of this project is named"""


def inspection_view(inspection: records.Inspection) -> Group:
    """The whole, a row a prompt, the label tries and warnings."""
    return Group(
        Document(title="", parts=[facts(_facts(inspection)), _prompts(inspection)]),
        *map(_prompt_tree, inspection.prompts[:MAX_LISTED]),
        Text(_left_out(len(inspection.prompts), "prompt")),
        _warnings(inspection.warnings),
    )


def shown_prompts_view(shown: records.ShownPrompts) -> Group:
    """The prompts' texts, tokens and label tries, then the warnings."""
    prompts = (part for prompt in shown.prompts for part in (*_shown_prompt(prompt), Text()))
    return Group(*prompts, _warnings(shown.warnings))


def statements_document(record: records.StatementsRecord) -> Document:
    """A paragraph a prompt."""
    parts = [Section(title=name, parts=[Paragraph(text)]) for name, text in record.statements.items()]
    return Document(title="Statements", parts=parts)


def _warnings(warnings: tuple[LikelyMistake, ...]) -> Document:
    texts = [*map(str, warnings[:MAX_LISTED]), _left_out(len(warnings), "line")]
    lines = [Paragraph(f"- {text}", "warning") for text in texts if text]
    return Document(title="", parts=[Paragraph("warnings", "strong") if lines else None, *lines])


def _facts(inspection: records.Inspection) -> dict[str, str]:
    model, context, request = inspection.model, inspection.context, inspection.request
    startup, why = inspection.startup_ms, context.why_no_visible_cells
    weights = f", weights: {weights_text(model.n_lane_ordered)}" if model.n_gpu_layers else ""
    states, n_states = context.state_bytes, context.n_state_seqs
    of_states = f", {_mib(states * n_states)} of them for {n_states} states of {_mib(states)} MiB" if states else ""
    longest = "depends on its tokens"
    if request.n_decodes_longest is not None:
        decodes = counted(request.n_decodes_longest, "decode")
        longest = f"{request.n_longest} tokens: {request.n_tokens_longest} fed in {decodes}"
    stock = {name: share for name, share in inspection.stock_types.items() if share >= _LEAST_STOCK}
    kernels = ", ".join(f"{name} ({share:.0%} of the weights)" for name, share in stock.items())
    now, *others = inspection.costs
    cheaper = ", ".join(f"{cost.n_tokens} ({cost.share:.0%}) {cost.what}" for cost in others)
    return {
        "model": f"{Path(model.path).name}, {model.description}, {model.device}{weights}",
        "CPU code": " ".join(inspection.instruction_sets) or "no special instruction set",
        **({"kernels": f"llama.cpp's for {kernels}: a file of Q4_K_M or Q8_0 may be faster"} if stock else {}),
        "start-up": f"{sum(startup.values()):.0f} ms: " + ", ".join(f"{name} {ms:.0f}" for name, ms in startup.items()),
        "context": f"{context.n_ctx} cells, {context.n_cells_prefixes} of them prefixes; {context.n_batch} tokens and "
        f"{context.n_outputs_max} rows a decode",
        "attention": "to the cells that a token may see" if why is None else f"to every used cell: {why}",
        "sequences": f"{context.n_seq_needed}: prefixes {context.n_holders} + leaves {context.n_leaves} × max_batch "
        f"{context.max_batch}; {context.n_seq_max} opened, at most {context.n_seq_limit}",
        "empty query": f"{counted(request.n_tokens, 'token')} in {counted(request.n_decodes, 'decode')}, "
        f"{request.n_tokens_unshared} if prompts shared none; {request.n_tokens_cached} cached, "
        f"{request.n_positions} positions",
        "query token": f"fed {counted(request.n_query_copies, 'time')}",
        "6 tokens": f"{now.n_tokens} fed" + (f"; about {cheaper}" if cheaper else ""),
        "longest query": longest,
        "memory": f"{_mib(context.cache_bytes)} MiB KV cache{of_states}; compute buffers: "
        f"{_mib(context.compute_bytes)} MiB for the largest decode, {_mib(context.graphs_bytes)} for graphs of the "
        "start-up",
    }


def _mib(n_bytes: int) -> str:
    return measured(n_bytes / (1 << 20))


def _prompts(inspection: records.Inspection) -> Table:
    numbers = ("cached", "shared", "added", "labels", "fed", "read", "leaves")
    n = len(inspection.prompts)
    rows = []
    for prompt in inspection.prompts[:MAX_LISTED]:
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


def _left_out(n: int, one: str) -> str:
    """What a list does not show of n; empty where it shows all."""
    return f"and {counted(n - MAX_LISTED, f'more {one}')}" if n > MAX_LISTED else ""


def _prompt_tree(prompt: records.PromptInspection) -> Tree:
    tree = Tree(Text(printable(prompt.name), style="bold"), guide_style="dim")
    tree.add(Text(f"added  {_sequence(prompt.fragment)} + {_sequence(prompt.suffix)}", style="dim"))
    if head := prompt.head:
        parts = [
            f"head  after {head.depth} of {head.n_layer} layers",
            f"of the text {shown(head.text)}" if head.text else "of the prompt's own text",
            "beside the labels' texts" if head.reads_labels else "",
            f"learnt from {counted(head.n_rows, 'row')}" if head.n_rows else "",
            f"{percent(head.accuracy)} right on rows left out" if head.accuracy is not None else "",
        ]
        tree.add(Text(", ".join(filter(None, parts)), style="dim"))
    return _with_labels(tree, prompt.trie)


def _with_labels(tree: Tree, node: records.TrieNode) -> Tree:
    """Add the fed nodes as branches, and on one line the labels whose further tokens are not fed."""
    ends = [_label_end(child) for child in node.children if not child.fed]
    if ends:
        tree.add(Text(listed(ends, "label"), style=_LABEL))
    fed = [child for child in node.children if child.fed]
    for child in fed[:MAX_LISTED]:
        line = Text.assemble((_visible(child.text), f"{_LABEL} underline"), f"  (fed{', read' * child.read})")
        _with_labels(tree.add(line), child)
    if left_out := _left_out(len(fed), "path"):
        tree.add(Text(left_out))
    return tree


def _label_end(node: records.TrieNode) -> str:
    """The tokens from a node that is not fed to the end of its label; no other label has them."""
    texts = [node.text]
    while node.children:
        node = node.children[0]
        texts.append(node.text)
    is_told = node.label is None or node.label.endswith(texts[-1].strip())  # not by an end-of-label token
    return " ".join(map(_visible, texts)) + ("" if is_told else f" ({_visible(node.label or '')})")


def _sequence(tokens: tuple[records.Token, ...]) -> str:
    return " ".join(_visible(token.text) for token in tokens) or "nothing"


def _visible(text: str) -> str:
    """A token's text with its spaces visible, so that tokens can be parted by spaces."""
    return printable(text).replace(" ", "␣")


def _shown_prompt(prompt: records.ShownPrompt) -> Iterator[RenderableType]:
    how = "" if prompt.fast_path else ", the query changes the cached prefix"
    yield Text.assemble(
        (printable(prompt.name), "bold"),
        f"  {len(prompt.tokens)} tokens: ",
        (f"{prompt.n_cached} cached", _CACHED),
        ", ",
        (f"{prompt.n_fed} fed", _FED),
        f"{how}; then a label",
    )
    parts = [(printable_lines(part.text), _style(part)) for part in prompt.parts]
    yield Text.assemble(*parts, no_wrap=True, overflow="ignore")  # a terminal wraps it, a file has it as it is
    for title, cached in (("cached", True), ("fed   ", False)):
        tokens = [(_visible(token.text), _style(token)) for token in prompt.tokens if token.is_cached is cached]
        yield Text.assemble(title, *(part for token in tokens for part in (" ", token)))
    yield _with_labels(Tree(Text("labels"), guide_style="dim"), prompt.labels)


def _style(shown: records.ShownPart) -> str:
    return f"{_CACHED if shown.is_cached else _FED}{f' {_CONTROL}' if shown.is_control else ''}"
