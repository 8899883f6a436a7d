"""Damaged and odd GGUF files by structure: keys, arrays, tensors and their data are changed, and the file stays whole.

Random bytes hardly get past the first check of a file. So a file is taken apart into its keys and tensors, some of
these are changed to values that real files have elsewhere or that no file should have, and it is put together again
with offsets that fit.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import gguf
from gguf_parts import ARRAY, FLOAT_TYPES, NUMBER_TYPES, SIZES, STRING, File, Tensor

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 128, 255, 256, 257, 511, 512, 1000, 4096, 65_535, 1 << 20),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) + 5, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2),
)
FRACTIONS = (0.0, -0.0, 1.0, -1.0, 1e-5, -1e-5, 1e-30, 1e30, 0.5, 10_000.0, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", " ", "none", "no_vocab", "llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "hybriddna"),
    "whitespace",
    *("default", "qwen2", "llama-bpe", "gpt-2", "chameleon", "deepseek-llm", "x" * 70_000, "\x1b[2J\n\x00"),
    *("linear", "yarn", "longrope", "su", "blk.0.attn_q.weight", "gelu", "silu", "1.0", "-1"),
)
ARCHS = (*gguf.MODEL_ARCH_NAMES.values(), "no-such-arch")


def _names(start: str, *groups: type) -> tuple[str, ...]:
    """The package's names of keys that begin so, without that."""
    names = [name for group in groups for name in vars(group).values() if isinstance(name, str)]
    return tuple(name.removeprefix(start) for name in names if name.startswith(start))


KEYS = _names("{arch}.", gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.SSM)
TOKENIZER_KEYS = _names("tokenizer.ggml.", gguf.Keys.Tokenizer)
_ODD_TOKENS = (b"", b"\n", b" ", b"\xff\xfe", b"<unk>", b"a", b"<|im_end|>", b"<0x41>", b"<0xZZ>", b"x y z")
TENSORS = (
    *("rope_freqs.weight", "rope_factors_long.weight", "output.bias", "output_norm.bias", "token_types.weight"),
    *("token_embd_norm.weight", "position_embd.weight", "blk.0.attn_q.bias", "blk.0.attn_q.scale", "output.scale"),
    *("blk.0.attn_sinks.weight", "blk.0.attn_qkv.weight", "blk.0.attn_k_norm.weight", "blk.1.ffn_up.scale"),
    *("blk.0.attn_q.input_scale", "blk.0.ffn_gate_inp.weight", "cls.weight", "blk.0.attn_rot_embd.weight"),
)


def mutate(file: File, seed: int) -> str:
    """Change a file in one to three places, as the seed says; what was done, in words."""
    rng = random.Random(seed)
    n = rng.choice((1, 1, 1, 2, 2, 3))
    return "; ".join(rng.choice(_MUTATIONS)(file, rng) for _ in range(n))


def _number(rng: random.Random, kind: int) -> int | float:
    return rng.choice(FRACTIONS) if kind in FLOAT_TYPES and rng.random() < 0.8 else rng.choice(NUMBERS)


def _value(rng: random.Random, kind: int) -> Any:
    """Any value of a type."""
    if kind == STRING:
        return rng.choice(TEXTS).encode()
    if kind == ARRAY:
        inner = rng.choice((4, 5, 6, 7, STRING))
        return inner, [_value(rng, inner) for _ in range(rng.choice((0, 1, 2, 3, 4, 100)))]
    return _number(rng, kind)


def _any_value(rng: random.Random) -> tuple[int, Any]:
    kind = rng.choice((*NUMBER_TYPES, STRING, 4, 4, 5, 6, 6, ARRAY))
    return kind, _value(rng, kind)


