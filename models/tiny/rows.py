"""Queries laid out as rows for the network: one row a prompt (separate style), one for all prompts (joint style)."""

from __future__ import annotations

import torch
from net import Group
from prompts import SPECIAL, Encoder, load_prompts
from torch import Tensor


def common_start(lists: list[list[int]]) -> int:
    """How many leading items all lists share."""
    n = 0
    while all(len(x) > n and x[n] == lists[0][n] for x in lists):
        n += 1
    return n


class Layout:
    """The fixed token ids of both styles on a device, and the rows of a batch of queries."""

    def __init__(self, encoder: Encoder, device: str) -> None:
        self.device = device
        self.encoder = encoder
        separate, joint = load_prompts("separate"), load_prompts("joint")
        self.prompts = separate
        stem, _ = encoder.query_stem(separate[0])
        bare = [
            encoder.template(p.before.removesuffix(stem)) + encoder.plain(stem.rstrip(" "))
            for p in [*separate, joint[0]]
        ]
        assert all(p.before == joint[0].before for p in joint), "the joint prompts differ before the query"
        self.lengths = [len(x) for x in bare]
        self.prefix = self.padded(bare)
        tails = [self._tail(p.after) for p in separate]
        assert len({tuple(t) for t in tails}) == 1, "the separate prompts differ after the query"
        self.tail = torch.tensor(tails[0], device=device)
        ends = [self._tail(p.after) for p in joint]
        shared = common_start(ends)
        self.shared = torch.tensor(ends[0][:shared], device=device)
        branches = [x[shared:] for x in ends]
        assert len({len(x) for x in branches}) == 1, "the joint prompts' own tails differ in length"
        self.branch = torch.tensor(branches, device=device)
        # (prompts, labels, tokens): each label's ids and its end token, -1 beyond; the two styles give the same ids.
        ids = [[[*encoder.label(p, label), encoder.end] for label in p.labels] for p in separate]
        assert ids == [[[*encoder.label(p, label), encoder.end] for label in p.labels] for p in joint]
        self.n_steps = max(len(x) for row in ids for x in row)
        most = max(len(row) for row in ids)
        self.label_ids = torch.full((len(ids), most, self.n_steps), -1, device=device)
        for i, row in enumerate(ids):
            for j, x in enumerate(row):
                self.label_ids[i, j, : len(x)] = torch.tensor(x, device=device)
        self.forks = [self._forks(row) for row in ids]

    @staticmethod
    def _forks(ids: list[list[int]]) -> dict[int, int]:
        """First tokens that several labels share, each with one of those labels."""
        first = [x[0] for x in ids]
        assert len({tuple(x[:2]) for x in ids}) == len(ids), "labels that share two tokens need a deeper search"
        return {token: first.index(token) for token in first if first.count(token) > 1}

    def _tail(self, after: str) -> list[int]:
        first, *_ = SPECIAL.split(after)
        assert not first, "text right after the query would merge with it"
        return self.encoder.template(after)

    def padded(self, lists: list[list[int]]) -> Tensor:
        """Lists of ids as a matrix, filled with zeros on the right."""
        out = torch.zeros((len(lists), max(map(len, lists))), dtype=torch.long, device=self.device)
        for i, x in enumerate(lists):
            out[i, : len(x)] = torch.tensor(x, device=self.device)
        return out

    def separate(self, query: Tensor, length: Tensor, path: Tensor, chosen: list[int]) -> Group:
        """Rows [query, tail, path] for the chosen prompts; query: (n, Lq), length: (n,), path: (chosen, n, steps)."""
        n, width = query.shape
        prompts = len(chosen)
        fixed = self.tail.expand(prompts, n, -1)
        token = torch.cat([query.expand(prompts, -1, -1), fixed, path], dim=2).flatten(0, 1)
        column = torch.arange(token.shape[1], device=self.device)
        inside = (column < length[:, None]) | (column >= width)
        mask = inside[:, None, :] & (column[:, None] >= column) | torch.eye(
            len(column), dtype=torch.bool, device=self.device
        )
        depth = torch.where(column < width, column, length[:, None] + column - width)
        start = torch.tensor([self.lengths[p] for p in chosen], device=self.device)
        pos = (start[:, None, None] + depth).flatten(0, 1)
        index = torch.tensor(chosen, device=self.device)
        return Group(index, n, token, pos, mask, start, max(self.lengths[p] for p in chosen))

    def separate_columns(self, width: int) -> Tensor:
        """The columns whose hidden states predict the label's tokens, (steps,)."""
        return torch.arange(self.n_steps, device=self.device) + width + len(self.tail) - 1

    def joint(self, query: Tensor, length: Tensor, path: Tensor) -> Group:
        """Rows [query, shared tail, one branch a prompt]; a branch sees and goes on from the trunk."""
        n, width = query.shape
        own = self.branch.expand(n, -1, -1)
        branch = torch.cat([own, path.transpose(0, 1)], dim=2)
        token = torch.cat([query, self.shared.expand(n, -1), branch.flatten(1)], dim=1)
        trunk, step = width + len(self.shared), branch.shape[2]
        column = torch.arange(token.shape[1], device=self.device)
        owner = torch.where(column < trunk, -1, (column - trunk) // step)
        same = (owner == -1) | (owner[:, None] == owner)
        inside = (column < length[:, None]) | (column >= width)
        eye = torch.eye(len(column), dtype=torch.bool, device=self.device)
        mask = inside[:, None, :] & ((column[:, None] >= column) & same) | eye
        flat = torch.where(column < trunk, column, trunk + (column - trunk) % step)
        depth = torch.where(column < width, column, length[:, None] + flat - width)
        start = torch.tensor(self.lengths[-1:], device=self.device)
        index = torch.tensor([len(self.lengths) - 1], device=self.device)
        return Group(index, n, token, start + depth, mask, start, self.lengths[-1])

    def joint_columns(self, width: int) -> Tensor:
        """The columns that predict each branch's label tokens, (prompts, steps)."""
        own = self.branch.shape[1]
        first = width + len(self.shared) + torch.arange(len(self.branch), device=self.device) * (own + self.n_steps - 1)
        return first[:, None] + own - 1 + torch.arange(self.n_steps, device=self.device)
