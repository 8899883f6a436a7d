"""Decision models: what their files say, how they are asked, and how their answers are read.

Such a file has the key `<arch>.decision.type`, a template by the name `systemone` that writes a question with its state
and options, and temperatures. Most kinds here answer with a code that the template puts before an option, such as a
letter; `kev` compares states by a pointer head. Rules: llama.cpp, tools/server/server-decision.cpp (b11361).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain, compress, islice, product
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.prompt import SLOT, PromptConfig
from ..errors import ConfigError, ModelError
from ..model import Model
from ..model.header import DECISION_KINDS
from ..prompts.chat_template import render_template
from ..prompts.prompt_set import PromptSet
from ..prompts.trie import Pointer
from ..score.result import PromptResult
from .forms import Quotes, compile_quoted
from .question import JsonText, Question, TextQuestion, json_value

OPENJEV, LEV, NIMBLE, PPLX, LFM2, KEV = DECISION_KINDS
_TYPES = {"choice": "choice", "predicate": "noul", "score": "score"}
_WORDS = {"true": ("yes", "Yes", "YES"), "false": ("no", "No", "NO")}
_N_RATINGS = 9
"""of lev's answer to a yes-or-no question: from certainly no to certainly yes"""
_MOST_CODES = 255
_STATE = "\U0010fffd"
"""takes the place of the state while a template is rendered"""
_OPTION_END = "<|box_end|>"
"""what ends an option of kev"""
_SPELLING = re.compile(r"<\|(\w+)\|>", re.ASCII)
_PAIRS = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
_ODD_TEXT = ' "a\\\n '
_WHITE = " \t\n\r"
_ANY = Question.of("choice", "?", (("a", None), ("b", None)))


class _Option(NamedTuple):
    key: str
    description: Any
    codes: tuple[str, ...]
    """the texts of one token that mean it, of which the template shows the first; of kev its number"""


