"""Hashes of a prefix by its blocks, each of which covers all tokens up to its end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

BLOCK_TOKENS = 16
"""Tokens of a hashed block; the last block of a prefix may have fewer."""


def block_digests(tokens: Sequence[int]) -> Iterator[bytes]:
    """A chain of sha256 digests: of the digest before, none for the first, and a block's tokens as little-endian int32.

    Equal digests mean equal tokens from the beginning to the end of that block.
    """
    digest = b""
    for start in range(0, len(tokens), BLOCK_TOKENS):
        block = np.array(tokens[start : start + BLOCK_TOKENS], "<i4").tobytes()
        digest = hashlib.sha256(digest + block).digest()
        yield digest