def _change_value(file: File, rng: random.Random) -> str:
    i = rng.randrange(len(file.keys))
    name, kind, value = file.keys[i]
    if kind == ARRAY:
        value = value[0], _changed_elements(rng, *value)
    elif isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        value = rng.choice((value + 1, value - 1, value * 2, value // 2, -value))
    else:
        value = _value(rng, kind)
    file.keys[i] = name, kind, value
    return f"{name!r} = {value!r:.60}"


def _changed_elements(rng: random.Random, inner: int, values: list[Any]) -> list[Any]:
    values = list(values)
    what = rng.choice(("some", "some", "some", "cut", "twice", "none", "swap"))
    if what == "swap":
        rng.shuffle(values)
    for _ in range(rng.choice((1, 1, 20)) if what == "some" and values else 0):
        values[rng.randrange(len(values))] = (
            rng.choice((*_ODD_TOKENS, values[0])) if inner == STRING else _number(rng, inner)
        )
    n = {"cut": rng.randrange(len(values) + 1), "none": 0}.get(what, len(values))
    return values[:n] * (2 if what == "twice" else 1)


def _replace_key(file: File, rng: random.Random) -> str:
    """Another type and value, or no such key."""
    i = rng.randrange(len(file.keys))
    if rng.random() < 0.5:
        return f"without {file.keys.pop(i)[0]!r}"
    file.keys[i] = file.keys[i][0], *_any_value(rng)
    return f"{file.keys[i]!r:.90}"


def _set_key(file: File, rng: random.Random) -> str:
    is_own = rng.random() < 0.7
    name = f"{file.arch}.{rng.choice(KEYS)}" if is_own else f"tokenizer.ggml.{rng.choice(TOKENIZER_KEYS)}"
    index, (kind, value) = file.key(name), _any_value(rng)
    if index is None:
        file.keys.append((name.encode(), kind, value))
        return f"{name} = {value!r:.60} of type {kind}"
    if file.keys[index][1] not in (STRING, ARRAY) and rng.random() < 0.7:
        kind = file.keys[index][1]
        value = _number(rng, kind)
    file.keys[index] = name.encode(), kind, value
    return f"{name} = {value!r:.60} of type {kind}"


def _change_arch(file: File, rng: random.Random) -> str:
    old, new = file.arch, rng.choice(ARCHS)
    rename = rng.random() < 0.8
    for i, (name, kind, value) in enumerate(file.keys):
        if name == b"general.architecture":
            file.keys[i] = name, STRING, new.encode()
        elif rename and name.startswith(old.encode() + b"."):
            file.keys[i] = name.replace(old.encode(), new.encode(), 1), kind, value
    return f"architecture {new}"


def _tensor(file: File, rng: random.Random) -> Tensor:
    if not file.tensors:
        file.tensors.append(Tensor(name=b"x", shape=[1], kind=0, data=bytes(4)))
    return rng.choice(file.tensors)


def _change_types(file: File, rng: random.Random) -> str:
    """Of one tensor, or of all matrices whose rows are a whole number of blocks."""
    kind, one = rng.choice(tuple(SIZES)), _tensor(file, rng)
    is_all = rng.random() < 1 / 3
    for tensor in file.tensors:
        fits = len(tensor.shape) > 1 and tensor.shape[0] % SIZES[kind][0] == 0
        if tensor is one or (is_all and fits):
            tensor.kind = kind if fits or rng.random() < 0.1 else rng.choice([k for k in SIZES if SIZES[k][0] == 1])
            _fill(tensor, rng)
    return f"{'all matrices' if is_all else one.name!r} of type {kind}"


def _fill(tensor: Tensor, rng: random.Random) -> None:
    """Data of the right length."""
    block, size = SIZES[tensor.kind]
    n = math.prod(tensor.shape) // block * size
    if 0 <= n <= 64 << 20:
        more = tensor.data * (n // max(1, len(tensor.data)) + 1)
        tensor.data = more[:n] if rng.random() < 0.7 else rng.randbytes(n)


def _change_shape(file: File, rng: random.Random) -> str:
    tensor = _tensor(file, rng)
    shape = tensor.shape
    sizes = list(shape)
    if shape:
        at = rng.randrange(len(shape))
        sizes[at] = rng.choice((1, 0, shape[at] + rng.choice((-32, -1, 1, 32)), rng.choice(NUMBERS))) % (1 << 64)
    others = shape[::-1], [math.prod(shape)], [*shape, rng.choice((1, 2))][:4], shape[:-1]
    tensor.shape = list(rng.choice((*others, *[sizes] * 4)))
    if math.prod(tensor.shape) < 1 << 24:
        _fill(tensor, rng)
    return f"{tensor.name!r} has shape {tensor.shape}"


def _move_tensor(file: File, rng: random.Random) -> str:
    """It goes, or changes places with another one."""
    tensor, other = _tensor(file, rng), _tensor(file, rng)
    if rng.random() < 0.5:
        file.tensors.remove(tensor)
        return f"without {tensor.name!r}"
    tensor.name, other.name = other.name, tensor.name
    return f"{tensor.name!r} and {other.name!r} change places"


def _add_tensor(file: File, rng: random.Random) -> str:
    like, name = _tensor(file, rng), rng.choice(TENSORS).encode()
    tensor = Tensor(name=name, shape=list(like.shape), kind=like.kind, data=like.data)
    if any(each.name == name for each in file.tensors):
        return "nothing"
    if rng.random() < 0.5:
        tensor.shape, tensor.kind = [rng.choice((1, 8, 16, 32, 64, 256))], 0
        _fill(tensor, rng)
    file.tensors.append(tensor)
    return f"{name!r} of shape {tensor.shape} and type {tensor.kind} beside"


def _change_data(file: File, rng: random.Random) -> str:
    tensor = _tensor(file, rng)
    n, data = len(tensor.data), bytearray(tensor.data)
    for _ in range(8 if n else 0):
        data[rng.randrange(n)] = rng.randrange(256)
    tensor.data = rng.choice((rng.randbytes(n), b"\xff" * n, bytes(n), bytes(data)))
    return f"other data of {tensor.name!r}"


_MUTATIONS: tuple[Callable[[File, random.Random], str], ...] = (
    *([_change_value] * 3 + [_replace_key] * 2 + [_set_key] * 3 + [_change_arch]),
    *([_change_types] * 3 + [_change_shape] * 2 + [_move_tensor] * 2 + [_add_tensor, _change_data]),
)
