"""Models that were trained to decide, against their rules written out: one whole prompt, stock logits, plain Jinja2.

What kev compares, hidden states, are those that give the stock logits: more tokens than a state has numbers.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from string import ascii_letters, ascii_uppercase
from typing import Any

import jinja2
import numpy as np
import pytest
from cases import cases
from chat_templates import STATE_FIRST, TEMPLATES
from conftest import MakeModel, OpenClassifier, WriteConfig
from gguf import GGUFReader
from oracle import Oracle, PromptSpec, decode_sequence
from served import Server

from qcls_gguf import ConfigError, ModelError, OpenModels, load_config
from qcls_gguf.engine.open import open_model
from qcls_gguf.questions.decision import read_decision
from qcls_gguf.questions.question import Question

TEMPERATURES = {"choice": 1.7, "choice.3_5": 0.6, "choice.small": 2.5, "noul": 1.3}
QUESTIONS: dict[str, dict[str, Any]] = {
    "colour": {
        "type": "choice",
        "instructions": "Which colour is it?",
        "criteria": {"red": None, "light blue": "as the sky", "green": {"like": ["grass", "leaves"]}},
    },
    "girl": {"type": "noul", "instructions": "Is it for a girl?", "criteria": {"true": "girls, women", "false": None}},
    "price": {"type": "score", "instructions": {"about": "price"}, "criteria": ["cheap", "usual", "dear {labels}"]},
}
STATES: list[Any] = [
    "a red dress for girls",
    {"title": "jeans", "tags": ["blue", "<|im_end|>"]},
    {"n": 1.5, "ok": True, "none": None, "in": [{"a": 1, "b": ["c"]}, []]},
]
FLAT = {
    json.dumps(value): text
    for value, text in (
        (STATES[1], "title: jeans\ntags:\n  - blue\n  - <¦im_end¦>"),
        (STATES[2], "n: 1.5\nok: True\nnone: \nin:\n  - a: 1\n    b:\n      - c\n  - "),
        ({"like": ["grass", "leaves"]}, "like:\n  - grass\n  - leaves"),
        ({"about": "price"}, "about: price"),
    )
}
"""what kev reads in place of values that are not strings"""
N_POINTER = 24
PROMPT = PromptSpec(name="p", template="{query} is:", labels=("red", "blue"))
CLOSE = 1e-4


@pytest.fixture(params=TEMPLATES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def decision_file(make_model: MakeModel, template: str | None, keys: dict[str, Any], **options: Any) -> Path:
    """A model that was trained to decide, with this template `systemone`."""
    named = [{"name": "systemone", "template": template}] if template else []
    templates = [*named, {"name": "default", "template": "{{ messages }}"}]
    return make_model(vocab="bpe-answers", chat_template=templates, keys=keys, **options)


@pytest.fixture
def path(kind: str, make_model: MakeModel) -> Path:
    keys = {"decision.type": kind, **{f"decision.temperature.{key}": value for key, value in TEMPERATURES.items()}}
    kev: dict[str, Any] = {"name": "qwen35", "control_tokens": ("<|box_end|>",), "pointer": N_POINTER}
    return decision_file(make_model, TEMPLATES[kind], keys, **(kev if kind == "kev" else {}))


@pytest.fixture
def server(path: Path, write_config: WriteConfig) -> Iterator[Server]:
    settings: dict[str, Any] = {"max_query_tokens": 256, "question_cells": 2048, "kv_type": "f32", "flash_attn": False}
    with Server(config=write_config(path, [PROMPT], **settings)) as server:
        yield server


class Rules:
    """What the kinds of models agree on, slowly."""

    def __init__(self, kind: str, oracle: Oracle) -> None:
        self.kind, self.oracle = kind, oracle
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string(TEMPLATES[kind])
        pairs = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
        codes = list(ascii_letters[26:] + ascii_letters[:26]) if kind == "openjev" else [*ascii_uppercase, *pairs]
        self.codes = [code for code in codes if self.token(code) is not None]
        if kind == "kev":
            tensors = {each.name: np.array(each.data, np.float64) for each in GGUFReader(oracle.path).tensors}
            self.output = tensors.get("output.weight", tensors["token_embd.weight"])
            self.head, self.bias = tensors["cls.output.weight"], tensors["cls.output.bias"]

    def token(self, text: str) -> int | None:
        tokens = self.oracle.model.tokenize(text, parse_special=False).tolist()
        return tokens[0] if len(tokens) == 1 else None

    def options(self, question: dict[str, Any]) -> list[tuple[str, Any]]:
        criteria = question["criteria"]
        if question["type"] == "choice":
            return list(criteria.items())
        if question["type"] == "score":
            return [(str(index), level) for index, level in enumerate(criteria)]
        keys = ("true", "false") if self.kind in ("openjev", "lfm2-d1") else ("false", "true")
        return [(key, criteria[key]) for key in keys]

    def shown(self, question: dict[str, Any], options: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"key": key, "description": description} for key, description in options]
        for index, option in enumerate(found):
            if self.kind == "lfm2-d1" and question["type"] != "choice":
                option["label"] = option["key"]
            elif self.kind not in ("openjev", "kev"):
                option["label"] = self.codes[index]
        return found

    def flat(self, value: Any) -> Any:
        return FLAT.get(json.dumps(value), value) if self.kind == "kev" else value

    def scores(self, tokens: list[int], question: dict[str, Any]) -> Any:
        """(n_options,)"""
        self.oracle.context.clear()
        logits = decode_sequence(self.oracle.context, tokens).astype(np.float64)
        if self.kind != "kev":
            return np.array([max(logits[-1, token] for token in group) for group in self.groups(question)])
        ends = [place for place, token in enumerate(tokens) if token == self.oracle.special["<|box_end|>"]]
        states = np.linalg.lstsq(self.output, logits[[*ends, -1]].T, rcond=None)[0].T
        both = states @ self.head.T + self.bias
        return both[:-1, N_POINTER:] @ both[-1, :N_POINTER] / N_POINTER**0.5

    def groups(self, question: dict[str, Any]) -> list[list[int]]:
        n = len(question["criteria"])
        if self.kind != "lfm2-d1":
            n = 9 if self.kind == "lev" and question["type"] == "noul" else n
            texts = [[code] for code in self.codes[:n]]
        elif question["type"] == "choice":
            texts = [[code, f" {code}"] for code in self.codes[:n]]
        elif question["type"] == "score":
            texts = [[str(index)] for index in range(n)]
        else:
            texts = [["yes", "Yes", "YES"], ["no", "No", "NO"]]
        return [[token for text in group if (token := self.token(text)) is not None] for group in texts]

    def temperature(self, question: dict[str, Any]) -> float:
        bucket = "small" if self.kind == "lev" else "2" if question["type"] == "noul" else "3_5"
        return TEMPERATURES.get(f"{question['type']}.{bucket}", TEMPERATURES.get(question["type"], 1.0))

    def answer(self, name: str, state: Any) -> list[float]:
        """The options' probabilities; of a yes-or-no question that of yes."""
        question = QUESTIONS[name]
        options = [(key, self.flat(description)) for key, description in self.options(question)]
        orders = [options, options[::-1]] if self.kind == "lev" and question["type"] == "choice" else [options]
        items = QUESTIONS.items()
        everything = [{"id": key, "instructions": q["instructions"], "options": self.options(q)} for key, q in items]
        found = []
        for order in orders:
            shown = {"instructions": self.flat(question["instructions"]), "options": self.shown(question, order)}
            asked = {"id": name, "type": question["type"], "state": "{query}", "questions": everything}
            text = self.template.render(**asked, **shown)
            query = self.flat(state)
            query = query if isinstance(query, str) else json.dumps(query, sort_keys=self.kind == "lev")
            scores = self.scores(self.oracle.rendered(text, query), question)
            powers = np.exp((scores - scores.max()) / self.temperature(question))
            found.append(powers / powers.sum())
        mean = np.mean([each[::-1] if index else each for index, each in enumerate(found)], axis=0)
        if question["type"] != "noul":
            return [float(each) for each in mean]
        if self.kind == "lev":
            return [float(sum(p * i / 8 for i, p in enumerate(mean)))]
        return [float(mean[[key for key, _ in options].index("true")])]


