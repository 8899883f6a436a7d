"""The tokenizer through the border: any text, any thread, any token id."""

from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char, c_int32, c_int64, c_void_p, create_string_buffer, sizeof
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel, RunPython
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeModel
from qcls_gguf.native.abi import Error, ModelParams, Status
from qcls_gguf.native.library import library

TEXTS = ["", " ", "red dress", "红色 连衣裙", "👗👠", "a\0b", "é e\u0301", "<|im_start|>user", "x" * 5000, "\n\n\t"]


def joined(model: NativeModel, text: str, *, parse_special: bool = False) -> bytes:
    return b"".join(model.piece(int(token))[0] for token in model.tokenize(text, parse_special=parse_special))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@settings(max_examples=200, derandomize=False)
def test_tokens_spell_the_text(text: str, model: NativeModel) -> None:
    assert (joined(model, text), joined(model, text, parse_special=True)) == (text.encode(), text.encode())


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_sentencepiece_tokens_spell_the_text_behind_a_space(text: str, make_model: MakeModel) -> None:
    with NativeModel(make_model("llama", vocab="spm")) as model:
        assert joined(model, text) == (b" " + text.encode() if text else b"")


@pytest.mark.parametrize("text", ["\ud800", "red \udfff dress", "a" * 100 + "\udc80"])
def test_lone_surrogates(text: str, model: NativeModel) -> None:
    with pytest.raises(PlanError, match=f"character {next(i for i, c in enumerate(text) if ord(c) > 0xD7FF)} "):
        model.tokenize(text, parse_special=False)


@pytest.mark.parametrize("token", [-1, 1 << 20, np.iinfo(np.int32).min, 1 << 32, (1 << 32) + 5, -(1 << 32)])
def test_pieces_of_no_token(token: int, model: NativeModel) -> None:
    with pytest.raises(PlanError, match=str(token)):
        model.piece(token)


def test_unused_tokens_have_no_text(make_model: MakeModel) -> None:
    with NativeModel(make_model(n_vocab=1000)) as model:
        assert model.piece(999) == (b"", False)


def test_a_small_buffer_gets_the_needed_bytes(model: NativeModel) -> None:
    token = int(model.tokenize("<|im_start|>", parse_special=True)[0])
    text, n_bytes, special = create_string_buffer(2), c_int64(), c_int32()
    arguments = text, 2, byref(n_bytes), byref(special)
    assert library().qcls_token_piece(model.handle, token, *arguments, None) == Status.TOO_SMALL
    assert n_bytes.value == len("<|im_start|>")


def test_several_threads_at_once(model: NativeModel) -> None:
    texts = [text + str(n) for text in TEXTS for n in range(20)]

    def tokens(text: str) -> list[int]:
        found: list[int] = model.tokenize(text, parse_special=False).tolist()
        return found

    wanted = [tokens(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokens, texts)) == wanted


def raw_tokenize(model: NativeModel, n_bytes: int, capacity: int) -> tuple[int, int, str]:
    data, n_tokens, error = b"red dress", c_int64(-7), Error()
    token = np.full(16, -7, np.int32)
    room = token.ctypes.data, capacity, byref(n_tokens)
    status = library().qcls_tokenize(model.handle, data, n_bytes, 0, *room, error)
    assert (token[max(capacity, 0) :] == -7).all()
    return status, n_tokens.value, error.message.decode()


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_small_buffer_gets_the_needed_count(capacity: int, model: NativeModel) -> None:
    n_wanted = len(model.tokenize("red dress", parse_special=False))
    assert raw_tokenize(model, 9, capacity)[:2] == (Status.TOO_SMALL, n_wanted)


@pytest.mark.parametrize("n_bytes", [-1, (4 << 20) + 1, 1 << 31, (1 << 32) + 9, (1 << 63) - 1])
def test_too_many_bytes_are_refused_unread(n_bytes: int, model: NativeModel) -> None:
    """Cut to 32 bits the third of them would be the length of the text."""
    status, n_tokens, message = raw_tokenize(model, n_bytes, 16)
    assert (status, n_tokens) == (Status.BAD_ARGUMENT, -7)
    assert str(n_bytes) in message
    assert raw_tokenize(model, 9, -1)[:2] == (Status.BAD_ARGUMENT, -7)


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    room = Error.message.size
    path = str(tmp_path / ("x" * room)).encode()
    error, handle = Error(), c_void_p()
    memory = (c_char * (sizeof(Error) + 8)).from_buffer(bytearray(b"\7" * (sizeof(Error) + 8)))
    opened = library().qcls_model_open(byref(ModelParams(path=path)), byref(handle), Error.from_buffer(memory))
    assert ((opened, handle.value), memory.raw[room - 2 : room]) == ((Status.LOAD_FAILED, None), b"x\0")
    assert memory.raw[room:] == b"\7" * 8
    assert library().qcls_model_open(byref(ModelParams(path=path)), byref(handle), error) == Status.LOAD_FAILED
    assert error.message == memory.raw[: room - 1]


PRE_TOKENISERS = [
    "gpt-4o", "llama4", "kanana2", "talkie", "granite-embed-multi-97m", "minimax-m2", "tekken", "deepseek-v3",
    "hunyuan-dense", "hy_v4", "joyai-llm", "minicpm5", "youtu", "jais-2", "exaone-moe", "tiny_aya", "cohere2moe",
    "bailingmoe", "bailingmoe2", "llada-moe", "seed-coder", "ufakzeka", "afmoe", "spark2_5", "deepseek-llm",
    "deepseek-coder", "whitespace", "bloom", "gpt3-finnish", "poro-chat", "viking", "default", "falcon", "superbpe",
    "qwen2", "llama-bpe",
]  # fmt: skip
"""Names whose regular expressions go to std::regex, which takes stack for each character of a run; and two others."""
RUNS = """
import sys, threading
from pathlib import Path
from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeModel

def tokenise(n, runs):
    for path in sys.argv[1:]:
        with NativeModel(Path(path)) as model:
            for run in runs:
                try:
                    model.tokenize("red" + run * n + "dress", parse_special=False)
                except PlanError as e:
                    assert "whitespace" in str(e) and "GGML" not in str(e), e

runs = "a", "aB", "\u00e9", "\u7ea2", " ", "7", "!", "\\n", "e\u0301", "+", " a"
threading.stack_size(64 << 10)
thread = threading.Thread(target=tokenise, args=(1_500, runs))
thread.start()
thread.join()
tokenise(27_000, ("!",))
print("done")
"""


@pytest.mark.parametrize("names", [PRE_TOKENISERS[n::3] for n in range(3)], ids=["first", "second", "third"])
def test_no_run_overflows_a_stack(names: list[str], make_model: MakeModel, run_python: RunPython) -> None:
    done = run_python(RUNS, *(make_model(pre=name, n_layer=1) for name in names), timeout=300)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr[-2000:]
