"""docs/first-steps.md is run from its first command to its last, in one folder, with a small made-up model."""

import shutil
from pathlib import Path

import pytest
from chat_templates import CHATS
from commands import invoked
from conftest import MakeModel
from documents import Command, blocks, commands, matches

PAGE = "docs/first-steps.md"
CONFIG = "# tickets.yaml\n"
TOPICS = (
    ("my parcel {} has not come yet", "delivery", "high"),
    ("please send the money for order {} back", "refund", "low"),
    ("how do I change my password, case {}", "account", "low"),
)


def steps() -> list[Command]:
    return [command for command in commands() if command.where.startswith(f"{PAGE}:")]


@pytest.fixture
def folder(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: the rows that the page shows, more of their kind, and a model with a chat template."""
    (shown,) = (block.text for block in blocks("text") if block.text.startswith("id;message"))
    rows = [f"{i};{TOPICS[i % 3][0].format(i)};{TOPICS[i % 3][1]};{TOPICS[i % 3][2]}" for i in range(4, 61)]
    rows += ["61;what a fine shop, order 61;praise;low", "62;thank you, order 62;praise;low"]
    (tmp_path / "tickets.csv").write_text(shown + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    (tmp_path / "new.csv").write_text("id;message\n71;where is my parcel\n72;\n73;my money\n", encoding="utf-8")
    chat = CHATS["qwen3"]
    model = make_model("llama", chat_template=chat.template, control_tokens=chat.control_tokens)
    shutil.copy(model, tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_steps_lead_from_rows_to_labels(folder: Path) -> None:
    assert [command.words[1] for command in steps()] == ["init", "inspect", "eval", "calibrate", "run"]
    for command in steps():
        name = command.words[1]
        done = invoked(*command.words[1:])
        # Random weights may be calibrated already.
        assert done.exit_code in ((0, 1) if name == "calibrate" else (0,)), f"{command.text}\n{done.stderr}"
        if command.output is not None:
            printed = done.stdout or done.stderr
            assert (reason := matches(command.output.text, printed)) is None, f"{command.where}: {reason}\n{printed}"
        if name == "init":
            (shown,) = (block.text for block in blocks("yaml") if block.text.startswith(CONFIG))
            written = (folder / "tickets.yaml").read_text(encoding="utf-8")
            assert written.partition("model:\n")[2] == shown.partition("model:\n")[2]
