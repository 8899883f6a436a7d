"""Train the network on generated queries, both prompt styles at once.

    python models/tiny/train.py --out FOLDER --minutes 8

Writes the averaged weights to FOLDER/weights-*.npz (float32, in parts) and a log to FOLDER/train.log.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from corpus import TokenSet, read_queries, tokenise, training_set
from net import Net, Shape
from prompts import HERE, Encoder
from rows import Layout
from torch import Tensor
from trainer import Trainer


def batches(data: TokenSet, budget: int, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Index arrays of queries of about equal length, in random order; `budget` query tokens, at most `most` queries."""
    length = np.diff(data.offset)
    order = rng.permutation(len(data))
    order = order[length[order] <= 200]
    out = []
    for part in np.array_split(order, max(1, len(order) // (most * 64))):
        part = part[np.argsort(length[part], kind="stable")]
        start = 0
        while start < len(part):
            stop = min(start + most, len(part))
            while (stop - start) * length[part[stop - 1]] > budget and stop - start > 16:
                stop = start + (stop - start) * 3 // 4
            out.append(part[start:stop])
            start = stop
    return [out[i] for i in rng.permutation(len(out))]


def gather(data: TokenSet, index: np.ndarray, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Padded query tokens (n, Lq), their lengths (n,), and label indices (n, 8)."""
    start, stop = data.offset[index], data.offset[index + 1]
    length = stop - start
    column = np.arange(int(length.max()))
    where = np.minimum(start[:, None] + column, len(data.ids) - 1)
    token = np.where(column < length[:, None], data.ids[where], 0).astype(np.int64)
    arrays = (token, length, data.labels[index].astype(np.int64))
    token_t, length_t, label_t = (torch.from_numpy(a).to(device, non_blocking=True) for a in arrays)
    return token_t, length_t, label_t


def label_hidden(
    net: Net, layout: Layout, query: Tensor, length: Tensor, path: Tensor, chosen: list[int]
) -> tuple[Tensor, Tensor]:
    """Hidden states that predict the label tokens: of the chosen separate prompts and of all joint ones.

    path: (prompts, n, steps) the label ids to follow. Returns (chosen or prompts, n, steps, n_embd).
    """
    path = path[:, :, : layout.n_steps - 1].clamp(min=0)
    groups = [layout.separate(query, length, path[chosen], chosen), layout.joint(query, length, path)]
    one, other = net(layout.prefix, groups)
    n, width = query.shape
    one = one.view(len(chosen), n, one.shape[1], -1)[:, :, layout.separate_columns(width)]
    other = other[:, layout.joint_columns(width)].transpose(0, 1)
    return one, other


def step_loss(net: Net, layout: Layout, query: Tensor, length: Tensor, label: Tensor, chosen: list[int]) -> Tensor:
    """Cross-entropy of label and end tokens over the whole vocabulary, the mean of both styles."""
    prompt = torch.arange(label.shape[1], device=label.device)[:, None]
    target = layout.label_ids[prompt, label.T]
    loss = torch.zeros((), device=label.device)
    hidden = label_hidden(net, layout, query, length, target, chosen)
    for states, wanted in zip(hidden, (target[chosen], target), strict=True):
        keep = wanted >= 0
        loss = loss + F.cross_entropy(net.lm_head(states[keep]).float(), wanted[keep]) / 2
    return loss


def predictions(net: Net, layout: Layout, data: TokenSet, device: str) -> list[np.ndarray]:
    """The winning label of every query and prompt by the tree rule, for each style, (n, 8).

    One pass follows one fork of every prompt's label tree; the first pass also gives all labels without a fork.
    """
    n_prompts, most, _ = layout.label_ids.shape
    won: list[list[np.ndarray]] = [[], []]
    order = np.argsort(np.diff(data.offset), kind="stable")
    for part in np.array_split(order, max(1, len(data) // 64)):
        query, length, _ = gather(data, part, device)
        score = torch.full((2, n_prompts, len(part), most), -torch.inf, device=device)
        for k in range(max(1, *(len(forks) for forks in layout.forks))):
            followed = [list(forks.values())[k] if k < len(forks) else 0 for forks in layout.forks]
            path = layout.label_ids[torch.arange(n_prompts), followed][:, None].expand(-1, len(part), -1)
            hidden_of = label_hidden(net, layout, query, length, path, list(range(n_prompts)))
            for style, hidden in enumerate(hidden_of):
                logits = net.lm_head(hidden).float()
                for p, ids in enumerate(layout.label_ids):
                    for label, token in enumerate(ids[:, 0].tolist()):
                        wanted = token == int(ids[followed[p], 0]) if token in layout.forks[p] else k == 0
                        if wanted and token >= 0:
                            score[style, p, :, label] = tree_score(ids, label, logits[p])
        for style in (0, 1):
            won[style].append(score[style].argmax(-1).T.cpu().numpy())
    back = np.argsort(order)
    return [np.concatenate(parts)[back] for parts in won]


def tree_score(ids: Tensor, label: int, logits: Tensor) -> Tensor:
    """Log-probability of a label: a softmax over the children of each node on its path; logits: (n, steps, n_vocab)."""
    path = ids[label]
    total = torch.zeros(logits.shape[0], device=logits.device)
    alive = ids[:, 0] >= 0
    for step, token in enumerate(path.tolist()):
        if token < 0:
            break
        children = ids[alive, step].unique()
        if len(children) > 1:
            total = total + logits[:, step, token] - logits[:, step, children].logsumexp(-1)
        alive = alive & (ids[:, step] == token)
    return total


def accuracy(net: Net, layout: Layout, data: TokenSet, device: str) -> list[list[float]]:
    """The share of right labels per style and prompt."""
    net.eval()
    with torch.no_grad():
        result = [(won == data.labels).mean(0).tolist() for won in predictions(net, layout, data, device)]
    net.train()
    return result


def save(net: Net, folder: Path, parts: int = 3) -> None:
    """The weights as float32, spread over `parts` files of about equal size."""
    files: list[dict[str, np.ndarray]] = [{} for _ in range(parts)]
    for name, value in sorted(net.state_dict().items(), key=lambda item: -item[1].numel()):
        smallest = min(files, key=lambda f: sum(a.size for a in f.values()))
        smallest[name] = value.detach().float().cpu().numpy()
    for i, arrays in enumerate(files):
        np.savez(folder / f"weights-{i}.npz", **arrays)  # type: ignore[arg-type]


def load(folder: Path) -> Net:
    """The network that `save` wrote, with as many layers as it has."""
    state = {k: torch.from_numpy(v) for f in sorted(folder.glob("weights-*.npz")) for k, v in np.load(f).items()}
    n_layer = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
    net = Net(replace(Shape(), n_layer=n_layer))
    net.load_state_dict(state)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--chunks", type=int, default=150)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--queries", type=int, default=384)
    parser.add_argument(
        "--separate", type=int, default=3, help="separate prompts a step, drawn anew; the joint ones are all in"
    )
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=300, help="steps of rising learning rate")
    parser.add_argument("--start", type=Path, help="go on from the weights in this folder")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: by the clock alone)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    log = (args.out / "train.log").open("w", encoding="utf-8")

    def say(text: str) -> None:
        print(text, flush=True)
        print(text, file=log, flush=True)

    begin = time.monotonic()
    data = training_set(args.chunks, args.processes)
    dev = read_queries(HERE / "dev.jsonl")
    dev_set = tokenise([q for q, _ in dev], [labels for _, labels in dev])
    say(f"{len(data)} queries, {len(data.ids)} tokens in {time.monotonic() - begin:.0f} s")
    net = (load(args.start) if args.start else Net(Shape())).to(device)
    layout = Layout(Encoder(), device)
    say(f"{sum(p.numel() for p in net.parameters())} parameters on {device}")
    trainer = Trainer(net, rate=args.rate, warmup=args.warmup, decay=0.1, memory=0.999, fused=device == "cuda")
    rng = np.random.default_rng(1)
    queue: list[np.ndarray] = []
    begin, step, seen = time.monotonic(), 0, 0
    next_look = 2.0
    while True:
        elapsed = (time.monotonic() - begin) / 60
        done = max(elapsed / args.minutes, step / args.steps if args.steps else 0.0)
        if done >= 1:
            break
        if not queue:
            queue = batches(data, args.queries * 24, args.queries, rng)
        index = queue.pop()
        query, length, label = gather(data, index, device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            chosen = sorted(rng.choice(label.shape[1], args.separate, replace=False).tolist())
            loss = step_loss(net, layout, query, length, label, chosen)
        rate = trainer.step(loss, step, done)
        step, seen = step + 1, seen + len(index)
        if step % 100 == 0 or device == "cpu":
            say(f"step {step} queries {seen} minutes {elapsed:.2f} rate {rate:.2e} loss {loss.item():.4f}")
        if elapsed >= next_look:
            next_look += 2.0
            report(trainer.average, layout, dev_set, device, say)
            save(trainer.average, args.out)
    say(f"trained for {(time.monotonic() - begin) / 60:.2f} minutes, {step} steps, {seen} queries")
    save(trainer.average, args.out)
    report(trainer.average, layout, dev_set, device, say)


def report(net: Net, layout: Layout, data: TokenSet, device: str, say: Callable[[str], None]) -> None:
    """Print the accuracy per prompt and style."""
    for style, row in zip(("separate", "joint"), accuracy(net, layout, data, device), strict=True):
        say(f"{style:9}" + " ".join(f"{p.name} {a:.4f}" for p, a in zip(layout.prompts, row, strict=True)))


if __name__ == "__main__":
    main()
