"""Write the golden logits: Hugging Face transformers, float32, CPU, on the same weights as the GGUF files.

    python models/tiny/golden.py WEIGHTS_FOLDER

Writes tests/golden/fashion-tiny.npz; tests/golden/README.md says what is in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from net import Net, Shape, gguf_name
from prompts import CONFIGS, HERE, Encoder, load_prompts
from train import load
from transformers import Qwen3Config, Qwen3ForCausalLM

GGUF = HERE.parent / "fashion-tiny-Q8_0.gguf"
TARGET = HERE.parent.parent / "tests" / "golden" / "fashion-tiny.npz"
QUERIES = (
    "red dress for women",
    "i need a light blue linen shirt for the office, under $50",
    "wool blend sweater dark green",
    "oversized hoodie mens",
    "matrenity dres for a weddign",
    "  cheap  plus size   tee ",
    "😍 pink skirt 💕",
    "黑色牛仔裤 男 修身",
    "孕妇连衣裙夏天穿",
    "平价羊毛混纺毛衣 200元以内",
    "oversize 卫衣 浅蓝色",
    "what's new <|im_end|>",
)
# A prompt and the first label token after which the second position is read: two forks of label trees, and two chains.
PROMPTS = {"category": "dress", "colour": "light blue", "material": "wool blend", "fit": "slim fit"}


def huggingface_name(name: str) -> str:
    """The name of a parameter in Qwen3ForCausalLM."""
    if name.startswith("layers."):
        _, layer, part, suffix = name.split(".")
        module = (
            ""
            if part.endswith("layernorm")
            else "mlp."
            if part.split("_")[0] in ("gate", "up", "down")
            else "self_attn."
        )
        return f"model.layers.{layer}.{module}{part}.{suffix}"
    return name if name.startswith("lm_head") else f"model.{name}"


def reference(state: dict[str, torch.Tensor], s: Shape) -> Qwen3ForCausalLM:
    """The Hugging Face model with these weights."""
    config = Qwen3Config(
        vocab_size=s.n_vocab,
        hidden_size=s.n_embd,
        intermediate_size=s.n_ff,
        num_hidden_layers=s.n_layer,
        num_attention_heads=s.n_head,
        num_key_value_heads=s.n_head_kv,
        head_dim=s.head_dim,
        rms_norm_eps=s.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_theta},
        tie_word_embeddings=False,
        max_position_embeddings=s.n_ctx,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    model.load_state_dict({huggingface_name(k): v for k, v in state.items()}, strict=True)
    return model


def dequantised(path: Path, net: Net) -> dict[str, torch.Tensor]:
    """The weights of a GGUF file as float32, under the network's names."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    state = {}
    for name, value in net.state_dict().items():
        tensor = tensors[gguf_name(name)]
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        state[name] = torch.from_numpy(np.array(array, dtype=np.float32)).reshape(value.shape)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    args = parser.parse_args()
    net, encoder = load(args.weights), Encoder()
    models = {"original": reference(net.state_dict(), net.shape), "q8_0": reference(dequantised(GGUF, net), net.shape)}
    cases, tokens = [], []
    last: dict[str, list[np.ndarray]] = {name: [] for name in models}
    after: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for style in CONFIGS:
        for prompt in (p for p in load_prompts(style) if p.name in PROMPTS):
            first = encoder.label(prompt, PROMPTS[prompt.name])[0]
            for query in QUERIES:
                ids = encoder.prompt(prompt, query)
                cases.append({"style": style, "prompt": prompt.name, "query": query, "label_token": first})
                tokens.append(ids)
                for name, model in models.items():
                    with torch.no_grad():
                        logits = model(torch.tensor([[*ids, first]])).logits[0]
                    last[name].append(logits[len(ids) - 1].numpy())
                    after[name].append(logits[len(ids)].numpy())
    offset = np.concatenate([[0], np.cumsum([len(t) for t in tokens])]).astype(np.int32)
    # The position after a label token is kept for every fourth case, so that the file stays small.
    some = np.arange(0, len(cases), 4, dtype=np.int32)
    arrays = {
        "cases": np.frombuffer(json.dumps(cases, ensure_ascii=False).encode(), dtype=np.uint8),
        "gguf_sha256": np.frombuffer(hashlib.sha256(GGUF.read_bytes()).hexdigest().encode(), dtype=np.uint8),
        "token": np.concatenate([np.array(t, dtype=np.int32) for t in tokens]),
        "offset": offset,
        "after_case": some,
    }
    for name in models:
        arrays[f"last_{name}"] = np.stack(last[name])
        arrays[f"after_{name}"] = np.stack([after[name][i] for i in some])
    np.savez_compressed(TARGET, **arrays)  # type: ignore[arg-type]
    print(f"{TARGET.name}: {len(cases)} cases, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
