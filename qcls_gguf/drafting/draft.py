"""New configurations as commented YAML, from prompts and their labels; which model they name."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import indent, wrap
from typing import NamedTuple

from ..config.load import parse_config
from ..config.resources import EMBEDDED, OLLAMA, PACKAGE, SCHEMA_LINE
from ..config.schema import ModelConfig, RuntimeConfig
from ..config.words import JsonObject, shown
from ..config.yaml_values import load_yaml, text_block, yaml_text
from ..errors import ConfigError, prefixed


class Wording(NamedTuple):
    """What a configuration says, in one language."""

    text: str
    """what is labelled, where nobody says it"""
    one: str
    """the system text of a single prompt"""
    many: str
    """that of several"""
    user: str
    cues: Sequence[str]
    """what the answer follows; the first where no rows speak for another"""
    nothing: Mapping[str, str]
    """of labels that say nothing of a text, by what they mean"""


_TEXTS = load_yaml(Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8")).values
_NO_CONTENT = {word: kind for kind, words in _TEXTS.pop("no_content").items() for word in words.split()}
WORDINGS = {language: Wording(**texts) for language, texts in _TEXTS.items()}
_SHORT, _LONG = RuntimeConfig().max_query_tokens, 1024
"""tokens of a query: the most by default, and of a draft, by which of longer texts a part is labelled"""
_SMALL_BYTES = 2_000_000_000
"""models of smaller files answer far worse by one text for several prompts (docs/real-models.md)"""
_LARGEST_ON_CPU = 2_000_000_000
"""a larger file makes a CPU of few cores take seconds for a text"""


LARGEST_FIRST = (
    ("Qwen/Qwen3-8B-GGUF:Q8_0", 8_709_518_112),
    ("Qwen/Qwen3-8B-GGUF:Q4_K_M", 5_027_783_488),
    ("Qwen/Qwen3-4B-GGUF:Q4_K_M", 2_500_000_000),
    ("Qwen/Qwen3-1.7B-GGUF", 1_830_000_000),
    ("Qwen/Qwen3-0.6B-GGUF", 640_000_000),
)
"""the models of the hub that are chosen from, which answer at once, without thinking, with their bytes, about"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A model as a configuration names it."""

    settings: JsonObject
    """the keys of its section"""
    why: str
    """for the reader"""
    has_chat_template: bool = True
    is_small: bool = False
    """whether a text for several prompts is too much for it"""
    most_tokens: int = _LONG
    """of a query"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrompt:
    """What is asked of every text: a name and the labels to choose from."""

    name: str
    labels: tuple[str, ...]
    note: str = ""
    """for the reader, such as which labels are rare"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a configuration is made from."""

    prompts: tuple[DraftPrompt, ...]
    model: DraftModel
    about: str | None = None
    """what is labelled, in words that follow on `Label`; None: a text"""
    language: str = "en"
    """of the texts, as `language_of` says"""
    is_common: bool = True
    """whether several prompts have one text that lists the labels of all, or a text that lists their own"""
    cue: str = "{name}:"
    """what the answer follows"""
    has_rules: bool = True
    """whether labels that say nothing of a text have a sentence that says when they are right"""
    with_prior: Collection[str] = ()
    """prompts for which rows have shown that the content-free prior helps"""
    longest: int = 0
    """bytes of the longest text, where texts are known"""
    source: str
    """what it was made from, for the reader"""


