"""`/v1/decisions` in SGLang's words: `{"input", "questions": [{"id", "type", "question", …}]}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...questions.asking import Usage
from ...questions.question import Distribution, Question, TextQuestion
from ..dialect import Questions, QuestionsRequest, Strict, token_counts
from ..refusal import RefusedError, no_images


class SglangOption(Strict):
    """An option of a choice."""

    name: str
    description: str | None = None


class SglangQuestion(Strict):
    """A question with the name that its answer has."""

    id: str
    type: Literal["choice", "score", "yes_no"]
    question: str
    options: Annotated[list[SglangOption], Field(min_length=2)] | None = None
    levels: Annotated[list[str], Field(min_length=2)] | None = None
    yes: str | None = None
    no: str | None = None


class SglangRequest(QuestionsRequest):
    """SGLang's request; fields that are not named here are ignored."""

    input: str
    questions: Annotated[list[SglangQuestion], Field(min_length=1)]
    model: str = "default"
    images: list[Any] | None = None


def claims(body: object) -> bool:
    """Whether a body for `/v1/decisions` is of this dialect."""
    questions = body.get("questions") if isinstance(body, dict) else None
    first = questions[0] if isinstance(questions, list) and questions else None
    return isinstance(first, dict) and "question" in first


def ask(request: SglangRequest, _: object) -> Questions:
    """The questions of a request. Raises RefusedError."""
    if request.images:
        raise no_images("images")
    if len({each.id for each in request.questions}) < len(request.questions):
        raise RefusedError(422, "invalid", "two questions have one id", param="questions")
    questions = [
        TextQuestion(_question(each, f"questions[{n}]", request.audit), request.input, f"questions[{n}]")
        for n, each in enumerate(request.questions)
    ]

    def answer(found: list[Distribution], usage: Usage) -> object:
        trios = zip(request.questions, questions, found, strict=True)
        return {
            "object": "decisions",
            "model": request.model,
            "prompt_format_version": None,
            "answers": {given.id: _answer(given, asked.question, each) for given, asked, each in trios},
            "usage": token_counts(usage.whole),
        }

    return Questions(questions=questions, answer=answer)


def _question(given: SglangQuestion, param: str, audit: bool) -> Question:
    match given:
        case SglangQuestion(type="yes_no"):
            return Question.predicate(given.question, given.yes, given.no, audit=audit)
        case SglangQuestion(type="choice", options=[*options]):
            choices = [(each.name, each.description) for each in options]
            return Question.of("choice", given.question, choices, audit=audit)
        case SglangQuestion(type="score", levels=[*levels]):
            return Question.of("score", given.question, [(each, None) for each in levels], audit=audit)
    missing = "options" if given.type == "choice" else "levels"
    what = f"{param}.{missing}: a {given.type} needs {missing}"
    raise RefusedError(422, "invalid", what, param=param)


def _answer(given: SglangQuestion, question: Question, found: Distribution) -> dict[str, object]:
    labels = [option.label for option in question.options]
    probabilities = dict(zip(labels, found.probabilities, strict=True))
    best = {"score": found.expected_level} if given.type == "score" else {"choice": labels[found.best]}
    return {"type": given.type, "probabilities": probabilities, "label_mass": found.label_mass, **best}
