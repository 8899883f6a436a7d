"""`qcls-gguf inspect`: parsing and printing only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..classifier import Classifier
from ..inspection.inspect import inspect_classifier
from ..inspection.result import Answering, Inspection, PromptInspection, Token, TrieNode
from ..report.results import console, printable
from .options import (
    ConfigOption,
    FormatOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    RecordFormat,
    RepoOption,
    ScoringOption,
    ThreadsOption,
    settings,
)
from .terminal import exit_codes, load_bar, print_step


def inspect_command(
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    threads: ThreadsOption = None,
    format_: FormatOption = RecordFormat.table,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
    """Show what a configuration costs with a model, before any query, and what could be cheaper or clearer.

    Per prompt the cached tokens, the tokens that every request adds, each label's tokens and the label trie; for all
    prompts together the tokens of an empty query, the sequences and the context. Exit codes are those of run.

    JSON is one object; TOKEN is {"token", "text"}, "token" the id. Keys stay; new ones may come.

    \b
    {"config", "model": {as in run}, "startup_ms": {STEP: ms},
     "context": {"n_ctx", "n_batch", "n_outputs_max", "n_cells_prefixes",
                 "why_no_visible_cells": why attention reads every used cell, null where only those a token may see},
     "sequences": {"n_holders", "n_leaves", "max_batch", "n_needed", "n_seq_max", "n_limit"},
     "request": {"n_decodes", "n_tokens", "n_tokens_fragment", "n_tokens_suffix", "n_tokens_labels",
                 "n_tokens_unshared", "n_tokens_one_text", "n_tokens_cached", "n_positions", "n_query_copies"},
     "prompts": [{"name", "scoring", "fast_path",
                  "prefix": {"n_tokens", "block_hashes": [HEX], "n_shared", "shared_with": [NAME]},
                  "added": {"n_tokens", "fragment": [TOKEN], "suffix": [TOKEN]},
                  "n_tokens_labels", "n_positions", "n_leaves",
                  "labels": [{"label", "tokens": [TOKEN], "end": TOKEN or null}],
                  "trie": {"token", "text", "label", "fed", "read", "children": [the same]}}],
     "answering": [{"prompt", "temperature", "prior": {LABEL: number} or null, "bias": the same,
                    "min_confidence", "fallback"}],
     "advice": [{"kind": reorder|suffix|sequences|collision|missing|alike, "prompts": [NAME], "text"}]}

    \b
    request     what an empty query feeds over all prompts: n_tokens are fragment (text around the query that is
                tokenised with it), suffix and labels (of several tokens); n_tokens_unshared with each prompt on
                its own; n_tokens_one_text with one text that differs in its last tokens; each token of a query is
                fed n_query_copies times
    sequences   n_needed = n_holders (prefixes) + n_leaves * max_batch, at most n_limit
    block_hashes  sha256 of the hash before and 16 tokens (int32), first 12 digits; the last block may be shorter
    n_shared    the longest beginning that a prefix has in common with another prompt's
    """
    with exit_codes():
        chosen = settings(config, model, hf_repo, n_gpu_layers, threads, scoring)
        with Classifier.from_config(
            chosen, offline=offline, on_step=None if quiet else print_step, on_load=load_bar(quiet)
        ) as classifier:
            inspection = inspect_classifier(classifier)
        if format_ is RecordFormat.json:
            print(json.dumps(inspection.to_dict(), ensure_ascii=False, indent=2, allow_nan=False), flush=True)
        else:
            console().print(inspection_table(inspection))


def inspection_table(inspection: Inspection) -> Group:
    """An inspection for people: the whole, a row a prompt, the label tries, the advice."""
    parts: list[RenderableType] = [_whole(inspection), Text(), _prompt_rows(inspection), Text()]
    parts += map(_prompt_tree, inspection.prompts, inspection.answering)
    parts.append(Text())
    if inspection.advice:
        parts.append(Text("advice", style="bold"))
    parts += [Text(f"- {printable(advice.text)}") for advice in inspection.advice]
    return Group(*parts)


def _whole(inspection: Inspection) -> Table:
    model, context = inspection.model, inspection.context
    sequences, request = inspection.sequences, inspection.request
    steps = ", ".join(f"{name} {ms:.0f}" for name, ms in inspection.startup_ms.items())
    table = _plain_table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("model", Text(printable(f"{Path(model.path).name}, {model.description}, {model.device}")))
    table.add_row("start-up", f"{sum(inspection.startup_ms.values()):.0f} ms: {steps}")
    table.add_row(
        "context",
        f"{context.n_ctx} cells, {context.n_cells_prefixes} of them prefixes; {context.n_batch} tokens and "
        f"{context.n_outputs_max} rows a decode",
    )
    why = context.why_no_visible_cells
    table.add_row("attention", "to the cells that a token may see" if why is None else f"to every used cell: {why}")
    table.add_row(
        "sequences",
        f"{sequences.n_needed}: prefixes {sequences.n_holders} + leaves {sequences.n_leaves} × max_batch "
        f"{sequences.max_batch}; {sequences.n_seq_max} opened, llama.cpp's limit is {sequences.n_limit}",
    )
    table.add_row(
        "empty query",
        f"{request.n_tokens} tokens in {request.n_decodes} decode{'s' * (request.n_decodes > 1)}: around the query "
        f"{request.n_tokens_fragment}, suffix {request.n_tokens_suffix}, labels {request.n_tokens_labels} "
        f"({request.n_tokens_unshared} unshared); {request.n_tokens_cached} cached, {request.n_positions} positions",
    )
    table.add_row("query token", f"fed {request.n_query_copies} time{'s' * (request.n_query_copies > 1)}")
    return table


def _prompt_rows(inspection: Inspection) -> Table:
    table = _plain_table(header=True)
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
    found = [] if answering.temperature == 1 else [f"temperature {answering.temperature:.3g}"]
    for name, values in (("prior", answering.prior), ("bias", answering.bias)):
        if values is not None:
            found.append(f"{name} {min(values.values()):+.2f} to {max(values.values()):+.2f}")
    if answering.min_confidence is not None and answering.fallback is not None:
        found.append(f"below {answering.min_confidence:g}: {answering.fallback}")
    return ", ".join(found)


def _add_children(tree: Tree, node: TrieNode) -> None:
    """Fed nodes as branches; the labels that part from a node without one on a line together."""
    ends = [_way(child) for child in node.children if not child.fed]
    if ends:
        tree.add(Text(", ".join(ends)))
    for child in node.children:
        if child.fed:
            _add_children(tree.add(Text(f"{_shown(child.text)}  (fed{', read' if child.read else ''})")), child)


def _way(node: TrieNode) -> str:
    """The tokens from a node that is not fed to its label: there is one way only."""
    texts = [node.text]
    while node.children:
        node = node.children[0]
        texts.append(node.text)
    words = " ".join(map(_shown, texts))
    # an end-of-label token does not tell which label it ends
    return words if node.label is None or node.label.endswith(texts[-1].strip()) else f"{words} ({_shown(node.label)})"


def _plain_table(*, header: bool = False) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="dim")


def _sequence(tokens: tuple[Token, ...]) -> str:
    return " ".join(_shown(token.text) for token in tokens) or "nothing"


def _shown(text: str) -> str:
    """A token's text with its spaces visible, so that tokens can be parted by spaces."""
    return printable(text).replace(" ", "␣")
