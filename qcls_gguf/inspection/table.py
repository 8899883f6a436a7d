"""An inspection as text on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..config.words import counted, printable
from ..model.placement import weights_text
from ..report.numbers import measured
from ..report.tables import fact_table
from .records import Answering, HeadTail, Inspection, LongestQuery, PromptInspection, Request, Token, TrieNode


def inspection_table(inspection: Inspection) -> Group:
    """The whole, a row for each prompt, the label tries, the advice."""
    parts: list[RenderableType] = [_whole(inspection), _prompt_rows(inspection), Text()]
    parts += map(_prompt_tree, inspection.prompts, inspection.answering)
    parts.append(Text())
    if inspection.warnings:
        parts.append(Text("warnings", style="bold yellow"))
    parts += [Text(f"- {printable(str(each))}", style="yellow") for each in inspection.warnings]
    if inspection.advice:
        parts.append(Text("advice", style="bold"))
    parts += [Text(f"- {printable(advice.text)}") for advice in inspection.advice]
    return Group(*parts)


def _whole(inspection: Inspection) -> Table:
    model, context = inspection.model, inspection.context
    sequences, request = inspection.sequences, inspection.request
    steps = ", ".join(f"{name} {ms:.0f}" for name, ms in inspection.startup_ms.items())
    weights = f", weights: {weights_text(model.n_lane_ordered)}" if model.n_gpu_layers else ""
    why = context.why_no_visible_cells
    return fact_table(
        [
            ("model", f"{Path(model.path).name}, {model.description}, {model.device}{weights}"),
            ("CPU code", " ".join(inspection.instruction_sets) or "no special instruction set"),
            ("start-up", f"{sum(inspection.startup_ms.values()):.0f} ms: {steps}"),
            (
                "context",
                f"{context.n_ctx} cells, {context.n_cells_prefixes} of them prefixes; {context.n_batch} tokens and "
                f"{context.n_outputs_max} rows a decode",
            ),
            ("logits", logits_text(inspection.head_tail)),
            ("attention", "to the cells that a token may see" if why is None else f"to every used cell: {why}"),
            (
                "sequences",
                f"{sequences.n_needed}: prefixes {sequences.n_holders} + leaves {sequences.n_leaves} × max_batch "
                f"{sequences.max_batch}; {sequences.n_seq_max} opened, at most {sequences.n_limit}",
            ),
            (
                "empty query",
                f"{counted(request.n_tokens, 'token')} in {counted(request.n_decodes, 'decode')}: around the "
                f"query {request.n_tokens_fragment}, suffix {request.n_tokens_suffix}, labels {request.n_tokens_labels}"
                f"{_more(request)} ({request.n_tokens_unshared} unshared); {request.n_tokens_cached} cached, "
                f"{request.n_positions} positions",
            ),
            ("query token", f"fed {counted(request.n_query_copies, 'time')}"),
            ("longest query", _longest(inspection.longest)),
            (
                "memory",
                f"{_mib(context.cache_bytes)} MiB KV cache{_states(inspection)}; compute buffers: "
                f"{_mib(context.compute_bytes)} MiB for the largest decode, {_mib(context.graphs_bytes)} for graphs of "
                "the start-up",
            ),
        ]
    )


def logits_text(tail: HeadTail) -> str:
    """How the model makes logits of hidden states, in one line."""
    text = "hidden state · head"
    if tail.has_bias:
        text += " + output.bias"
    if tail.scale != 1:
        text = f"({text}) × {tail.scale:g}"
    return text if tail.soft_cap is None else f"{tail.soft_cap:g} tanh(({text}) / {tail.soft_cap:g})"


def _more(request: Request) -> str:
    return f", again or to fill up {request.n_tokens_more}" if request.n_tokens_more else ""


def _states(inspection: Inspection) -> str:
    n_bytes, n_seqs = inspection.context.state_bytes, inspection.sequences.n_seq_max
    return f", {_mib(n_bytes * n_seqs)} of them for {n_seqs} states of {_mib(n_bytes)} MiB" if n_bytes else ""


def _longest(longest: LongestQuery | None) -> str:
    if longest is None:
        return "depends on its tokens"
    one = longest.n_one_decode
    beyond = "an empty one takes several decodes" if one < 0 else f"up to {one} tokens take one decode"
    text = f"{longest.n_query_tokens} tokens: {longest.n_tokens} fed in {longest.n_decodes} decode"
    return text if longest.n_decodes == 1 else f"{text}s; {beyond}"


def _mib(n_bytes: int) -> str:
    return measured(n_bytes / (1 << 20))


def _prompt_rows(inspection: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("prompt", style="bold", no_wrap=True)
    table.add_column("scoring", no_wrap=True)
    for name in ("cached", "shared", "added", "labels", "fed", "read", "leaves"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fast", no_wrap=True)
    table.add_column("shared with", overflow="fold")
    for prompt in inspection.prompts:
        tokens = prompt.prefix.n_tokens, prompt.prefix.n_shared, prompt.added.n_tokens
        labels = len(prompt.labels), prompt.n_tokens_labels, prompt.n_positions, prompt.n_leaves
        table.add_row(
            Text(printable(prompt.name)),
            prompt.scoring,
            *map(str, (*tokens, *labels)),
            "yes" if prompt.fast_path else "no",
            Text(_shared_with(prompt, len(inspection.prompts))),
        )
    return table


def _shared_with(prompt: PromptInspection, n_prompts: int) -> str:
    names = prompt.prefix.shared_with
    return "all" if n_prompts > 2 and len(names) == n_prompts - 1 else printable(", ".join(names))


def _prompt_tree(prompt: PromptInspection, answering: Answering) -> Tree:
    tree = Tree(Text(printable(prompt.name), style="bold"), guide_style="dim")
    tree.add(Text(f"blocks {' '.join(prompt.prefix.block_hashes)}", style="dim"))
    tree.add(Text(f"added  {_sequence(prompt.added.fragment)} + {_sequence(prompt.added.suffix)}", style="dim"))
    if text := _answering(answering):
        tree.add(Text(printable(f"answer {text}"), style="dim"))
    _add_children(tree, prompt.trie)
    return tree


def _answering(answering: Answering) -> str:
    """What is done to a prompt's scores and its answer; empty where nothing is."""
    parts = [] if answering.temperature == 1 else [f"temperature {answering.temperature:.3g}"]
    for name, values in (("prior", answering.prior), ("bias", answering.bias)):
        if values is not None:
            parts.append(f"{name} {min(values.values()):+.2f} to {max(values.values()):+.2f}")
    if answering.min_confidence is not None and answering.fallback is not None:
        parts.append(f"below {answering.min_confidence:g}: {answering.fallback}")
    return ", ".join(parts)


def _add_children(tree: Tree, node: TrieNode) -> None:
    """Add the fed nodes as branches, and on one line the labels whose further tokens are not fed."""
    ends = [_label_end(child) for child in node.children if not child.fed]
    if ends:
        tree.add(Text(", ".join(ends)))
    for child in node.children:
        if child.fed:
            _add_children(tree.add(Text(f"{visible(child.text)}  (fed{', read' if child.read else ''})")), child)


def _label_end(node: TrieNode) -> str:
    """The tokens from a node that is not fed to the end of its label; no other label has them."""
    texts = [node.text]
    while node.children:
        node = node.children[0]
        texts.append(node.text)
    words = " ".join(map(visible, texts))
    # an end-of-label token does not tell which label it ends
    return words if node.label is None or node.label.endswith(texts[-1].strip()) else f"{words} ({visible(node.label)})"


def _sequence(tokens: tuple[Token, ...]) -> str:
    return " ".join(visible(token.text) for token in tokens) or "nothing"


def visible(text: str) -> str:
    """A token's text with its spaces visible, so that tokens can be parted by spaces."""
    return printable(text).replace(" ", "␣")
