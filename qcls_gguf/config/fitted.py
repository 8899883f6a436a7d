"""Files of what was fitted: calibrations, YAML of `qcls-gguf calibrate`, and heads, npz without pickle of `learn`.

A file contains the model's sha256, and every fit a hash of everything else that its answers depend on, so that it is
never applied to another prompt or model. Files are checked against a configuration.
"""

import hashlib
import io
import json
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import yaml
from pydantic import Field, ValidationError

from ..errors import ConfigError, prefixed, readable
from ..statistics import Float32Array
from ..statistics.logistic import N_WORDS
from ..version import __version__
from .prompt import SLOT, PromptConfig, Temperature
from .schema import Config, short
from .scoring import Scoring
from .settings import Count, Mistake, Settings, Share, Size, Text, VisibleText, config_error, mistakes, settings_in_file
from .words import JsonObject, digest_of, hint
from .yaml_values import load_yaml, read_text

_AGAIN = "run `qcls-gguf calibrate` again"
_LARGEST_BIAS = 1000.0
_BiasNumber: TypeAlias = Annotated[float, Field(strict=True, ge=-_LARGEST_BIAS, le=_LARGEST_BIAS)]


class StatedError(Settings):
    """The error rate that a threshold keeps among answered queries."""

    target: Share = Field(description="the error is at most this")
    confidence: Share = Field(description="with at least this probability over the draw of the rows")
    threshold: Share = Field(description="answers with at least this probability count")
    fallback: VisibleText = Field(description="the answer to all other queries")
    n_rows: Count = Field(description="rows by which the threshold was chosen")
    n_answered: Count = Field(description="how many of them it answers")
    n_wrong: Size = Field(description="of these, those with a wrong answer")


class StatementSource(Settings):
    """The labelled rows that statements stand on."""

    data: Text = Field(description="the file's name")
    data_sha256: Text
    date: Text = Field(description="when the statements were made")
    package_version: Text
    n_rows: Count = Field(description="rows that were used")
    n_duplicates: Size = Field(description="rows whose query came before")
    queries: Text = Field(description="digests of their queries")


_DIGEST_BYTES = 6


def query_digests(queries: Iterable[str]) -> str:
    """Digests of distinct queries as text, for `StatementSource`."""
    return b64encode(b"".join(sorted({_digest(query) for query in queries}))).decode()


def known_queries(digests: str, queries: Sequence[str]) -> list[bool]:
    """Which queries are among those of which `query_digests` made the digests."""
    packed = b64decode(digests)
    known = {packed[at : at + _DIGEST_BYTES] for at in range(0, len(packed), _DIGEST_BYTES)}
    return [_digest(query) in known for query in queries]


def _digest(query: str) -> bytes:
    return hashlib.sha256(query.encode()).digest()[:_DIGEST_BYTES]


class PromptCalibration(Settings):
    """What a file says of one prompt."""

    prompt_hash: Text = Field(description="of the prompt that it was fitted to; see `prompt_hash`")
    scoring: Scoring
    temperature: Temperature | None = None
    bias: dict[str, _BiasNumber] | None = Field(default=None, description="by label")
    fit: Any = Field(default=None, description="how temperature and bias were fitted, for people")
    answers: Text | None = Field(default=None, description="hash of what gave the answers that are stated of")
    error: StatedError | None = None

    @property
    def fits_scores(self) -> bool:
        """Whether it changes probabilities."""
        return self.temperature is not None or self.bias is not None

    def biases(self, labels: Sequence[str]) -> list[float] | None:
        """The biases of labels in this order; None where there are none."""
        return None if self.bias is None else [self.bias[label] for label in labels]


class Calibration(Settings):
    """A calibration file, checked against the prompts of a configuration."""

    model_sha256: Text
    prompts: Annotated[dict[str, PromptCalibration], Field(min_length=1)]
    stated: StatementSource | None = Field(default=None, description="only if it has statements")


def prompt_hash(prompt: PromptConfig) -> str:
    """sha256 of everything but the model that a prompt's scores and prior depend on."""
    parts = {
        "prompt_template": prompt.expanded_template,
        "label_prefix": prompt.label_prefix,
        "labels": prompt.labels,
        "scoring": prompt.scoring,
        "label_end": prompt.label_end,
        "prior": prompt.prior,
        "content_free_queries": prompt.content_free_queries if prompt.prior == "content_free" else (),
    } | ({"label_orders": prompt.label_orders} if prompt.label_orders > 1 else {})
    return digest_of(parts)


