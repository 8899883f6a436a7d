"""A sequential test, with a stated rate of false alarms, of whether new values are distributed like a reference.

Values are bins: whole numbers from 0 on. If the reference's values and the new ones are exchangeable, the smoothed rank
of each new value among the reference and all earlier values is uniform and independent of the other ranks (Vovk,
Gammerman and Shafer 2005, "Algorithmic learning in a random world", 8.1). So the product of any densities that are
chosen before each rank is a martingale, which exceeds 1 / α with probability at most α (Ville 1939). The density is the
histogram of the earlier ranks (plug-in martingales: Fedorova et al. 2012).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

FALSE_ALARMS = 0.01
"""the most probable a false alarm may be in a window in which nothing has changed"""
WINDOW = 500
"""after so many values a test starts again, so that later changes are found, too"""
_N_RANKS, _PRIOR = 10, 2.0
_MOST_LOGIT = 12.0


def probability_bin(p: float) -> int:
    """The bin of a probability: each bin is half a unit of the log-odds."""
    if p <= 0 or p >= 1:
        return 0 if p <= 0 else int(4 * _MOST_LOGIT)
    return int(2 * (min(max(math.log(p / (1 - p)), -_MOST_LOGIT), _MOST_LOGIT) + _MOST_LOGIT))


def length_bin(n: int) -> int:
    """The bin of a length: four bins for each doubling."""
    return int(4 * math.log2(1 + n))


class DriftTest:
    """Tests several quantities of one stream together: the mean of their martingales is a martingale, too."""

    def __init__(self, references: Mapping[str, Mapping[int, int]], seed: int = 0) -> None:
        """references: by quantity, how often each bin is in the reference; seed: of the smoothed ranks."""
        self._references = {name: dict(counts) for name, counts in references.items()}
        self._random = np.random.default_rng(seed)
        self.alarms: list[int] = []
        """the number of values at each alarm"""
        self.n = 0
        self._begin()

    @property
    def n_windows(self) -> int:
        """Windows that were begun."""
        return -(-self.n // WINDOW)

    def _begin(self) -> None:
        self._has_alarmed = False
        self._counts = {name: dict(counts) for name, counts in self._references.items()}
        self._ranks = {name: [_PRIOR] * _N_RANKS for name in self._references}
        self.log_evidence = dict.fromkeys(self._references, 0.0)
        """by quantity, the logarithm of its martingale in this window"""

    def add(self, values: Mapping[str, int]) -> str | None:
        """Add one value of each quantity. Returns the quantity that changed most if there is an alarm now, else None.

        A window has at most one alarm.
        """
        if self.n % WINDOW == 0:
            self._begin()
        self.n += 1
        if self._has_alarmed:
            return None
        for (name, value), u in zip(values.items(), self._random.random(len(values)).tolist(), strict=True):
            if name in self._references:
                self.log_evidence[name] += self._bet(name, value, u)
        largest = max(self.log_evidence, key=lambda name: self.log_evidence[name])
        if mean_log(list(self.log_evidence.values())) >= -math.log(FALSE_ALARMS):
            self._has_alarmed = True
            self.alarms.append(self.n)
            return largest
        return None

    def _bet(self, name: str, value: int, u: float) -> float:
        """The logarithm of the density at a value's rank."""
        counts, ranks = self._counts[name], self._ranks[name]
        counts[value] = own = counts.get(value, 0) + 1
        below = sum([n for each, n in counts.items() if each < value])
        rank = min(int((below + u * own) / sum(counts.values()) * _N_RANKS), _N_RANKS - 1)
        density = ranks[rank] / sum(ranks) * _N_RANKS
        ranks[rank] += 1
        return math.log(density)


def mean_log(values: Sequence[float]) -> float:
    """The logarithm of the mean of numbers that are given by their logarithms."""
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values) / len(values))
