"""Decodes of random tokens, and of some beside the cells of others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle import Float32Array, Node, decode, decode_sequence

from qcls_gguf.native import NativeContext

BRANCHING: dict[str, Any] = {"n_ctx": 1024, "n_batch": 128, "n_outputs_max": 128, "n_seq_max": 12}
"""The contexts that `random_decodes` takes."""


def random_tokens(random: np.random.Generator, context: NativeContext, n: int) -> list[int]:
    return [int(token) for token in random.integers(0, context.model.facts.n_vocab - 5, n)]


def random_decodes(
    random: np.random.Generator, both: Sequence[NativeContext], n_decodes: int, most_new: int
) -> list[Float32Array]:
    """Sequences branch, grow and are trimmed at random, alike in both contexts; the rows of each decode in each.

    most_new: tokens of a sequence at once.
    """
    found = []
    length = [0] * 12
    for _ in range(n_decodes):
        for seq in range(12):
            parent = int(random.integers(12))
            if random.random() < 0.3:
                length[seq] = int(random.integers(length[seq] + 1))
                for context in both:
                    context.trim(np.array([seq], np.int32), np.array([length[seq]], np.int32))
            elif length[seq] == 0 and length[parent] > 0:
                length[seq] = int(random.integers(1, length[parent] + 1))
                for context in both:
                    context.share(parent, seq, 0, length[seq])
        nodes = []
        for seq in random.permutation(12)[: random.integers(1, 6)].tolist():
            new = random_tokens(random, both[0], int(random.integers(1, most_new)))
            nodes += [Node(token, length[seq] + i, [seq]) for i, token in enumerate(new)]
            length[seq] += len(new)
        found.append(np.stack([decode(context, nodes) for context in both]))
        if sum(length) > 700:
            length = [0] * 12
            for context in both:
                context.clear()
    return found


def check_cells_of_others(
    random: np.random.Generator, context: NativeContext, tokens: list[int], wanted: Float32Array, n_foreign: int
) -> None:
    """A sequence has these rows, to a bit, with n_foreign cells of others in the cache, and scattered among theirs.

    The context decodes 512 tokens at once and has 48 sequences.
    """
    for start in range(0, n_foreign, 512):
        decode_sequence(context, random_tokens(random, context, 512), seq=47, start=start)
    np.testing.assert_array_equal(decode_sequence(context, tokens), wanted)
    context.clear()
    for seq in range(1, 47):  # every second sequence leaves a hole of some cells
        decode_sequence(context, random_tokens(random, context, 1 + seq % 3), seq=seq)
    context.trim(np.arange(2, 47, 2, dtype=np.int32), np.zeros(23, np.int32))
    np.testing.assert_array_equal(decode_sequence(context, tokens), wanted)