def answers_hash(prompt: PromptConfig, fit: PromptCalibration | None, head_digest: str | None) -> str:
    """A digest of everything but the model that a prompt's probabilities depend on."""
    temperature = prompt.temperature or (fit and fit.temperature) or 1.0
    bias = fit.biases(prompt.labels) if fit else None
    rounded = bias and [round(number, 6) for number in bias]
    return digest_of([head_digest or prompt_hash(prompt), round(temperature, 6), rounded])


def read_calibration(config: Config) -> Calibration | None:
    """The calibration file that a configuration names. Raises ConfigError, with a line for every mistake."""
    path = config.calibration
    if path is None:
        return None
    prompts = {prompt.name: prompt for prompt in config.prompts}
    with prefixed(f"calibration: {path}"):
        text = load_yaml(read_text(path, "the file"))
        calibration = settings_in_file(Calibration, text)
        found = {name: _mismatch(fit, prompts.get(name), list(prompts)) for name, fit in calibration.prompts.items()}
        if wrong := [Mistake(("prompts", name), what) for name, what in found.items() if what]:
            raise config_error(wrong, text.values, file=text)
    return calibration


def _mismatch(fit: PromptCalibration, prompt: PromptConfig | None, names: Sequence[str]) -> str | None:
    """Why a fit is not for the prompt of its name."""
    if prompt is None:
        return f"is no prompt of the configuration, which has {', '.join(names)}"
    if prompt.temperature is not None and fit.temperature is not None:
        return (
            f"the configuration gives this prompt temperature {prompt.temperature:g} as well: "
            "remove it, or this prompt from the calibration"
        )
    if fit.prompt_hash != (now := prompt_hash(prompt)):
        return (
            f"was fitted to the prompt of hash {short(fit.prompt_hash)}, it is {short(now)} now "
            f"(template, labels, scoring, prior): {_AGAIN}"
        )
    if fit.bias is not None and set(fit.bias) != set(prompt.labels):
        return f"its bias has other labels than the prompt: {_AGAIN}"
    return None


def calibration_text(
    model_sha256: str, prompts: Mapping[str, PromptCalibration], stated: StatementSource | None = None
) -> str:
    """The YAML text of a calibration; prompts: by name, in order."""
    tree: JsonObject = {
        "model_sha256": model_sha256,
        "prompts": {name: fit.model_dump(exclude_none=True) for name, fit in prompts.items()},
    }
    if stated is not None:
        tree["stated"] = stated.model_dump(exclude_none=True)
    head = "# Written by `qcls-gguf calibrate`; it holds for this model and these prompts only.\n"
    return head + yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)


MOST_BYTES = 1 << 29
"""Larger files are refused, as are files whose parts are larger together."""
_ABOUT = "about"
_LEARN_AGAIN = "run `qcls-gguf learn` again"
_DAMAGED = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    EOFError,
    SyntaxError,
    NotImplementedError,
    zipfile.BadZipFile,
)
"""what numpy and zipfile raise for what is no file of heads"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """A learnt head, which answers a prompt by log-softmax(scale · s + bias + z @ weight + w).

    s (n_labels,) are the prompt's own scores; z (n_embd,) is the state at the prompt's end after `depth` layers,
    divided by the root of its mean square; w (n_labels,) are the `word_odds` of the query by `words`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid", "arbitrary_types_allowed": True}  # for what a file says

    depth: Count
    """layers; as many as the model has: its final-norm hidden state"""
    weight: Float32Array
    """(n_embd, n_labels)"""
    bias: Float32Array
    """(n_labels,)"""
    scale: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """of the prompt's own scores; 0: the labels' texts are not read"""
    words: Float32Array | None = None
    """(N_WORDS, n_labels); None: they do not count"""
    text: Text | None = None
    """the whole text with its slot that is read instead of the prompt's own"""
    hash: Text = ""
    """`head_hash` when it was learnt, as the file says"""
    labels: tuple[Text, ...] = ()
    """those that it answers, likewise"""
    n_rows: Count | None = None
    """labelled rows that it was learnt from; None where the file does not say, as below"""
    accuracy: Share | None = None
    """of heads that were learnt in the same way, on rows that were left out"""

    @property
    def reads_labels(self) -> bool:
        """Whether it needs the prompt's own scores."""
        return self.scale != 0

    @property
    def digest(self) -> str:
        """A sha256 of all that its answers depend on."""
        found = hashlib.sha256(json.dumps([self.depth, self.scale, self.text]).encode())
        found.update(self.weight.tobytes())
        found.update(self.bias.tobytes())
        found.update(b"" if self.words is None else self.words.tobytes())
        return found.hexdigest()


