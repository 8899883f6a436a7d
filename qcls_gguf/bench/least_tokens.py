"""The least tokens that any plan must feed for some requests, from the prompts alone.

Takes nothing from the planner, so that the planner can be judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..prompts.compiled import Prompt

Path = tuple[int, ...]


def least_tokens(prompts: Sequence[Prompt], fragments: Iterable[Sequence[Sequence[int]]]) -> int:
    """The distinct token paths from position 0 to every hidden state that a score reads, less those that are stored.

    fragments: for each query, for each prompt, the tokens of before + query + after. The last token of a stored prefix
    counts where a score reads its hidden state, since only its keys and values are stored.
    """
    stored = {path for prompt in prompts for path in _path_prefixes(prompt.prefix)}
    needed: set[Path] = set()
    read: set[Path] = set()
    for query_fragments in fragments:
        for prompt, fragment in zip(prompts, query_fragments, strict=True):
            ends = [(*prompt.head, *fragment, *prompt.tail)]
            for parent, token in prompt.trie.fed:
                ends.append((*ends[parent], token))
            for node in prompt.trie.read:
                read.add(ends[node])
                needed.update(_path_prefixes(ends[node]))
    return len((needed - stored) | read)


def _path_prefixes(path: Path) -> Iterable[Path]:
    return (path[:n] for n in range(1, len(path) + 1))
