"""The least tokens that any plan must feed for some requests, from the prompts alone.

Takes nothing from the planner, so that the planner can be judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..prompts.compiled import Prompt

Path = tuple[int, ...]


def least_tokens(prompts: Sequence[Prompt], fragments: Iterable[Sequence[Sequence[int]]]) -> int:
    """Distinct token paths from position 0 up to every hidden state that a score reads, less those stored already.

    fragments: for each query, for each prompt, the tokens of before + query + after. A hidden state that lies in a
    stored prefix has to be computed anew, and counts.
    """
    stored = {path for prompt in prompts for path in _beginnings(prompt.prefix)}
    needed: set[Path] = set()
    read: set[Path] = set()
    for of_query in fragments:
        for prompt, fragment in zip(prompts, of_query, strict=True):
            ends = [(*prompt.head, *fragment, *prompt.tail)]
            for parent, token in prompt.trie.fed:
                ends.append((*ends[parent], token))
            for node in prompt.trie.read:
                read.add(ends[node])
                needed.update(_beginnings(ends[node]))
    return len((needed - stored) | read)


def _beginnings(path: Path) -> Iterable[Path]:
    return (path[:n] for n in range(1, len(path) + 1))
