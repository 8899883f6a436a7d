"""A model's chat template: Jinja2 text from the model's file, rendered in a sandbox and within limits.

The file is not trusted. In the sandbox a template reaches only the values that it is given. Its steps, its output and
the texts that it builds are limited, so that it cannot keep a start busy or fill the memory by any usual means.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..errors import ConfigError

_MAX_TEMPLATE = 1 << 18  # characters; those of published models have up to about 20,000
_MAX_TEXT = 1 << 20  # characters of the output and of every text on the way, elements of every list
_MAX_STEPS = 200_000  # lines of Python that a template's code runs through; published ones need some hundreds
_MAX_POWER = 64
_DATE = datetime(2024, 7, 26)
"""Today's date for templates; Llama 3's template has it as its own default. The real date would change prompts every
day, and so invalidate calibrations and cached prefixes."""
_MAX_INDENT = 16
_REFUSED_FILTERS = ("center", "filesizeformat", "format", "indent", "pprint", "urlize", "wordwrap", "xmlattr")
"""Filters that can make a long text of a short one, and that no chat template needs."""
_REFUSED_METHODS = frozenset(
    {"center", "expandtabs", "format", "format_map", "join", "ljust", "rjust", "translate", "zfill"}
)
"""Methods of texts that can do the same."""


class ChatRefusalError(ConfigError):
    """A template refuses the messages; the message is the template's own."""


class ChatLimitError(ConfigError):
    """A template exceeds a limit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the model's chat template {what}, more than any template may")


class _Concatenation(NodeTransformer):
    """Replaces `a ~ b` by the limited filter `join`, because Jinja2 has no hook for that operator."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  (Jinja2's name)
        """For Jinja2."""
        parts = nodes.List([self.visit(part) for part in node.nodes], lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """The block `generation`, which marks the model's own words for training: here it renders its content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """For Jinja2."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates expect, as in Hugging Face transformers, with limited sizes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_measured
        )
        del self.globals["lipsum"]
        # They are defined, because a template may name one without using it.
        self.filters |= dict.fromkeys(_REFUSED_FILTERS, _refuse)
        self.filters |= {"join": _join, "replace": _replace, "tojson": _to_json}
        self.filters["string"] = lambda value: str(_measured(value))
        self.globals |= {"raise_exception": _raise, "strftime_now": _DATE.strftime}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Concatenation().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Jinja2's hook for operators: texts and lists can only be added, up to a size."""
        if isinstance(left, int | float) and isinstance(right, int | float):
            if operator == "**" and not (abs(left) <= _MAX_TEXT and abs(right) <= _MAX_POWER):
                raise ChatLimitError("raises a number to a large power")
        elif operator != "+":
            raise SecurityError(f"the operator {operator} is for numbers only")
        elif hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute."""
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _REFUSED_METHODS)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A call in a template, by Jinja2 with the context and what is called before its arguments."""
        function = args[1]
        if isinstance(text := getattr(function, "__self__", None), str) and function.__name__ == "replace":
            return _replace(text, *args[2:])
        return super().call(*args, **kwargs)


def render_template(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template of the model's file with these values.

    Raises ChatRefusalError if the template refuses the messages, ChatLimitError if it exceeds a limit, ConfigError
    if it fails otherwise.
    """
    compiled = _compiled(template)
    parts: list[str] = []
    n_characters = 0
    try:
        with _bounded_steps():
            for part in compiled.generate(values):
                n_characters += len(part)
                if n_characters > _MAX_TEXT:
                    raise ChatLimitError(f"writes more than {_MAX_TEXT} characters")
                parts.append(part)
    except (ChatRefusalError, ChatLimitError):
        raise
    except Exception as e:  # a template fails in all the ways in which Python code fails
        raise ConfigError(f"the model's chat template fails: {type(e).__name__}: {_words(e)}") from None
    return "".join(parts)


def variables_of(template: str) -> set[str]:
    """The names that a template, which was rendered before, asks for."""
    return find_undeclared_variables(_Sandbox().parse(template))


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    if len(template) > _MAX_TEMPLATE:
        raise ConfigError(f"the model's chat template has {len(template)} characters, at most {_MAX_TEMPLATE} are read")
    try:
        return _Sandbox().from_string(template)
    except TemplateSyntaxError as e:
        raise ConfigError(f"the model's chat template is wrong in line {e.lineno}: {_words(e)}") from None
    except TemplateError as e:
        raise ConfigError(f"the model's chat template is wrong: {_words(e)}") from None
    except (RecursionError, MemoryError, SyntaxError, ValueError):
        raise ConfigError("the model's chat template cannot be compiled: it is nested too deeply") from None


@contextmanager
def _bounded_steps() -> Iterator[None]:
    """Stops code that executes more than _MAX_STEPS lines of Python in this thread."""
    n_left = _MAX_STEPS

    def trace(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise ChatLimitError(f"takes more than {_MAX_STEPS} steps")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _words(error: object) -> str:
    return " ".join(str(error).split())[:200]


def _raise(message: object = "") -> None:
    raise ChatRefusalError(_words(message))


def _check_size(size: int) -> None:
    """Refuse a text with too many characters, or a list with too many elements."""
    if size > _MAX_TEXT:
        raise ChatLimitError(f"builds a text or list of more than {_MAX_TEXT}")


def _measured(value: Any) -> Any:
    """The value, after checking that its nested lists have no more elements than a text may have characters."""
    size, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        _check_size(size)
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            waiting += part
    return value


def _refuse(*_: Any, **__: Any) -> None:
    raise SecurityError("a filter that pads or wraps text is not offered")


def _join(values: Any, separator: str = "", attribute: str | None = None) -> str:
    parts = [*values] if attribute is None else [value[attribute] for value in values]
    _check_size(len(separator) * len(parts))
    return str(separator).join(map(str, _measured(parts)))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    text, old, new = str(text), str(old), str(new)
    _check_size(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """The filter `tojson` of transformers: no HTML escapes, other scripts unchanged."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise ChatLimitError(f"indents by {indent}")
    return json.dumps(_measured(value), ensure_ascii=ensure_ascii, indent=indent, **options)
