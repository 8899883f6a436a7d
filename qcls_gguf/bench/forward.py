"""How long one decode of n new tokens takes, over n: the decode alone, without tokenizer, planner and scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

from ..classifier import Classifier
from ..engine.engine import Decoded, Engine
from ..errors import ConfigError
from ..plan.tree import Plan, Root, TokenTree
from .decode_records import ForwardRecord, ForwardSize
from .roofline import Roofline
from .stats import decode_quantiles, ratio

DEFAULT_TOKENS = (1, 8, 9, 16, 24, 26, 32, 40, 48, 52, 56, 64, 80, 96, 104, 112, 128, 160)
N_OUTPUTS = 2
# The first decodes of a size in a round build its graph and let CUDA capture it: they are not counted.
N_DISCARDED = 3
N_COUNTED = 5


def forward_tokens(classifier: Classifier, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """The given sizes, or those of the default list that one decode holds. Raises ConfigError for one it does not."""
    n_batch = classifier.engine.context.n_batch
    too_many = [n for n in sizes or () if n > n_batch]
    if too_many:
        raise ConfigError(
            f"`tokens` {too_many[0]}: one decode holds {n_batch} tokens here: leave it out, or raise runtime.n_batch"
        )
    return tuple(sizes) if sizes else tuple(n for n in DEFAULT_TOKENS if n <= n_batch)


def sweep(
    classifier: Classifier, tokens: Sequence[int], n_rounds: int, on_turn: Callable[[], None]
) -> dict[int, list[float]]:
    """Milliseconds of decodes by size, behind the first prompt's stored prefix; each round has all sizes in turn."""
    engine, root = classifier.engine, _root(classifier)
    plans = {n: sequence_plan(engine, root, n) for n in tokens}
    decode_ms: dict[int, list[float]] = {n: [] for n in plans}
    for _ in range(n_rounds):
        for n, plan in plans.items():
            times = [timed_decode(engine, plan, root)[1] for _ in range(N_DISCARDED + N_COUNTED)]
            decode_ms[n] += times[N_DISCARDED:]
            on_turn()
    return decode_ms


def _root(classifier: Classifier) -> Root:
    held = classifier.configured.active.held[0]
    return Root(holder=held.holder, n_cached=len(held.tokens))


def sequence_plan(engine: Engine, root: Root, n_tokens: int, n_other: int = 0) -> Plan:
    """One sequence of n_tokens new tokens, the last few of which are read.

    n_other: tokens of a second sequence in the same decode, none of which is read.
    """
    text = engine.model.tokenize(" red dress for girls in summer", parse_special=False).tolist()
    tree = TokenTree()
    start = node = tree.add_root(root.n_cached)
    for i in range(n_tokens):
        node = tree.add_path(node, [text[i % len(text)]])
        if i >= n_tokens - min(N_OUTPUTS, engine.context.n_outputs_max):
            tree.read(node)
    if n_other:
        tree.add_path(start, [text[-1 - i % len(text)] for i in range(n_other)])
    return tree.finish(range(2 if n_other else 1))


def timed_decode(engine: Engine, plan: Plan, root: Root) -> tuple[Decoded, float]:
    """Decode a plan whose leaves all begin at root; its milliseconds do not include the trimming after it."""
    begun = perf_counter_ns()
    decoded = engine.decode(plan, [root] * plan.n_leaves)
    return decoded, (perf_counter_ns() - begun) / 1e6 - decoded.trim_us / 1e3


def forward_record(
    classifier: Classifier, decode_ms: Mapping[int, Sequence[float]], roofline: Roofline
) -> ForwardRecord:
    """The sweep as the benchmark's record has it."""
    sizes = []
    for n, times in decode_ms.items():
        ms = decode_quantiles(times)
        roofline_ms = roofline.ms(n_tokens=n, n_rows=min(N_OUTPUTS, n))
        sizes.append(
            ForwardSize(
                n_tokens=n,
                ms=ms,
                tokens_per_s=1e3 * n / ms.p50,
                n_decodes=len(times),
                roofline_ms=roofline_ms,
                roofline_ratio=ratio(ms.p50, roofline_ms),
            )
        )
    prompt = classifier.prompts[0]
    return ForwardRecord(prompt=prompt.name, n_cached=len(prompt.prefix), n_outputs=N_OUTPUTS, sizes=tuple(sizes))