@dataclass(frozen=True)
class DecisionReader:
    """How questions are put to one model, and how its answers are read."""

    kind: str
    template: str
    temperatures: Mapping[str, float]
    """by the type of a question, or that and a range of numbers of options, as in `choice.3_5`"""
    model: Model
    pointer: Pointer | None = None
    """of kev"""

    def prepared(self, questions: Sequence[TextQuestion]) -> list[TextQuestion]:
        """The questions of a request as their prompts contain them: with their names, with the text of the state and,
        for one kind, with all others. Those for configured prompts stay as they are.
        """
        free = [asked.question.prompt_name is None for asked in questions]
        named = [replace(asked.question, name=asked.param.removeprefix("questions.")) for asked in questions]
        beside = tuple(dict.fromkeys(compress(named, free))) if self.kind == NIMBLE else ()
        text = cache(self.state_text)
        return [
            replace(asked, question=replace(question, beside=beside), text=text(asked.text)) if is_free else asked
            for asked, question, is_free in zip(questions, named, free, strict=True)
        ]

    def compile(self, question: Question, classifier: Classifier) -> PromptSet:
        """The question as a prompt set, of a prompt for every order of its options. Raises ConfigError."""
        quotes = Quotes(self.model, question.texts)
        prompts = [
            PromptConfig(
                name=f"question{index or ''}",
                prompt_template=self._rendered(question, order, _STATE, quotes.quote).replace(_STATE, SLOT),
                labels=tuple(chain.from_iterable(option.codes for option in self._read(question, order))),
                label_prefix="",
            )
            for index, order in enumerate(self._orders(question))
        ]
        # as llama.cpp tokenises it: a template that wants a token at the beginning writes it
        return compile_quoted(prompts, quotes, classifier, pointer=self.pointer, codes=True)

    def state_text(self, state: str) -> str:
        """The text that the template writes for a state: strings usually unchanged, other values as JSON."""
        if self.kind == KEV:
            return _plain_text(json_value(state))
        return state if self._keeps_texts and not isinstance(state, JsonText) else self._written(state)

    @cached_property
    def _keeps_texts(self) -> bool:
        return self._written(_ODD_TEXT) == _ODD_TEXT

    def _written(self, state: str) -> str:
        before, _, after = self._rendered(_ANY, 1, _STATE, str).partition(_STATE)
        return self._rendered(_ANY, 1, json_value(state), str).removeprefix(before).removesuffix(after)

    def probabilities(self, question: Question, results: Sequence[PromptResult]) -> list[float]:
        """Of the question's options, from the answers of its prompts."""
        temperature = self._temperature(question)
        by_order = []
        for order, result in zip(self._orders(question), results, strict=True):
            scores = [score.probability for score in result.scores]  # in the order of the codes
            if self.kind == LFM2:
                left = iter(scores)
                scores = [max(islice(left, len(option.codes))) for option in self._read(question, order)]
            powers = np.array(scores) ** (1 / temperature)
            by_order.append((powers / powers.sum())[::order])
        means = np.mean(by_order, axis=0)
        if question.kind != "predicate":
            return [float(mean) for mean in means]
        yes = means @ np.linspace(0, 1, _N_RATINGS) if self.kind == LEV else means[self._keys(question).index("true")]
        return [float(yes), float(1 - yes)]

    def _orders(self, question: Question) -> tuple[int, ...]:
        """1: the options as given, -1: reversed."""
        return (1, -1) if self.kind == LEV and question.kind == "choice" and len(question.options) > 1 else (1,)

    def _keys(self, question: Question) -> list[str]:
        if question.kind == "predicate":
            return ["true", "false"] if self.kind in (OPENJEV, LFM2) else ["false", "true"]
        if question.kind == "score":
            return [str(index) for index in range(len(question.options))]
        return [option.label for option in question.options]

    def _options(self, question: Question, order: int) -> list[_Option]:
        """What the template shows."""
        keys = self._keys(question)[::order]
        if question.kind == "score":
            descriptions = [json_value(option.description or option.label) for option in question.options]
        else:
            descriptions = [json_value(option.description) for option in question.options]
        if question.kind == "predicate" and keys[0] == "false":
            descriptions.reverse()
        is_group = self.kind == LFM2
        codes = self._groups(question, keys) if is_group else [(code,) for code in self._codes(len(keys))]
        return list(map(_Option, keys, descriptions[::order], codes))

    def _read(self, question: Question, order: int) -> list[_Option]:
        """What the answer is read from."""
        if self.kind == LEV and question.kind == "predicate":
            return [_Option(str(n), None, (code,)) for n, code in enumerate(self._codes(_N_RATINGS))]
        return self._options(question, order)

    def _codes(self, n: int) -> list[str]:
        """The first n codes. Raises ConfigError for more than there are."""
        letters = [*ascii_uppercase, *(ascii_lowercase if self.kind == OPENJEV else _PAIRS)]
        known: Iterable[str] = (code for code in letters if self._token(code) is not None)
        if self.kind == KEV:  # its template shows none
            known = map(str, range(_MOST_CODES))
        first = list(islice(known, min(n, _MOST_CODES)))
        if len(first) < n:
            raise ConfigError(f"has {n} options, and this model tells {len(first)} apart: give fewer")
        return first

    @cached_property
    def _token(self) -> Callable[[str], int | None]:
        """The token of a text that is one token, else None; remembered, because every answer looks up its codes."""

        @lru_cache(maxsize=4096)
        def token(text: str) -> int | None:
            tokens = self.model.tokenize(text, parse_special=False).tolist()
            return tokens[0] if len(tokens) == 1 else None

        return token

    def _groups(self, question: Question, keys: Sequence[str]) -> list[tuple[str, ...]]:
        """Codes of lfm2-d1: an option has its own letter, a letter, a number, or another that is a token and free."""
        if question.kind != "choice":
            return [self._forms(_WORDS.get(key, (key,)), key) for key in keys]
        n, hundred = len(keys), [f"{index:02}" for index in range(100)]
        pool = [*ascii_uppercase, *hundred, *ascii_lowercase, *(f"#{index}" for index in range(200)), *_PAIRS]
        if all(len(key) == 1 and key in ascii_letters for key in keys):
            wanted = keys
        else:
            wanted = ascii_uppercase if n <= 26 else [f"{index:02}" for index in range(n)]
        used: set[int] = set()
        groups: list[tuple[str, ...]] = []
        for code in wanted[:n]:
            for text in (code, *pool):
                token = self._token(text)
                if token is not None and token not in used:
                    used.add(token)
                    spaced = self._token(f" {text}")
                    groups.append((text, f" {text}") if spaced not in (None, token) else (text,))
                    break
            else:
                raise ConfigError(f"has {n} options, and this model tells {len(groups)} apart: give fewer")
        return groups

    def _forms(self, forms: Sequence[str], key: str) -> tuple[str, ...]:
        by_token = {self._token(form): form for form in reversed(forms)}
        tokens = tuple(form for form in forms if (token := self._token(form)) is not None and by_token[token] == form)
        if not tokens:
            raise ConfigError(f"{key!r} is not a token of this model: the levels of a question, 2 to 10, are tokens")
        return tokens

    def _temperature(self, question: Question) -> float:
        n = len(question.options)
        if self.kind == LEV:
            size = "small" if n <= 8 else "mid" if n <= 26 else "large"
        else:
            size = "2" if n <= 2 else "3_5" if n <= 5 else "6_10" if n <= 10 else "11"
        name = _TYPES[question.kind]
        return self.temperatures.get(f"{name}.{size}", self.temperatures.get(name, 1.0))

    def _rendered(self, question: Question, order: int, state: object, quote: Callable[[str], str]) -> str:
        values = self._shown(question, order) | {"state": state, "images": []}
        if question.beside:
            values["questions"] = [self._shown(other, 1) for other in question.beside]
        values = _mapped(values, quote) | {"state": state}
        if self.kind == LEV:
            values = json.loads(json.dumps(values, sort_keys=True))
        text = render_template(self.template, values)
        if state is _STATE and text.count(_STATE) != 1:
            raise ConfigError(f"the model's systemone template shows the state {text.count(_STATE)} times, not once")
        return text

    def _shown(self, question: Question, order: int) -> dict[str, Any]:
        shown = _plain_text if self.kind == KEV else lambda value: value
        options: list[dict[str, Any]] = [
            {"key": shown(option.key), "description": None if option.description is None else shown(option.description)}
            | ({} if self.kind in (OPENJEV, KEV) else {"label": option.codes[0]})
            for option in self._options(question, order)
        ]
        if self.kind == LFM2 and question.kind != "choice":  # the codes are forms of the keys
            options = [option | {"label": option["key"]} for option in options]
        instructions = shown(json_value(question.instructions))
        return {"id": question.name, "type": _TYPES[question.kind], "instructions": instructions, "options": options}


