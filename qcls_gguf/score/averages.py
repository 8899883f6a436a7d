"""Means over the orders in which prompts list their labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..prompts.compiled import Prompt
from ..statistics import AnyFloats


class Averages:
    """Joins what belongs to each listing of several prompts; the listings of a prompt lie side by side."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        n_listings = [1 + len(prompt.others) for prompt in prompts]
        n_labels = [len(prompt.labels) for prompt in prompts]
        begins = accumulate((n * k for n, k in zip(n_labels, n_listings, strict=True)), initial=0)
        # label by label its columns in all listings
        columns = [
            begin + np.arange(n * k).reshape(k, n).T.ravel()
            for begin, n, k in zip(begins, n_labels, n_listings, strict=False)
        ]
        self._columns = np.concatenate(columns)
        n_of_label = np.repeat(n_listings, n_labels)
        self._label_start = np.cumsum(n_of_label) - n_of_label
        self._n_of_label = n_of_label.astype(np.float32)
        self.first = [0, *accumulate(n_listings)][:-1]
        """the number of each prompt's first listing"""
        self._n = sum(n_listings)

    def mean(self, scores: AnyFloats) -> AnyFloats:
        """(n_queries, n_labels) each label's mean; scores: (n_queries, n) the labels of all listings side by side."""
        return np.asarray(np.add.reduceat(scores[:, self._columns], self._label_start, axis=1) / self._n_of_label)

    def all(self, flags: Sequence[bool]) -> list[bool]:
        """For each query, for each prompt, whether the flags of all its listings are set."""
        found: list[bool] = (
            np.logical_and.reduceat(np.reshape(flags, (-1, self._n)), self.first, axis=1).ravel().tolist()
        )
        return found
