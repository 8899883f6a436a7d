"""Write the trained weights as GGUF files: Q8_0 and Q4_K_M, quantised by llama.cpp.

    LLAMA_CPP_LIB_PATH=FOLDER python models/tiny/export.py WEIGHTS_FOLDER

WEIGHTS_FOLDER is what train.py or small.py wrote; the files go to models/ unless --out names another folder. The
float32 file is written beside the weights.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
from pathlib import Path

import gguf
import llama_cpp
from net import Net, Shape, gguf_name
from prompts import HERE
from train import load

NAMES = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}
DESCRIPTION = (
    "A tiny language model that labels English and Chinese fashion search queries with the prompts of "
    "configs/fashion-8.yaml and configs/fashion-8-joint.yaml. Trained from scratch on generated queries; it does "
    "nothing else."
)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """The vocabulary, merges and special tokens of tokenizer.json."""
    document = json.loads((HERE / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = dict(document["model"]["vocab"])
    special = {token["content"]: token["id"] for token in document["added_tokens"]}
    vocabulary.update(special)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    assert [vocabulary[t] for t in tokens] == list(range(len(tokens)))
    types = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)


def write_f32(net: Net, path: Path, name: str) -> None:
    """The network as a float32 GGUF file; name: the model's."""
    s: Shape = net.shape
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_tags(["text-classification", "fashion", "search-queries"])
    writer.add_languages(["en", "zh"])
    writer.add_size_label(f"{sum(p.numel() for p in net.parameters()) / 1e6:.0f}M")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(s.n_vocab)
    writer.add_context_length(s.n_ctx)
    writer.add_embedding_length(s.n_embd)
    writer.add_block_count(s.n_layer)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    add_tokenizer(writer)
    for parameter, value in net.state_dict().items():
        writer.add_tensor(gguf_name(parameter), value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise(source: Path, target: Path, file_type: int) -> None:
    """Quantise a GGUF file with llama.cpp."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = 2
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if code != 0:
        raise RuntimeError(f"llama_model_quantize gave {code} for {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent)
    parser.add_argument("--name", default="fashion-tiny")
    args = parser.parse_args()
    source = args.weights / f"{args.name}-F32.gguf"
    write_f32(load(args.weights), source, args.name)
    for name, file_type in NAMES.items():
        target = args.out / f"{args.name}-{name}.gguf"
        quantise(source, target, file_type)
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        print(f"{target.name} {target.stat().st_size} bytes sha256 {digest}")


if __name__ == "__main__":
    main()
