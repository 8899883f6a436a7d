"""Fit a few layers of the embedded model to the joint style again: a smaller model, as a cascade's first stage.

    python models/tiny/small.py --search 3                      which three layers of the eight lose least, untrained
    python models/tiny/small.py --out FOLDER --layers 0,5,6     train them; writes what export.py reads

Embeddings, final norm, head and the layers that are kept come from models/fashion-tiny-Q8_0.gguf; the queries and their
labels from the generator's training part. Only the common text of configs/fashion-8-joint.yaml is trained. Runs on one
CPU thread; a run that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from corpus import TokenSet, read_queries, tokenise, training_chunk
from net import Net, Shape, gguf_name
from prompts import HERE, Encoder
from rows import Layout
from torch import Tensor
from train import batches, gather, save
from trainer import Trainer

SOURCE = HERE.parent / "fashion-tiny-Q8_0.gguf"
FIRST_CHUNK = 1000  # of the training queries: none that the embedded model was trained on
WHOLE_LABELS_EVERY = 4  # steps; the others learn labels' first tokens alone, which feeds a third fewer tokens


def source_weights() -> dict[str, Tensor]:
    """The embedded model's weights by the network's names."""
    tensors = {t.name: t for t in gguf.GGUFReader(SOURCE).tensors}
    found = {}
    for name, value in Net(Shape()).state_dict().items():
        tensor = tensors[gguf_name(name)]
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(value.shape))
        found[name] = torch.from_numpy(array.astype(np.float32))
    return found


def small_net(weights: dict[str, Tensor], layers: list[int]) -> Net:
    """A network of some of the embedded model's layers, in their order."""
    net = Net(replace(Shape(), n_layer=len(layers)))
    state = {name: value for name, value in weights.items() if not name.startswith("layers.")}
    for new, old in enumerate(layers):
        for name, value in weights.items():
            if name.startswith(f"layers.{old}."):
                state[name.replace(f"layers.{old}.", f"layers.{new}.", 1)] = value
    net.load_state_dict(state)
    return net


def label_logits(net: Net, layout: Layout, query: Tensor, length: Tensor, path: Tensor) -> Tensor:
    """Logits that predict each label token of the joint style, (prompts, n, steps, n_vocab).

    path: (prompts, n, steps - 1), the label tokens to follow.
    """
    group = layout.joint(query, length, path)
    prefix = layout.prefix[-1:, : layout.lengths[-1]]
    (hidden,) = net(prefix, [replace(group, prefix=torch.zeros(1, dtype=torch.long))])
    own, steps = layout.branch.shape[1], path.shape[2] + 1
    first = query.shape[1] + len(layout.shared) + torch.arange(len(layout.branch)) * (own + steps - 1)
    columns = first[:, None] + own - 1 + torch.arange(steps)
    logits: Tensor = net.lm_head(hidden[:, columns].transpose(0, 1))
    return logits


def loss_of(net: Net, layout: Layout, query: Tensor, length: Tensor, label: Tensor, steps: int) -> Tensor:
    """Cross-entropy of the labels' first `steps` tokens, their end included, over the whole vocabulary."""
    target = layout.label_ids[torch.arange(label.shape[1])[:, None], label.T][:, :, :steps]
    logits = label_logits(net, layout, query, length, target[:, :, :-1].clamp(min=0))
    return F.cross_entropy(logits.flatten(0, 2), target.flatten(), ignore_index=-1)


def first_tokens_right(net: Net, layout: Layout, data: TokenSet) -> list[float]:
    """For each prompt the share of queries whose label begins with the likeliest of all labels' first tokens."""
    right = torch.zeros(len(layout.prompts))
    with torch.no_grad():
        for part in np.array_split(np.argsort(np.diff(data.offset)), max(1, len(data) // 100)):
            query, length, label = gather(data, part, "cpu")
            logits = label_logits(net, layout, query, length, torch.zeros((len(right), len(part), 0), dtype=torch.long))
            for p, ids in enumerate(layout.label_ids[:, :, 0]):
                tokens = ids[ids >= 0].unique()
                won = tokens[logits[p, :, 0, tokens].argmax(-1)]
                right[p] += (won == ids[label[:, p]]).sum()
    return [float(n) / len(data) for n in right]


def search(weights: dict[str, Tensor], layout: Layout, data: TokenSet, n_layers: int) -> None:
    """Print the loss of every choice of layers, untrained, the least first."""
    query, length, label = gather(data, np.arange(48), "cpu")
    with torch.no_grad():
        found = [
            (float(loss_of(small_net(weights, list(layers)), layout, query, length, label, 1)), layers)
            for layers in combinations(range(Shape().n_layer), n_layers)
        ]
    for loss, layers in sorted(found)[:10]:
        print(f"layers {layers} loss {loss:.4f}")


def train(net: Net, layout: Layout, dev: TokenSet, args: argparse.Namespace) -> None:
    """Train with AdamW at a cosine rate, averaging the weights; every 20 steps a checkpoint."""
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(net, rate=args.rate, warmup=20, decay=0.05, memory=0.99)
    parts = {"net": net, "average": trainer.average, "optimiser": trainer.optimiser}
    state = args.out / "state.pt"
    start, seen, cpu_s = 0, 0, 0.0
    if state.exists():
        kept = torch.load(state)
        start, seen, cpu_s = kept["step"], kept["seen"], kept["cpu_s"]
        for name, part in parts.items():
            part.load_state_dict(kept[name])
    rng = np.random.default_rng(1)
    queue: list[tuple[TokenSet, np.ndarray]] = []
    chunk, began = FIRST_CHUNK, time.process_time()
    for step in range(args.steps):
        if not queue:
            data = training_chunk(chunk)
            queue = [(data, index) for index in batches(data, args.queries * 24, args.queries, rng)]
            chunk += 1
        data, index = queue.pop()
        if step < start:
            continue
        query, length, label = gather(data, index, "cpu")
        steps = layout.n_steps if step % WHOLE_LABELS_EVERY == 0 else 1
        loss = loss_of(net, layout, query, length, label, steps)
        trainer.step(loss, step, step / args.steps)
        seen += len(index)
        if (step + 1) % 20 == 0 or step + 1 == args.steps:
            spent = cpu_s + time.process_time() - began
            line = f"step {step + 1} queries {seen} CPU seconds {spent:.0f} loss {loss.item():.4f}"
            if (step + 1) % 100 == 0 or step + 1 == args.steps:
                line += " right " + " ".join(f"{each:.3f}" for each in first_tokens_right(trainer.average, layout, dev))
                save(trainer.average, args.out)
            print(line, flush=True)
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"step": step + 1, "seen": seen, "cpu_s": spent, **states}, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--search", type=int, metavar="N", help="print the best choices of N layers, and stop")
    parser.add_argument("--layers", default="0,5,6")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--queries", type=int, default=96, help="of a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    weights, layout = source_weights(), Layout(Encoder(), "cpu")
    rows = read_queries(HERE / "dev.jsonl")[:200]
    dev = tokenise([query for query, _ in rows], [labels for _, labels in rows])
    if args.search:
        search(weights, layout, dev, args.search)
    else:
        train(small_net(weights, [int(each) for each in args.layers.split(",")]), layout, dev, args)


if __name__ == "__main__":
    main()
