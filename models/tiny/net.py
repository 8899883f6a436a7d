"""The network as it is trained: Qwen3, with the prompts' fixed text computed once for all queries of a step.

Same arithmetic as Hugging Face's Qwen3ForCausalLM on each rendered prompt; only the layout of the work differs. A step
sees prefixes (the text before the query, one row a prompt) and groups of rows that continue one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network."""

    n_vocab: int = 4096
    n_embd: int = 256
    n_layer: int = 8
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 768
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    n_ctx: int = 1024


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that continue prefixes: `n` rows for each prefix in `prefix`, ordered by prefix, then by row.


    token, pos: (prefixes * n, L); mask: (n, L, L), true where a row's token sees another of its own
    row; length: (prefixes,) the prefixes' real lengths, the longest of them `span`.
    """

    prefix: Tensor
    n: int
    token: Tensor
    pos: Tensor
    mask: Tensor
    length: Tensor
    span: int


def rope(x: Tensor, pos: Tensor, theta: float) -> Tensor:
    """Rotary embedding, halves paired as in Hugging Face's Qwen3; x: (rows, L, heads, head_dim), pos: (rows, L)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = pos[..., None].float() * frequency
    cos, sin = angle.cos()[:, :, None].to(x.dtype), angle.sin()[:, :, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, k_prefix: Tensor, v_prefix: Tensor, g: Group) -> Tensor:
    """Attention of rows to their prefix and to themselves; q, k, v: (prefixes * n, L, heads, head_dim)."""
    heads, dim = q.shape[2:]
    p, length = k_prefix.shape[0], q.shape[1]
    q, k, v = (t.view(p, g.n, length, heads, dim).permute(0, 3, 1, 2, 4).contiguous() for t in (q, k, v))
    k_prefix, v_prefix = k_prefix.transpose(1, 2), v_prefix.transpose(1, 2)
    q = q * dim**-0.5
    far = (q.view(p, heads, g.n * length, dim) @ k_prefix.transpose(2, 3)).view(p, heads, g.n, length, g.span)
    near = q @ k.transpose(3, 4)
    beyond = torch.arange(g.span, device=q.device) >= g.length[:, None]
    far = far.masked_fill(beyond[:, None, None, None, :], -torch.inf)
    near = near.masked_fill(~g.mask[:, None].transpose(0, 1), -torch.inf)
    weight = torch.cat([far, near], dim=-1).float().softmax(dim=-1).to(v.dtype)
    far, near = weight.split([g.span, length], dim=-1)
    out = (far.reshape(p, heads, g.n * length, g.span) @ v_prefix).view(p, heads, g.n, length, dim) + near @ v
    return out.permute(0, 2, 3, 1, 4).reshape(p * g.n, length, heads * dim)


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """One layer: attention with per-head norms of queries and keys, then a SwiGLU."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        q, kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        self.input_layernorm = nn.RMSNorm(s.n_embd, s.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(s.n_embd, s.norm_eps)
        self.q_norm = nn.RMSNorm(s.head_dim, s.norm_eps)
        self.k_norm = nn.RMSNorm(s.head_dim, s.norm_eps)
        self.q_proj = nn.Linear(s.n_embd, q, bias=False)
        self.k_proj = nn.Linear(s.n_embd, kv, bias=False)
        self.v_proj = nn.Linear(s.n_embd, kv, bias=False)
        self.o_proj = nn.Linear(q, s.n_embd, bias=False)
        self.gate_proj = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.up_proj = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.down_proj = nn.Linear(s.n_ff, s.n_embd, bias=False)

    def qkv(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows x: (rows, L, n_embd), keys and values repeated to n_head heads."""
        rows, length = pos.shape
        q = self.q_norm(self.q_proj(x).float().view(rows, length, self.s.n_head, -1))
        k = self.k_norm(self.k_proj(x).float().view(rows, length, self.s.n_head_kv, -1))
        v = self.v_proj(x).view(rows, length, self.s.n_head_kv, -1)
        q, k = rope(q, pos, self.s.rope_theta), rope(k, pos, self.s.rope_theta)
        share = self.s.n_head // self.s.n_head_kv
        q, k = q.to(v.dtype), k.to(v.dtype)
        return q, k.repeat_interleave(share, dim=2), v.repeat_interleave(share, dim=2)

    def mlp(self, x: Tensor) -> Tensor:
        """The feed-forward half, residual included."""
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))

    def forward(
        self, prefix: Tensor, prefix_pos: Tensor, rows: list[Tensor], groups: list[Group]
    ) -> tuple[Tensor, list[Tensor]]:
        """Prefixes (P, Lp, n_embd) and the rows of each group (prefixes * n, L, n_embd) through the layer."""
        q, k_prefix, v_prefix = self.qkv(self.input_layernorm(prefix), prefix_pos)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k_prefix.transpose(1, 2), v_prefix.transpose(1, 2), is_causal=True
        )
        new_prefix = self.mlp(prefix + self.o_proj(out.transpose(1, 2).flatten(2)))
        results = []
        for x, g in zip(rows, groups, strict=True):
            q, k, v = self.qkv(self.input_layernorm(x), g.pos)
            out = attend(q, k, v, k_prefix[g.prefix, : g.span], v_prefix[g.prefix, : g.span], g)
            results.append(self.mlp(x + self.o_proj(out)))
        return new_prefix, results


class Net(nn.Module):  # type: ignore[misc, unused-ignore]
    """The whole network; `forward` gives hidden states after the final norm, `head` turns them into logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = nn.RMSNorm(shape.n_embd, shape.norm_eps)
        self.lm_head = nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 0.02 if not name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02 / shape.n_layer**0.5
                nn.init.normal_(p, std=scale)

    def forward(self, prefix_token: Tensor, groups: list[Group]) -> list[Tensor]:
        """Final hidden states of each group's rows; prefix_token: (P, Lp), padded on the right with any token."""
        prefix = self.embed_tokens(prefix_token)
        pos = torch.arange(prefix.shape[1], device=prefix.device).expand(prefix.shape[0], -1)
        rows = [self.embed_tokens(g.token) for g in groups]
        for layer in self.layers:
            prefix, rows = layer(prefix, pos, rows, groups)
        return [self.norm(x) for x in rows]


def gguf_name(name: str) -> str:
    """The GGUF name of a parameter of the network."""
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    if name.startswith("layers."):
        _, layer, part, suffix = name.split(".")
        return f"blk.{layer}.{parts[part]}.{suffix}"
    return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}.get(name, "output.weight")
