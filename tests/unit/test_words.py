"""How texts of all scripts are shown, and which a reader cannot tell apart."""

import pytest

from qcls_gguf.config.words import printable, seen_as


@pytest.mark.parametrize(
    "text", ["کت\u200cوشلوار", "क्\u200dष", "👩\u200d👩\u200d👧", "👨🏽\u200d💻 x", "赤い\u3000ドレス", "cafe\u0301", ""]
)
def test_what_scripts_are_written_with_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("re\u200dd", r"re\u200dd"),
        ("\u200cred", r"\u200cred"),
        ("👩\u200d\u200d", r"👩‍\u200d"),
        ("red\u200b\ufeff", r"red\u200b\ufeff"),
        ("\u202ered\u2066", r"\u202ered\u2066"),
        ("a\tb\nc\x1b[2J\0", r"a\tb\nc\x1b[2J\x00"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_is_invisible_or_moves_the_cursor_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_looks_the_same() -> None:
    for alike in (["red", "RED ", "re\u200bd", "ｒｅｄ", "red\ufeff"], ["é", "e\u0301", "É"], ["❤", "❤\ufe0f"]):
        assert len(set(map(seen_as, alike))) == 1, alike
    assert len(set(map(seen_as, ["red", "red.", "rot", "röd", "👩", "👩🏽"]))) == 6
