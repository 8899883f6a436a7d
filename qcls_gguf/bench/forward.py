"""How long one decode of T new tokens takes, over T: the shape alone, without tokenizer, planner and scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from ..classifier import Classifier
from ..engine.engine import Decoded, Engine, Root
from ..errors import ConfigError
from ..plan.tree import Plan, TokenTree
from .roofline import Floor
from .stats import ratio, summary

DEFAULT_TOKENS = (1, 8, 9, 16, 24, 26, 32, 40, 48, 52, 56, 64, 80, 96, 104, 112, 128, 160)
N_OUTPUTS = 2
# Of each turn of a shape: the first decodes build its graph and let CUDA capture it, and are not counted.
N_DISCARDED = 3
N_COUNTED = 5


def forward_tokens(classifier: Classifier, given: Sequence[int] | None) -> tuple[int, ...]:
    """The sizes to sweep: those given, or those of the default list that one decode holds. Raises ConfigError."""
    n_batch = classifier.parts.engine.context.n_batch
    too_many = [n for n in given or () if n > n_batch]
    if too_many:
        raise ConfigError(
            f"`tokens` {too_many[0]}: one decode holds {n_batch} tokens here: leave it out, or raise runtime.n_batch"
        )
    return tuple(given) if given else tuple(n for n in DEFAULT_TOKENS if n <= n_batch)


def sweep(
    classifier: Classifier, tokens: Sequence[int], n_rounds: int, on_turn: Callable[[], None]
) -> dict[int, list[float]]:
    """Milliseconds of decodes of each size behind the first prompt's stored prefix, interleaved over the sizes."""
    engine, root = classifier.parts.engine, _root(classifier)
    plans = {n: line_plan(engine, root, n) for n in tokens}
    found: dict[int, list[float]] = {n: [] for n in plans}
    for _ in range(n_rounds):
        for n, plan in plans.items():
            times = [timed_decode(engine, plan, root)[1] for _ in range(N_DISCARDED + N_COUNTED)]
            found[n] += times[N_DISCARDED:]
            on_turn()
    return found


def _root(classifier: Classifier) -> Root:
    prefix = classifier.prompts[0].prefix
    return Root(holder=classifier.parts.engine.holder(prefix), n_cached=len(prefix))


def line_plan(engine: Engine, root: Root, n_tokens: int, n_company: int = 0) -> Plan:
    """A line of n_tokens tokens of which the last few are read; n_company: of another line, which is not read."""
    text = engine.model.tokenize(" red dress for girls in summer", parse_special=False).tolist()
    tree = TokenTree()
    start = node = tree.add_root(root.n_cached)
    for i in range(n_tokens):
        node = tree.add_path(node, [text[i % len(text)]])
        if i >= n_tokens - min(N_OUTPUTS, engine.context.n_outputs_max):
            tree.read(node)
    if n_company:
        tree.add_path(start, [text[-1 - i % len(text)] for i in range(n_company)])
    return tree.finish(engine.leaf_seqs(2 if n_company else 1))


def timed_decode(engine: Engine, plan: Plan, root: Root) -> tuple[Decoded, float]:
    """A decode of a plan whose leaves all grow from root, and its milliseconds without the trimming behind it."""
    begun = perf_counter_ns()
    decoded = engine.decode(plan, [root] * plan.n_leaves)
    return decoded, (perf_counter_ns() - begun) / 1e6 - decoded.trim_us / 1e3


def forward_record(classifier: Classifier, found: dict[int, list[float]], floor: Floor) -> dict[str, Any]:
    """The sweep as JSON has it."""
    rows = []
    for n, times in found.items():
        ms = summary(times)
        floor_ms = floor.ms(n_tokens=n, n_rows=min(N_OUTPUTS, n))
        rows.append(
            {
                "n_tokens": n,
                "ms": {name: ms[name] for name in ("min", "p50", "p90")},
                "tokens_per_s": 1e3 * n / ms["p50"],
                "n_decodes": len(times),
                "floor_ms": floor_ms,
                "floor_ratio": ratio(ms["p50"], floor_ms),
            }
        )
    prompt = classifier.prompts[0]
    return {"prompt": prompt.name, "n_cached": len(prompt.prefix), "n_outputs": N_OUTPUTS, "sizes": rows}