def given_model(path: str | None, repo: str | None, folder: Path | None = None) -> DraftModel | None:
    """The model that was named; None where none was. A file in the configuration's folder, or below it, is named from
    there, so that both can be moved together; any other by its whole path.

    Raises ModelError for a file that is no model, and ConfigError for a path that no configuration can hold.
    """
    from ..model.files import model_parts
    from ..model.find import find_model
    from ..model.header import read_header  # here, because they import numpy

    if path is not None:
        is_name = path.startswith((OLLAMA, PACKAGE)) or path == EMBEDDED
        file = Path(path).expanduser().absolute()
        if is_name:
            file = find_model(ModelConfig(path=Path(path)), offline=True)
        if any("\ud800" <= character <= "\udfff" for character in str(file)):
            raise ConfigError(f"{shown(str(file))}: has bytes that are no UTF-8, as YAML is: rename it or give a link")
        header = read_header(file)
        has_template = header.chat_template is not None
        why = "as given" if has_template else "as given; the file has no chat template, so the text below has no turns"
        name = path if is_name else _name_from(folder, file)
        n_ctx = header.scalars.get(f"{header.arch}.context_length")
        most = min(_LONG, n_ctx // 2) if isinstance(n_ctx, int) and n_ctx > 1 else _LONG
        is_small = sum(part.stat().st_size for part in model_parts(header)) < _SMALL_BYTES
        return DraftModel(
            settings={"path": name}, why=why, has_chat_template=has_template, is_small=is_small, most_tokens=most
        )
    return None if repo is None else DraftModel(settings={"hf_repo": repo}, why="as given")


def _name_from(folder: Path | None, file: Path) -> str:
    if folder is None or not file.is_relative_to(folder):
        return str(file)
    name = str(file.relative_to(folder))
    if name.startswith("~"):  # a home folder, also with ./ before it
        return str(file)
    is_taken = name.startswith((OLLAMA, PACKAGE)) or name == EMBEDDED  # for something else
    return f"./{name}" if is_taken else name


def fitting_model() -> DraftModel:
    """The largest model that fits the free memory of the GPUs; without a GPU a small one."""
    from ..report.environment import free_memory  # as above

    free = free_memory()
    repo, n_bytes = choose(free.weights_bytes, on_gpu=free.on_gpu)
    where = "of GPU memory" if free.on_gpu else "of main memory, and no GPU; a larger one labels better, takes longer"
    return DraftModel(
        settings={"hf_repo": repo},
        why=f"about {n_bytes / 1e9:.1f} GB, fetched once; chosen for {free.free_bytes / 1e9:.1f} GB {where}. "
        "`qcls-gguf models` lists those that are here",
        is_small=n_bytes < _SMALL_BYTES,
    )


def choose(free_bytes: int, *, on_gpu: bool) -> tuple[str, int]:
    """The largest model that fits, and its bytes; the smallest where none does."""
    most = free_bytes if on_gpu else min(free_bytes, _LARGEST_ON_CPU)
    return next((choice for choice in LARGEST_FIRST if choice[1] <= most), LARGEST_FIRST[-1])


def draft_text(draft: Draft, folder: Path) -> str:
    """The commented YAML, checked as a configuration in that folder. Raises ConfigError.

    With one text for several prompts these differ in their last words, so that a request shares nearly all of its work.
    A model with a chat template gets system and user texts; one without, the whole text.
    """
    wording, has_several = WORDINGS[draft.language], draft.is_common and len(draft.prompts) > 1
    kinds = {label: kind for prompt in draft.prompts for label in prompt.labels if (kind := nothing_kind(label))}
    keys = {label: f"{kind} of several" if has_several and kind == "none" else kind for label, kind in kinds.items()}
    rules = "".join(wording.nothing[key].format(label=label) for label, key in keys.items()) if draft.has_rules else ""
    system = (wording.many if has_several else wording.one).format(about=draft.about or wording.text, rules=rules)
    texts = {"system": text_block(system), "user": wording.user, "answer_cue": draft.cue}
    if not draft.model.has_chat_template:
        texts = {"prompt_template": text_block(f"{system}\n\n{wording.user}\n{draft.cue}")}
    who, what = "a prompt", "{labels} is its list"
    if has_several:
        who, what = "every prompt", "{all_labels} are the names and lists of all prompts"
    priors = {name: {"prior": "content_free"} for name in draft.with_prior}
    prompts = [
        _with_comment(yaml_text([{"name": one.name, "labels": list(one.labels)} | priors.get(one.name, {})]), one.note)
        for one in draft.prompts
    ]
    text = "".join(
        [
            f"{SCHEMA_LINE}# Written by qcls-gguf init from {shown(draft.source, quoted=False)}.\n",
            _with_comment(yaml_text({"model": draft.model.settings}), draft.model.why),
            _runtime(draft.longest, draft.model.most_tokens),
            f"# What {who} says: {what}, {{query}} is the text to label.\n",
            yaml_text(texts),
            "prompts:\n",
            *(indent(prompt, "  ") for prompt in prompts),
        ]
    )
    with prefixed("no configuration can be made of that"):
        parse_config(text, folder=folder)
    return text


def _runtime(longest: int, most: int) -> str:
    """The section for texts of up to so many bytes, of which a token has about two to five; empty for short ones.

    most: tokens of a query.
    """
    n = -(-longest // (2 * _SHORT)) * _SHORT
    settings = {"max_query_tokens": min(n, most)} | ({"long_queries": "middle"} if n > most else {})
    why = f"the longest text of the data has {longest:,} bytes"
    return _with_comment(yaml_text({"runtime": settings}), why) if n > _SHORT else ""


def nothing_kind(label: str) -> str | None:
    """What a label means that says nothing of a text: none, other, unknown or neutral; None for all other labels.
    Such labels stand at the end of a list.
    """
    return _NO_CONTENT.get("_".join(label.casefold().strip("<>()[]. ").split()))


def language_of(texts: Sequence[str]) -> str:
    """`zh` where most texts are Chinese, else `en`: the languages that a configuration is written in."""
    return "zh" if sum(map(_is_chinese, texts)) > len(texts) / 2 else "en"


def _is_chinese(text: str) -> bool:
    """Whether a third of the letters are Chinese characters; Japanese and Korean have others beside them."""
    letters = [character for character in text if character.isalpha()]
    han = [character for character in letters if "\u4e00" <= character <= "\u9fff"]
    return 3 * len(han) > len(letters) and not any("\u3040" <= character <= "\u30ff" for character in letters)


def labels_of(options: Sequence[str]) -> tuple[DraftPrompt, ...]:
    """Prompts from texts such as `category=dress,jeans,none`. Raises ConfigError."""
    found = []
    for option in options:
        name, equals, labels = option.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"`labels` {option}: is not NAME=LABEL,LABEL and so on, as in category=dress,jeans,none")
        what = "a label with a comma or a line break stands in quotes, as in 'size=S,\"M, L\"'"
        try:
            row = next(csv.reader([labels], skipinitialspace=True, strict=True), [])
        except csv.Error as e:
            raise ConfigError(f"`labels` {shown(option, quoted=False)}: {e}: {what}") from None
        several = tuple(label.strip() for label in row if label.strip())
        for label, after in pairwise(several):
            if label[-1] == "\\" or (label[0] in "'‘“" and label[-1] not in "'’”" and after[-1] in "'’”"):
                raise ConfigError(f"`labels` {shown(option, quoted=False)}: {shown(label)} ends at a comma: {what}")
        found.append(DraftPrompt(name=name.strip(), labels=several))
    return tuple(found)


def _with_comment(text: str, comment: str) -> str:
    """The YAML with a comment after its first line."""
    first, rest = text.split("\n", 1)
    return "\n".join([first, *(f"  # {line}" for line in wrap(comment, 100)), rest])
