"""Whether what comes is still like what came: a sequential test with a stated rate of false alarms.

Values are bins: whole numbers from 0 on. Under exchangeability of the reference's values and those that come, the
smoothed rank of each new one among the reference and all before it is uniform and independent of the other ranks (Vovk,
Gammerman and Shafer 2005, "Algorithmic learning in a random world", 8.1); so the product of any densities that are
chosen before each rank is a martingale, which exceeds 1 / α with probability at most α (Ville 1939). The density is the
histogram of the ranks before (plug-in martingales: Fedorova et al. 2012).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

FALSE_ALARMS = 0.01
"""of a window, at most, where nothing has changed"""
WINDOW = 500
"""values after which a test begins anew, so that later changes are found, too"""
_N_RANKS, _PRIOR = 10, 2.0
_MOST_LOGIT = 12.0


def probability_bin(p: float) -> int:
    """Half a unit of the log-odds a bin."""
    if p <= 0 or p >= 1:
        return 0 if p <= 0 else int(4 * _MOST_LOGIT)
    return int(2 * (min(max(math.log(p / (1 - p)), -_MOST_LOGIT), _MOST_LOGIT) + _MOST_LOGIT))


def length_bin(n: int) -> int:
    """A quarter of a doubling a bin."""
    return int(4 * math.log2(1 + n))


class DriftTest:
    """Several quantities of one stream, tested together: the mean of their martingales is one, too."""

    def __init__(self, references: Mapping[str, Mapping[int, int]], seed: int = 0) -> None:
        """references: by quantity, how often each bin is in the reference; seed: of the smoothed ranks."""
        self._references = {name: dict(counts) for name, counts in references.items()}
        self._random = np.random.default_rng(seed)
        self.alarms: list[int] = []
        """how many values had come at each alarm"""
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
        """Take one value of each quantity into account; the quantity that changed most where there is an alarm now.

        A window has one alarm at most.
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
    """The logarithm of the mean of what has these logarithms."""
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values) / len(values))
