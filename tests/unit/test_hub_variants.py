"""Which file of a repository a quantisation means: names only, no network."""

import pytest

from qcls_gguf.model.hub import Variant, list_variants, matching


def test_parts_are_grouped_and_companions_left_out() -> None:
    names = """
        b/M-Q8_0-00002-of-00002.gguf b/M-Q8_0-00001-of-00002.gguf M-BF16-00002-of-00003.gguf M-imatrix-Q4_0.gguf
        M-imatrix.gguf imatrix.gguf mmproj-M-F16.gguf plain.gguf M-Q4_0.safetensors
    """
    assert list_variants(names.split()) == [
        Variant(label="BF16", files=("M-BF16-00002-of-00003.gguf",), complete=False),
        Variant(label="Q4_0", files=("M-imatrix-Q4_0.gguf",), complete=True),
        Variant(label="Q8_0", files=("b/M-Q8_0-00001-of-00002.gguf", "b/M-Q8_0-00002-of-00002.gguf"), complete=True),
        Variant(label="plain.gguf", files=("plain.gguf",), complete=True),
    ]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),
        ("Q4_K_XL", "Qwen3-8B-UD-Q4_K_XL.gguf"),
        ("Q8_0", "Q8_0/model-00001-of-00002.gguf"),
        ("IQ4_XS", "model.IQ4_XS.gguf"),
        ("4bit", "odd-4bit.gguf"),
        ("odd-4bit.gguf", "odd-4bit.gguf"),
        ("Q8_0/model-00002-of-00002.gguf", "Q8_0/model-00001-of-00002.gguf"),
        ("Q4_K", None),
    ],
)
def test_a_quantisation_is_matched_as_a_whole_word(wanted: str, found: str | None) -> None:
    names = """
        Qwen3-8B-Q4_K_M.gguf Qwen3-8B-UD-Q4_K_M.gguf Qwen3-8B-UD-Q4_K_XL.gguf Q8_0/model-00002-of-00002.gguf
        Q8_0/model-00001-of-00002.gguf qwen3_8b_f16.gguf model.IQ4_XS.gguf odd-4bit.gguf mmproj-BF16.gguf imatrix.gguf
        model-BF16.imatrix.gguf config.json
    """
    variants = matching(list_variants(names.split()), wanted)
    assert [variant.files[0] for variant in variants] == ([found] if found else [])
