"""Prompts as the model reads them, on a terminal: control tokens, cached and fed text and labels in colour."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from ..config.words import printable
from .records import TrieNode
from .shown_prompts import ShownPart, ShownPrompt, ShownPrompts, ShownToken
from .table import visible

_CACHED, _FED, _CONTROL, _READ = "blue", "bold green", "reverse", "bold yellow"


def shown_prompts_view(shown: ShownPrompts) -> Group:
    """Of each prompt the text, its tokens, and the label trie, then the warnings."""
    parts: list[RenderableType] = []
    for prompt in shown.prompts:
        parts += [*_prompt(prompt), Text()]
    if shown.warnings:
        parts.append(Text("warnings", style="bold yellow"))
    parts += [Text(f"- {printable(str(each))}", style="yellow") for each in shown.warnings]
    return Group(*parts)


def _prompt(prompt: ShownPrompt) -> list[RenderableType]:
    how = "" if prompt.fast_path else ", the query changes the cached prefix"
    title = Text(printable(prompt.name), style="bold")
    title.append(f"  {len(prompt.tokens)} tokens: ", style="not bold")
    title.append(f"{prompt.n_cached} cached", style=f"not bold {_CACHED}")
    title.append(", ", style="not bold")
    title.append(f"{prompt.n_fed} fed", style=_FED)
    title.append(f"{how}; then a label", style="not bold")
    text = Text(no_wrap=True, overflow="ignore")  # a terminal wraps it, a file has it as it is
    for part in prompt.parts:
        text.append(_lines(part.text), style=_style(part))
    return [
        title,
        text,
        Text("cached").append(_tokens([token for token in prompt.tokens if token.is_cached])),
        Text("fed   ").append(_tokens([token for token in prompt.tokens if not token.is_cached])),
        _labels(prompt.labels),
    ]


def _style(shown: ShownToken | ShownPart) -> str:
    return f"{_CACHED if shown.is_cached else _FED}{f' {_CONTROL}' if shown.is_control else ''}"


def _lines(text: str) -> str:
    """A token's text with its line breaks, and nothing else that a terminal would act on."""
    return "\n".join(map(printable, text.split("\n")))


def _tokens(tokens: list[ShownToken]) -> Text:
    found = Text()
    for token in tokens:
        found.append(" ").append(visible(token.text), style=_style(token))
    return found


def _labels(root: TrieNode) -> Tree:
    tree = Tree(Text("labels", style=_READ if root.read else ""), guide_style="dim")
    _add(tree, root)
    return tree


def _add(tree: Tree, node: TrieNode) -> None:
    """A line for each token that is tried behind a node; those that are fed have lines below them."""
    for child in node.children:
        style = f"{_READ} underline" if child.fed else _READ if node.read else "dim"
        line = Text(visible(child.text), style=style)
        if child.label is not None:
            line.append(f"  {printable(child.label)}", style="not bold not underline dim")
        _add(tree.add(line), child)
