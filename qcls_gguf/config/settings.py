"""What a user may write, as frozen pydantic models whose mistakes are told in words.

Values are checked whenever settings are made: by Python code, by `changed`, or from a file. pydantic's errors become
lines of "place: what is wrong and what to do".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from ..errors import ConfigError
from .words import MAX_LISTED, hint, instead_of, kind_of, shown
from .yaml_values import YamlText

T = TypeVar("T", bound=BaseModel)
Step = str | int

_OURS = "refused"
_UNKNOWN = ("extra_forbidden", "invalid_key")
_PLAIN_WORDS = {"a valid boolean": "true or false", "a valid integer": "a whole number", " after validation": ""}
_LONGEST_NAME = 100


class Mistake(NamedTuple):
    """One mistake, with the keys and indices that lead to it."""

    where: tuple[Step, ...]
    what: str


def refusal(what: str, *where: Step) -> PydanticCustomError:
    """The error of a check; where: the keys below the checked value."""
    return PydanticCustomError(_OURS, "{what}", {"what": what, "where": where})


class Settings(BaseModel):
    """The base: frozen, without unknown keys. Making one from wrong values raises ConfigError."""

    # Built when first used, and all parts of a file's schema at once: half the time at start-up.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    place: ClassVar[tuple[Step, ...]] = ()
    """where values that Python code gives stand in a configuration"""

    if not TYPE_CHECKING:  # checkers of types know the fields

        def __init__(self, **values: Any) -> None:
            """Check the values. Raises ConfigError."""
            try:
                super().__init__(**values)
            except ValidationError as e:
                found = [Mistake((*self.place, *where), what) for where, what in mistakes(e, type(self))]
                for step in reversed(self.place):
                    values = {step: values}
                raise config_error(found, values) from None

        __init__.__pydantic_base_init__ = True  # parts of a file are checked by pydantic, not by this

    def changed(self, **values: Any) -> Self:
        """The same with other values, all checked again. Raises ConfigError."""
        return type(self)(**{**dict(self), **values})

    def __hash__(self) -> int:
        """Of all but mappings."""
        return hash(tuple(value for value in self.__dict__.values() if not isinstance(value, dict)))


def given(values: Any, *, keep: Collection[str] = ()) -> Any:
    """For a `before` validator: keys and values without null values, which mean the same as leaving the keys out.

    keep: keys whose null is kept, to be reported as a wrong value. Returns a new dict; other values than mappings are
    returned unchanged.
    """
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None or key in keep}


def settings_in_file(cls: type[T], file: YamlText) -> T:
    """Settings of a class from a YAML text of keys and values. Raises ConfigError, with a line for each mistake."""
    if not isinstance(file.values, dict):
        raise ConfigError(f"expected keys and values, got {kind_of(file.values)}")
    try:
        return cls.model_validate(file.values)
    except ValidationError as e:
        raise config_error(mistakes(e, cls), file.values, file=file) from None


def mistakes(error: ValidationError, cls: type[BaseModel], more: Sequence[str] = ()) -> list[Mistake]:
    """All mistakes in the values for a class, in words; more: keys that stand beside those of the class."""
    found: list[Mistake] = []
    for each in error.errors(include_url=False):
        where = each["loc"]
        if where and str(where[-1]).startswith("literal["):  # the words of a union, whose other type came before
            found[-1] = Mistake(where[:-1], f"{found[-1].what}, or {each['ctx']['expected']}")
        elif each["type"] != "too_short" or not found or found[-1].where[: len(where)] != where:
            found.append(_mistake(each, cls, more))  # a list is not too short for its items that are wrong
    return found


def _mistake(error: Any, cls: type[BaseModel], more: Sequence[str]) -> Mistake:
    where: tuple[Step, ...] = error["loc"]
    kind = error["type"]
    if kind == _OURS:
        return Mistake((*where, *error["ctx"]["where"]), error["ctx"]["what"])
    if kind in _UNKNOWN:
        name = shown(where[-1], quoted=False)
        if instead := instead_of("config", name):
            return Mistake((*where[:-1], name), f"was removed: {instead}")
        known = _known_keys(cls, where[:-1])
        return Mistake(
            (*where[:-1], name), f"unknown key, {hint(where[-1], known if where[:-1] else sorted([*known, *more]))}"
        )
    if kind == "missing":
        return Mistake(where, "is missing")
    if kind in ("model_type", "dict_type"):
        return Mistake(where, f"expected keys and values, got {kind_of(error['input'])}")
    if kind == "string_type":
        return Mistake(where, why_no_text(error["input"]))
    if kind in ("string_too_short", "string_pattern_mismatch"):
        return Mistake(where, "is empty: give it a text or remove it")
    if kind == "string_unicode":
        return Mistake(where, f"{shown(error['input'])} is not valid Unicode")
    what = error["msg"].partition(" ")[2]  # such as Input should be greater than 0
    for words, plain in _PLAIN_WORDS.items():
        what = what.replace(words, plain)
    return Mistake(where, f"{shown(error['input'])} {what}")


def why_no_text(value: Any) -> str:
    """The message for a value that is not text; mostly words that YAML reads as another type."""
    if isinstance(value, bool):
        words = "yes, on and true" if value else "no, off and false"
        return f"{value} is a truth value, as YAML reads {words}: write it in quotes"
    if value is None:
        return "is nothing, which YAML makes of null, ~ and an empty place: write a text, the word null in quotes"
    remedy = "write one text" if isinstance(value, list) else "write it in quotes"
    if isinstance(value, dict):
        remedy = "write a text with a colon in quotes"
    return f"{shown(value)} is {kind_of(value)}, not text: {remedy}"


def _known_keys(cls: type[BaseModel], where: Iterable[Step]) -> list[str]:
    """The keys of the settings at a place below cls."""
    for step in where:
        if field := cls.model_fields.get(str(step)):
            cls = next(_models_in(field.annotation), cls)
    return sorted(cls.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def config_error(found: Iterable[Mistake], values: Any, file: YamlText | None = None) -> ConfigError:
    """The error with a line for each mistake. values: the checked ones; file: that they stand in."""
    lines = []
    if file is not None:
        found = sorted(found, key=lambda mistake: file.line(mistake.where) or 0)
    for mistake in found:
        line = None if file is None else file.line(mistake.where)
        number = "" if line is None else f"line {line}: "
        lines.append(f"{number}{_path(mistake.where, values) or 'the configuration'}: {mistake.what}")
    if (n_more := len(lines) - MAX_LISTED) > 0:
        lines[MAX_LISTED:] = [f"and {n_more} more mistakes"]
    return ConfigError("\n".join(lines))


def _path(where: tuple[Step, ...], values: Any) -> str:
    """A place in words, such as `prompts.colour.labels[3]`, with a prompt's name instead of its index if it has one."""
    path = ""
    if len(where) > 2 and where[0] == "prompts" and where[2] != "name":
        name = shown_name(_at(values, *where[:2], "name"))
        if name is not None:
            path, where = f"prompts.{name}", where[2:]
    for step in where:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _at(values: Any, *where: Step) -> Any:
    """The value at a place; None if there is none."""
    for step in where:
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def shown_name(name: Any) -> str | None:
    """A prompt's name if it is usable in a message, else None."""
    usable = isinstance(name, str) and name.strip() and len(name) <= _LONGEST_NAME and name.isprintable()
    return name if usable else None
