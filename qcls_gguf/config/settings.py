"""What a user may write, as frozen pydantic models whose mistakes are told in words.

Values are checked whenever settings are made: by Python code, by `changed`, or from a file. pydantic's errors become
lines of "place: what is wrong and what to do".
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)  # fmt: skip
from pydantic_core import PydanticCustomError

from ..errors import ConfigError
from .words import MAX_LISTED, JsonObject, hint, instead_of, kind_of, shown
from .yaml_values import YamlText

T = TypeVar("T", bound=BaseModel)
Step = str | int

LARGEST = (1 << 24) - 1
"""no count or size is larger"""
LONGEST = 1 << 20
"""characters that a text may have; a whole file may have no more bytes"""
OWN_VARIABLES = ("messages", "add_generation_prompt", "bos_token", "eos_token")
"""what a chat template gets from the program"""
_PLAIN_WORDS = {"a valid boolean": "true or false", "a valid integer": "a whole number", " after validation": ""}
_LONGEST_NAME = 100
_EMPTY = "is empty: give it a text, one that begins with > or | in quotes, or remove it"


class Mistake(NamedTuple):
    """One mistake, with the keys and indices that lead to it."""

    where: tuple[Step, ...]
    what: str


def refusal(what: str, *where: Step) -> PydanticCustomError:
    """The error of a check; where: the keys below the checked value."""
    return PydanticCustomError("refused", "{what}", {"what": what, "where": where})


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
                wrong = [Mistake((*self.place, *where), what) for where, what in mistakes(e, type(self))]
                for step in reversed(self.place):
                    values = {step: values}
                raise config_error(wrong, values) from None

        __init__.__pydantic_base_init__ = True  # parts of a file are checked by pydantic, not by this

    def changed(self, **values: Any) -> Self:
        """The same with other values, all checked again. Raises ConfigError."""
        return type(self)(**{**dict(self), **values})

    def __hash__(self) -> int:
        """Of all but mappings."""
        return hash(tuple(value for value in self.__dict__.values() if not isinstance(value, dict)))


def given(values: Any, *, keep: Collection[str] = ()) -> Any:
    """For a `before` validator: keys and values without null values, which mean the same as leaving the keys out.

    keep: keys whose null is kept, to be reported as a wrong value. Other values than mappings are returned unchanged.
    """
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None or key in keep}


def settings_in_file(cls: type[T], file: YamlText) -> T:
    """Settings of a class from a YAML text of keys and values. Raises ConfigError, with a line for every mistake."""
    if not isinstance(file.values, dict):
        raise ConfigError(f"expected keys and values, got {kind_of(file.values)}")
    try:
        return cls.model_validate(file.values)
    except ValidationError as e:
        raise config_error(mistakes(e, cls), file.values, file=file) from None


def mistakes(error: ValidationError, cls: type[BaseModel], beside: Sequence[str] = ()) -> list[Mistake]:
    """All mistakes in the values for a class, in words; beside: keys that stand beside those of the class."""
    told: list[Mistake] = []
    for mistake in error.errors(include_url=False):
        where = mistake["loc"]
        if where and str(where[-1]).startswith("literal["):  # the words of a union, whose other type came before
            told[-1] = Mistake(where[:-1], f"{told[-1].what}, or {mistake['ctx']['expected']}")
        elif mistake["type"] != "too_short" or not told or told[-1].where[: len(where)] != where:
            told.append(_mistake(mistake, cls, beside))  # a list is not too short for its items that are wrong
    return told


def _mistake(error: Any, cls: type[BaseModel], beside: Sequence[str]) -> Mistake:
    where: tuple[Step, ...] = error["loc"]
    value = error["input"]
    match error["type"]:
        case "refused":
            return Mistake((*where, *error["ctx"]["where"]), error["ctx"]["what"])
        case "extra_forbidden" | "invalid_key":
            name, known = shown(where[-1], quoted=False), _known_keys(cls, where[:-1])
            what = f"unknown key, {hint(where[-1], known if where[:-1] else sorted([*known, *beside]))}"
            instead = instead_of("config", name)
            return Mistake((*where[:-1], name), f"was removed: {instead}" if instead else what)
        case "missing":
            what = "is missing"
        case "model_type" | "dict_type":
            what = f"expected keys and values, got {kind_of(value)}"
        case "string_type":
            what = why_no_text(value)
        case "string_too_short" | "string_pattern_mismatch":
            what = _EMPTY
        case "string_unicode":
            what = f"{shown(value)} is not valid Unicode"
        case _:
            what = f"{shown(value)} {error['msg'].partition(' ')[2]}"  # such as Input should be greater than 0
            for words, plain in _PLAIN_WORDS.items():
                what = what.replace(words, plain)
    return Mistake(where, what)


def why_no_text(value: Any) -> str:
    """The message for a value that is not text; mostly words that YAML reads as another type."""
    if isinstance(value, bool):
        return f"{value} is a truth value, as YAML reads {str(value).lower()}: write it in quotes"
    if value is None:
        return (
            "is nothing, which YAML makes of null, ~, a text that begins with # or &, and an empty place: "
            "write a text, the word null in quotes"
        )
    remedy = "write one text, in quotes if it begins with [" if isinstance(value, list) else "write it in quotes"
    if isinstance(value, dict):
        remedy = "write a text with a colon in quotes, and one that begins with {"
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


def config_error(wrong: Iterable[Mistake], values: Any, file: YamlText | None = None) -> ConfigError:
    """The error, with a line for every mistake. values: the checked ones; file: that they stand in."""
    if file is not None:
        wrong = sorted(wrong, key=lambda mistake: file.line(mistake.where) or 0)
    lines = []
    for where, what in wrong:
        line = file and file.line(where)
        lines.append(f"{f'line {line}: ' if line else ''}{_path(where, values) or 'the configuration'}: {what}")
    if (n_more := len(lines) - MAX_LISTED) > 0:
        lines[MAX_LISTED:] = [f"and {n_more} more mistakes"]
    return ConfigError("\n".join(lines))


def _path(where: tuple[Step, ...], values: Any) -> str:
    """A place in words, such as `prompts.colour.labels[3]`, with a prompt's name instead of its index if it has one."""
    path = ""
    if len(where) > 2 and where[0] == "prompts" and where[2] != "name":
        try:
            name = values["prompts"][where[1]]["name"]
        except (KeyError, IndexError, TypeError):
            name = None
        if isinstance(name, str) and name.strip() and len(name) <= _LONGEST_NAME and name.isprintable():
            path, where = f"prompts.{name}", where[2:]
    for step in where:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _resolved(value: Any, info: ValidationInfo) -> Path:
    """A relative path resolves from the folder of the configuration, or from the working folder."""
    if not isinstance(value, str | Path):
        raise refusal(why_no_text(value))
    if not str(value):
        raise refusal(_EMPTY)
    folder: Path = (info.context or {}).get("folder", Path())
    try:
        path = folder / Path(value).expanduser()
        if b"\0" in os.fsencode(path):
            raise ValueError("has a null byte, which no path has")
        # The last name is not resolved: links in the hub's cache lead to files whose names are digests.
        return path.parent.resolve() / path.name
    except (OSError, RuntimeError, ValueError) as e:  # such as the home folder of an unknown user
        raise refusal(f"{shown(str(value), quoted=False)}: {e}") from None


