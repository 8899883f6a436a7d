"""Steps of the training: AdamW at a rate that rises and then falls, and an average of the weights so far."""

from __future__ import annotations

import copy
import math

import torch
from net import Net
from torch import Tensor


class Trainer:
    """Trains a network; `average` is the one to keep."""

    def __init__(self, net: Net, *, rate: float, warmup: int, decay: float, memory: float, fused: bool = False) -> None:
        """rate: the highest; warmup: steps until it is reached; decay: of matrices, per unit of the rate; memory: the
        most that the average keeps of itself at a step; fused: as AdamW takes it.
        """
        self.net, self.average = net, copy.deepcopy(net)
        self._rate, self._warmup, self._memory = rate, warmup, memory
        groups = [[p for p in net.parameters() if (p.dim() == 2) == matrix] for matrix in (True, False)]
        self.optimiser = torch.optim.AdamW(
            [{"params": group, "weight_decay": each} for group, each in zip(groups, (decay, 0.0), strict=True)],
            lr=rate,
            betas=(0.9, 0.98),
            fused=fused,
        )

    def step(self, loss: Tensor, step: int, done: float) -> float:
        """Go down the gradient of a loss, and return the rate. step: from 0; done: the share of the training so far."""
        falling = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))
        rate = self._rate * min(1.0, (step + 1) / self._warmup) * falling
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        keep = min(self._memory, (step + 1) / (step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1 - keep)
        return rate