class Heads(Settings):
    """The heads of a file; `read_heads` checks them against the prompts of a configuration."""

    model_sha256: Text
    n_layer: Count
    n_embd: Count
    queries: Text = Field(default="", description="digests of those that they were learnt from")
    prompts: Mapping[str, Head] = Field(description="prompts without a head are answered by their labels' texts")

    def check_shape(self, n_layer: int, n_embd: int) -> None:
        """Raise ConfigError for a model of another shape, before its sha256 is known."""
        if (n_layer, n_embd) != (self.n_layer, self.n_embd):
            raise ConfigError(
                f"heads: they were made with a model of {self.n_layer} layers and states of {self.n_embd} numbers, "
                f"this one has {n_layer} and {n_embd}: {_LEARN_AGAIN}"
            )


class _HeadsFile(Heads):
    """What a file says beside."""

    format: Literal[1, 2] = Field(description="others are refused")
    package_version: Text


def check_model(config: Config, sha256: str, *fitted: Calibration | Heads | None) -> None:
    """Raise ConfigError for another model than the one that the configuration's files were fitted to."""
    for file in fitted:
        if file is not None and sha256 != file.model_sha256:
            path, command = (config.heads, "learn") if isinstance(file, Heads) else (config.calibration, "calibrate")
            raise ConfigError(
                f"{path} was made with the model of sha256 {short(file.model_sha256)}, this one is {short(sha256)}: "
                f"run `qcls-gguf {command}` again"
            )


def head_hash(prompt: PromptConfig, head: Head) -> str:
    """sha256 of everything but the model that the answers of a prompt's head depend on."""
    parts: list[object] = [prompt.labels, head.text or prompt.expanded_template]
    if head.reads_labels:
        parts += [prompt.label_prefix, prompt.scoring, prompt.label_end]
    return digest_of(parts)


def read_heads(config: Config, calibration: Calibration | None) -> Heads | None:
    """The heads file of a configuration with whole texts, if it names one. Raises ConfigError.

    calibration: of the same configuration, which must fit no prompt that has a head.
    """
    if config.heads is None:
        return None
    prompts = {prompt.name: prompt for prompt in config.prompts}
    found = _read(config.heads)
    with prefixed(f"heads: {config.heads}"):
        for name, head in found.prompts.items():
            if name not in prompts:
                raise ConfigError(f"prompts.{name}: is no prompt of the configuration, {hint(name, list(prompts))}")
            if head.hash != head_hash(prompts[name], head):
                raise ConfigError(f"prompts.{name}: was learnt with other labels, or another text: {_LEARN_AGAIN}")
            if calibration and name in calibration.prompts and calibration.prompts[name].fits_scores:
                raise ConfigError(
                    f"prompts.{name}: has a head, and the calibration fits its labels' scores: remove one"
                )
    return found


def read_fitted(config: Config) -> tuple[Config, Calibration | None, Heads | None]:
    """The fitted files that a configuration with whole texts names, and it with the stated thresholds.

    Raises ConfigError.
    """
    calibration = read_calibration(config)
    heads = read_heads(config, calibration)
    prompts = []
    for prompt in config.prompts:
        fit = calibration and calibration.prompts.get(prompt.name)
        head = heads.prompts.get(prompt.name) if heads else None
        where = f"calibration: {config.calibration}: prompts.{prompt.name}"
        if fit and fit.answers not in (None, answers_hash(prompt, fit, head.digest if head else None)):
            what = "was stated of other answers (template, labels, scoring, prior, temperature, bias, head)"
            raise ConfigError(f"{where}: {what}: {_AGAIN}")
        if fit and fit.error and fit.error.threshold:
            if prompt.min_confidence not in (None, fit.error.threshold):
                raise ConfigError(f"{where}: has a threshold, and the configuration min_confidence: remove one")
            prompt = prompt.changed(min_confidence=fit.error.threshold, fallback=fit.error.fallback)
        prompts.append(prompt)
    return (config.changed(prompts=tuple(prompts)) if calibration else config), calibration, heads