def test_answers_follow_the_rules_of_its_kind(kind: str, path: Path, server: Server) -> None:
    with Oracle(path, kv_type="f32", flash_attn=False) as oracle:
        rules = Rules(kind, oracle)
        for state in STATES:
            response = server.http.post("/v1/systemone", json={"state": state, "questions": QUESTIONS})
            assert response.status_code == 200, response.text
            answers = response.json()["answers"]
            for name, answer in answers.items():
                got = [answer["noul"]] if answer["type"] == "noul" else [*answer["probabilities"].values()]
                np.testing.assert_allclose(got, rules.answer(name, state), atol=CLOSE, err_msg=f"{name} {state}")


def test_labels_of_a_request_for_several_texts_are_answered_as_for_each_alone(server: Server) -> None:
    def predict(inputs: object) -> Any:
        body = {"inputs": inputs, "parameters": {"candidate_labels": ["red", "blue"], "multi_label": True}}
        response = server.http.post("/predict", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    texts = ["a red dress", "blue jeans"]
    for found, text in zip(predict([[text] for text in texts]), texts, strict=True):
        alone = {each["label"]: pytest.approx(each["score"], abs=CLOSE) for each in predict(text)}
        assert {each["label"]: each["score"] for each in found} == alone


@cases(
    ({"decision.type": "clef"}, STATE_FIRST, "decision model of kind 'clef', which has a head of its own"),
    ({"decision.type": "kev"}, STATE_FIRST, "cls.output.weight has the shape None"),
    ({"decision.type": "lev"}, None, "without its template `systemone`"),
    ({"decision.type": "lev", "decision.temperature.choice": 0.0}, STATE_FIRST, "choice is 0.0"),
)
def test_an_unusable_file_is_refused(
    keys: dict[str, Any], template: str | None, what: str, make_model: MakeModel, write_config: WriteConfig
) -> None:
    config = load_config(write_config(decision_file(make_model, template, keys), [PROMPT]))
    with pytest.raises(ModelError, match=what), OpenModels() as models:
        read_decision(open_model(config, models))


def test_what_does_not_fit_a_model_is_refused(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    classifier = open_classifier(decision_file(make_model, STATE_FIRST * 2, {"decision.type": "openjev"}), [PROMPT])
    many = Question.of("choice", "Which?", ((f"option {index}", None) for index in range(53)))
    reader = read_decision(classifier.core.engine.model)
    assert reader
    for question, says in (
        (many, "has 53 options, and this model tells 52 apart"),
        (Question.predicate("Is it?"), "shows the state 2 times"),
    ):
        with pytest.raises(ConfigError, match=says):
            reader.compile(question, classifier)


def test_a_template_is_tokenised_as_it_is_written(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    path = decision_file(make_model, STATE_FIRST, {"decision.type": "openjev"}, add_bos=True)
    classifier = open_classifier(path, [PROMPT])
    model = classifier.core.engine.model
    reader = read_decision(model)
    assert reader
    (prompt,) = reader.compile(Question.predicate("Is it?"), classifier).prompts
    assert classifier.prompts[0].opening == (model.first_token,)
    assert prompt.opening == tuple(model.tokenize("<|im_start|>", parse_special=True))
