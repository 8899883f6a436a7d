"""The tokenizer through the border: any text, any thread, any token id."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int32, create_string_buffer

import numpy as np
import pytest
from conftest import MakeModel
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeModel, _lib

TEXTS = ["", " ", "red dress", "红色 连衣裙", "👗👠", "a\0b", "é e\u0301", "<|im_start|>user", "x" * 5000, "\n\n\t"]


def joined(model: NativeModel, text: str, *, parse_special: bool = False) -> bytes:
    return b"".join(model.piece(int(token))[0] for token in model.tokenize(text, parse_special=parse_special))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@settings(max_examples=200, deadline=None)
def test_tokens_spell_the_text(text: str, model: NativeModel) -> None:
    assert joined(model, text) == text.encode()
    assert joined(model, text, parse_special=True) == text.encode()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_sentencepiece_tokens_spell_the_text_behind_a_space(text: str, make_model: MakeModel) -> None:
    with NativeModel(make_model("llama", vocab="spm")) as model:
        assert joined(model, text) == (b" " + text.encode() if text else b"")


def test_special_tokens_are_parsed_only_when_asked_for(model: NativeModel) -> None:
    parsed = model.tokenize("<|im_start|>user", parse_special=True)
    plain = model.tokenize("<|im_start|>user", parse_special=False)
    assert model.piece(int(parsed[0])) == (b"<|im_start|>", True)
    assert len(parsed) < len(plain)
    assert not any(model.piece(int(token))[1] for token in plain)


def test_tokens_are_int32(model: NativeModel) -> None:
    for text in TEXTS:
        tokens = model.tokenize(text, parse_special=False)
        assert tokens.dtype == np.int32
        assert tokens.ndim == 1


@pytest.mark.parametrize("text", ["\ud800", "red \udfff dress", "a" * 100 + "\udc80"])
def test_lone_surrogates(text: str, model: NativeModel) -> None:
    with pytest.raises(PlanError, match=f"character {next(i for i, c in enumerate(text) if ord(c) > 0xD7FF)} "):
        model.tokenize(text, parse_special=False)


@pytest.mark.parametrize("token", [-1, 1 << 20, np.iinfo(np.int32).max, np.iinfo(np.int32).min])
def test_pieces_of_no_token(token: int, model: NativeModel) -> None:
    with pytest.raises(PlanError, match=str(token)):
        model.piece(token)


def test_unused_tokens_have_no_text(make_model: MakeModel) -> None:
    with NativeModel(make_model(n_vocab=1000)) as model:
        assert model.piece(999) == (b"", False)


def test_a_small_buffer_gets_the_needed_bytes(model: NativeModel) -> None:
    token = int(model.tokenize("<|im_start|>", parse_special=True)[0])
    text, n_bytes, special, error = create_string_buffer(2), c_int32(), c_int32(), create_string_buffer(8)
    piece: Callable[..., int] = _lib._library().qcls_token_piece
    assert piece(model.handle, token, text, 2, byref(n_bytes), byref(special), error, len(error)) == 5
    assert n_bytes.value == len("<|im_start|>")


def test_several_threads_at_once(model: NativeModel) -> None:
    texts = [text + str(n) for text in TEXTS for n in range(20)]

    def tokens(text: str) -> list[int]:
        found: list[int] = model.tokenize(text, parse_special=False).tolist()
        return found

    wanted = [tokens(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokens, texts)) == wanted


def raw_tokenize(model: NativeModel, capacity: int, error_size: int) -> tuple[int, int, bytes]:
    data, n_tokens, error = b"red dress", c_int32(-7), create_string_buffer(b"\x07" * 7, 8)
    token = np.full(16, -7, np.int32)
    status = _lib._library().qcls_tokenize(
        model.handle, data, len(data), 0, token.ctypes.data, capacity, byref(n_tokens), error, error_size
    )
    assert (token[max(capacity, 0) :] == -7).all()
    return status, n_tokens.value, error.raw


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_small_buffer_gets_the_needed_count(capacity: int, model: NativeModel) -> None:
    status, n_tokens, _ = raw_tokenize(model, capacity, 8)
    assert (status, n_tokens) == (5, len(model.tokenize("red dress", parse_special=False)))


@pytest.mark.parametrize("error_size", [0, 1, 8])
def test_a_message_never_passes_its_buffer(error_size: int, model: NativeModel) -> None:
    error = create_string_buffer(b"\x07" * 15, 16)
    status = _lib._library().qcls_token_piece(
        model.handle, -1, create_string_buffer(8), 8, byref(c_int32()), byref(c_int32()), error, error_size
    )
    assert status == 1
    assert error.raw[error_size:15] == b"\x07" * (15 - error_size)
    assert error_size == 0 or error.raw[error_size - 1] == 0


def test_no_buffer_for_the_message(model: NativeModel) -> None:
    piece: Callable[..., int] = _lib._library().qcls_token_piece
    assert piece(model.handle, -1, create_string_buffer(8), 8, byref(c_int32()), byref(c_int32()), None, 100) == 1


def test_a_long_text_between_short_ones(model: NativeModel) -> None:
    short, long = (model.tokenize(" a b" * n, parse_special=False) for n in (1, 2000))
    assert len(long) > 2000
    assert (model.tokenize(" a b" * 2000, parse_special=False) == long).all()
    assert (model.tokenize(" a b", parse_special=False) == short).all()
    assert joined(model, " a b" * 2000) == b" a b" * 2000