def heads_content(
    model_sha256: str,
    n_layer: int,
    n_embd: int,
    heads: Mapping[str, tuple[PromptConfig, Head]],
    queries: Iterable[str] = (),
) -> bytes:
    """The content of a heads file.

    heads: by prompt, with the prompt's configuration; queries: that they were learnt from.
    """
    about = {
        "format": 2,
        "package_version": __version__,
        "model_sha256": model_sha256,
        "n_layer": n_layer,
        "n_embd": n_embd,
        "queries": query_digests(queries),
        "prompts": {
            name: {"hash": head_hash(prompt, head), "labels": prompt.labels}
            | {key: getattr(head, key) for key in ("depth", "scale", "text", "n_rows", "accuracy")}
            for name, (prompt, head) in heads.items()
        },
    }
    text = json.dumps(about, ensure_ascii=False)
    arrays: dict[str, Any] = {_ABOUT: np.frombuffer(text.encode(), np.uint8)}
    for index, (_, head) in enumerate(heads.values()):
        of_head = {"weight": head.weight, "bias": head.bias, "words": head.words}
        arrays |= {f"{key}{index}": array for key, array in of_head.items() if array is not None}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def headed(config: Config) -> frozenset[str]:
    """The names of the prompts that have a head, of whatever text. Raises ConfigError."""
    return frozenset() if config.heads is None else frozenset(_read(config.heads).prompts)


def queries_of_heads(config: Config) -> str:
    """The digests of the queries that a configuration's heads were learnt from. Raises ConfigError."""
    return "" if config.heads is None else _read(config.heads).queries


def layers_needed(config: Config) -> int:
    """The last layer that a configuration's answers can ever need; 0: all. Raises ConfigError for its heads file.

    Not all are needed where every prompt has a head on a lower layer, and no prompt set may come later, as
    `question_prefixes` 0 says.
    """
    if config.heads is None or config.runtime.question_prefixes != 0:
        return 0
    heads = _read(config.heads)
    names = [prompt.name for prompt in config.prompts]
    if any(name not in heads.prompts or heads.prompts[name].reads_labels for name in names):
        return 0
    deepest = max(heads.prompts[name].depth for name in names)
    return deepest if deepest < heads.n_layer else 0


def _read(path: Path) -> Heads:
    with readable(f"heads: {path}"):
        found = path.stat()
    with prefixed(f"heads: {path}"):
        return _content(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1)  # the layers to load are read from it before the heads are
def _content(path: Path, n_bytes: int, changed_ns: int) -> Heads:
    if n_bytes > MOST_BYTES:
        raise ConfigError(f"has {n_bytes} bytes, at most {MOST_BYTES} are read")
    values = None
    try:
        with zipfile.ZipFile(path) as archive:  # nothing is unpacked to more bytes than the file has
            parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ConfigError("is no file of heads: it is compressed")
        if sum(part.file_size for part in parts) > MOST_BYTES:
            raise ConfigError(f"has parts of more than {MOST_BYTES} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            values = json.loads(arrays[_ABOUT].tobytes())
            for index, entry in enumerate(dict(values["prompts"]).values()):
                entry |= {"weight": arrays[f"weight{index}"], "bias": arrays[f"bias{index}"]}
                entry["words"] = arrays.get(f"words{index}")
        heads = _HeadsFile.model_validate(values)
        known_queries(heads.queries, ())  # raises for what are no digests
        for head in heads.prompts.values():
            _check_head(head, heads)
        return heads
    except OSError as e:
        raise ConfigError(f"cannot be read: {e.strerror or e}") from None
    except ValidationError as e:
        raise ConfigError(f"{config_error(mistakes(e, _HeadsFile), values)}: {_LEARN_AGAIN}") from None
    except _DAMAGED as e:
        raise ConfigError(f"is no file of heads, or a damaged one: {type(e).__name__} {e}") from None


def _check_head(head: Head, file: Heads) -> None:
    """Raise ValueError for what is no head."""
    n_labels, depth = len(head.labels), head.depth
    wanted = {"weight": (file.n_embd, n_labels), "bias": (n_labels,), "words": (N_WORDS, n_labels)}
    for name, shape in wanted.items():
        array = getattr(head, name)
        if array is not None and (array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all()):
            raise ValueError(f"{name} of {array.dtype} {array.shape}: finite float32 {shape} for {n_labels} labels")
    if depth > file.n_layer or (head.scale and depth < file.n_layer):
        raise ValueError(f"depth {depth}")
    if head.text is not None and head.text.count(SLOT) != 1:
        raise ValueError("a text without one slot")