def _checked_variables(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise refusal(f"expected names and values, got {kind_of(value)}")
    for name, variable in value.items():
        if not isinstance(name, str) or not name.isidentifier() or name in OWN_VARIABLES:
            what = f"is no name for a variable: use letters, digits and _, but not {', '.join(OWN_VARIABLES)}"
            raise refusal(what, shown(name, quoted=False))
        if not isinstance(variable, str | int | float):
            raise refusal(f"{shown(variable)} is {kind_of(variable)}: give a text, a number, true or false", name)
    return value


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    remedies: dict[type, str] = {dict: ": begin each item with -", str: ": write [one, two]"}
    raise refusal(f"expected a list, got {kind_of(value)}{remedies.get(type(value), '')}")


def distinct(what: str, key: Callable[[Any], str] = str) -> AfterValidator:
    """That no item of a list is given twice; key: the text that makes an item another."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        before = set()
        for index, text in enumerate(map(key, value)):
            if text in before:
                raise refusal(f"{what} {shown(text)} is given twice", index)
            before.add(text)
        return value

    return AfterValidator(check)


Text: TypeAlias = Annotated[str, Field(strict=True, max_length=LONGEST)]
FilledText: TypeAlias = Annotated[Text, Field(min_length=1)]
VisibleText: TypeAlias = Annotated[Text, Field(pattern=r"\S")]
"""more than white space"""
Truth: TypeAlias = Annotated[bool, Field(strict=True)]
Size: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
Share: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1)]
File: TypeAlias = Annotated[Path, PlainValidator(_resolved), WithJsonSchema({"type": "string", "minLength": 1})]
Variables: TypeAlias = Annotated[dict[str, Text | bool | int | float], BeforeValidator(_checked_variables)]
"""names with texts, numbers and truth values, for a chat template"""
LISTED = BeforeValidator(_listed)
"""that a value is a list, whose order counts"""