def read_decision(model: Model) -> DecisionReader | None:
    """The reader of a decision model; None for other models. Raises ModelError for an unsupported kind."""
    kind = model.header.decision_kind
    if kind is None:
        return None
    scalars = model.header.scalars
    template = scalars.get("tokenizer.chat_template.systemone")
    if not isinstance(template, str):
        raise ModelError(f"{model.path}: a decision model of kind {kind} without its template `systemone`")
    begin = f"{model.header.arch}.decision.temperature."
    temperatures = {key.removeprefix(begin): value for key, value in scalars.items() if key.startswith(begin)}
    for key, value in temperatures.items():
        if not isinstance(value, float) or not value > 0:
            raise ModelError(f"{model.path}: {begin}{key} is {value}, and a temperature is above 0")
    pointer = _pointer(model) if kind == KEV else None
    return DecisionReader(kind, template, temperatures, model, pointer)  # type: ignore[arg-type]


def _pointer(model: Model) -> Pointer:
    """The head of kev: the rows of its matrix are those of queries, then those of keys. Raises ModelError."""
    facts = model.facts
    end = model.tokenize(_OPTION_END, parse_special=True).tolist()
    matrix, bias = model.output_rows.tensor("cls.output.weight"), model.output_rows.tensor("cls.output.bias")
    if matrix is None or matrix.shape[1:] != (facts.n_embd,) or len(matrix) % 2 or len(end) != 1:
        shape = None if matrix is None else matrix.shape
        raise ModelError(
            f"{model.path}: cls.output.weight has the shape {shape}, and {_OPTION_END} {len(end)} tokens: kev's head "
            f"has an even number of rows of {facts.n_embd} numbers, and the text is one token"
        )
    if bias is None:
        bias = np.zeros(len(matrix), np.float32)
    (query, key), (query_bias, key_bias) = np.split(matrix, 2), np.split(bias, 2)
    return Pointer(
        depth=facts.n_layer,
        end=end[0],
        query=query,
        query_bias=query_bias,
        key=np.ascontiguousarray(key.T),
        key_bias=key_bias,
    )


def _plain_text(value: Any) -> str:
    """A JSON value as the text that kev was trained with, in which no special token is spelt."""
    return _SPELLING.sub("<¦\\1¦>", _flat(value))


def _flat(value: Any, indent: int = 0) -> str:
    pad = "  " * indent
    if isinstance(value, list):
        return "\n".join(f"{pad}- {_flat(item, indent + 1).lstrip(_WHITE)}" for item in value)
    if isinstance(value, dict):
        below = [
            f"\n{_flat(item, indent + 1)}" if isinstance(item, dict | list) else f" {_flat(item)}"
            for item in value.values()
        ]
        return "\n".join(f"{pad}{key}:{text}" for key, text in zip(value, below, strict=True))
    return "" if value is None else str(value) if isinstance(value, str | bool) else json.dumps(value)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with all of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return value
