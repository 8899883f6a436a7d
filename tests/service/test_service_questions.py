"""Questions that come with a request, as OpenAI's and TypeSafe's clients send them."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest
import typesafe_sdk
from cases import cases
from served import JSON, Server, mission_with

from qcls_gguf import Classifier, PromptConfig
from qcls_gguf.questions.question import Distribution

COLOURS = ("light blue", "light pink", "red", "dark red")
_LINES = "".join(f"- {each}\n" for each in COLOURS)
WHICH_COLOUR = f"Which colour?\nOptions:\n{_LINES}Answer with exactly one option."
CLOSE = 0.01
"""of probabilities: what other tokens in the decode do to the arithmetic"""


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(server: Server, *questions: object, about: object = "red dress") -> Any:
    response = server.http.post("/v1/decisions", json={"model": "m", "input": about, "questions": questions})
    assert response.status_code == 200, response.text
    return response.json()


def choice(instructions: str = "Which colour?", values: tuple[object, ...] = COLOURS, **more: object) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "choices": [{"value": value} for value in values], **more}


def probabilities(answer: Any, n: int = 0) -> list[float]:
    """Those of the options of a question, by its number."""
    return [option["probability"] for option in answer["answers"][n]["probabilities"]]


def expected(classifier: Classifier, system: str, labels: tuple[str, ...], query: str) -> list[float]:
    """The probabilities by the Python API; the embedded model has no chat template."""
    prompt = PromptConfig(name="p", prompt_template=f"{system}\n\n{{query}}\nanswer:", labels=labels)
    with classifier.prompt_set([prompt]) as prompts:
        return [score.probability for score in prompts.classify(query).results[0].scores]


def test_the_openai_sdk(client: openai.OpenAI, classifier: Classifier) -> None:
    levels = ("not at all", "somewhat", "very")
    decision = client.decisions.create(
        model="any",
        input="red dress for girls",
        questions=[
            {"type": "predicate", "instructions": "Is it a dress?"},
            choice(name="colour"),  # type: ignore[list-item]
            {"type": "score", "instructions": "How formal?", "levels": [{"label": label} for label in levels]},
        ],
    )
    predicate, colour, score = decision.answers
    assert predicate.type == "predicate"
    system = "Is it a dress?\n\nAnswer with exactly yes or no."
    wanted, _ = expected(classifier, system, ("yes", "no"), "red dress for girls")
    assert predicate.probability == pytest.approx(wanted, abs=CLOSE)
    assert colour.type == "choice"
    assert (colour.name, [each.value for each in colour.probabilities]) == ("colour", list(COLOURS))
    found = [each.probability for each in colour.probabilities]
    assert found == pytest.approx(expected(classifier, WHICH_COLOUR, COLOURS, "red dress for girls"), abs=CLOSE)
    assert sum(found) == pytest.approx(1)
    assert colour.choice == COLOURS[found.index(max(found))]
    assert colour.confidence == pytest.approx(Distribution(found).choice_confidence)
    assert score.type == "score"
    assert [each.label for each in score.probabilities] == list(levels)
    assert score.score == pytest.approx(sum(each.value * each.probability for each in score.probabilities))
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens > 0
    assert decision._request_id


def test_the_openai_sdk_raises_what_the_status_says(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match=r"questions\[0\]\.labels\[1\].*given twice") as raised:
        client.decisions.create(model="m", input="x", questions=[choice(values=("a", "a"))])  # type: ignore[list-item]
    assert raised.value.param == "questions[0]"


def test_the_typesafe_sdk(server: Server) -> None:
    with typesafe_sdk.TypeSafeClient(base_url=server.address, api_key="none") as client:
        answer = client.system_one(
            state={"text": "red dress", "n": 1},
            questions={
                "is it": typesafe_sdk.Noul(instructions="Is it red?", criteria={"true": "it is", "false": None}),
                "which": typesafe_sdk.Choice(criteria={"light blue": None, "red": "as blood"}),
                "how": typesafe_sdk.Score(instructions=["how", {"much": 1}], criteria=["low", "high", "higher"]),
                "one": typesafe_sdk.Choice(criteria={"only": None}),
            },
            model="m",
        )
        with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match="images are not answered"):
            client.system_one(state="x", questions={"q": typesafe_sdk.Box(instructions="Where?")}, model="m")
    noul, which, how, one = (answer.answers[name] for name in ("is it", "which", "how", "one"))
    assert isinstance(noul, typesafe_sdk.NoulAnswer)
    assert 0 < noul.noul < 1
    assert isinstance(which, typesafe_sdk.ChoiceAnswer)
    assert sum(which.probabilities.values()) == pytest.approx(1)
    assert isinstance(how, typesafe_sdk.ScoreAnswer)
    assert list(how.legend.values()) == ["low", "high", "higher"]
    assert how.score == pytest.approx(Distribution(list(how.probabilities.values())).expected_level)
    assert isinstance(one, typesafe_sdk.ChoiceAnswer)
    assert (one.choice, one.confidence, one.probabilities) == ("only", 1, {"only": 1})


def test_numbers_that_few_programs_hold(server: Server) -> None:
    for number, statuses in (("1" + "0" * 30, (200,)), ("1e400", (400, 422)), ("NaN", (400, 422))):
        body = f'{{"state": {{"n": {number}}}, "questions": {{"q": {{"type": "noul", "instructions": "Is it?"}}}}}}'
        response = server.http.post("/v1/systemone", content=body, headers=JSON)
        assert response.status_code in statuses, response.text


def test_a_configured_prompt_answers_by_its_name(server: Server, classifier: Classifier) -> None:
    labels = classifier.config.prompts[0].labels
    answer = ask(server, choice("@category", labels[::-1]))
    with classifier.prompt_set([classifier.config.prompts[0]]) as prompts:
        scores = prompts.classify("red dress").results[0].scores
    found = {each["value"]: each["probability"] for each in answer["answers"][0]["probabilities"]}
    assert list(found) == list(labels[::-1])
    assert found == {score.label: score.probability for score in scores}


def test_booleans_are_not_texts(server: Server) -> None:
    values = (True, "true", False, "other")
    answer = ask(server, choice(values=values))
    assert [each["value"] for each in answer["answers"][0]["probabilities"]] == list(values)


def test_inputs_of_several_parts(server: Server) -> None:
    parts = [{"type": "input_text", "text": "red"}, {"type": "input_json", "data": {"a": [1, "b"]}}]
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "9"},
    ]
    text = 'developer: be brief\nuser: red\n{"a":[1,"b"]}\ncall: f {}\noutput: 9'
    assert ask(server, choice(), about=items)["answers"] == ask(server, choice(), about=text)["answers"]


NOUL = {"type": "noul", "instructions": "Is it so?"}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}]
IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}]}]


OF_TYPESAFE = {"state": "x", "questions": {"q": {"type": "choice", "criteria": {"red": None, "blue": None}}}}
SHADES = choice(values=tuple(f"shade {n} of the sea" for n in range(255)))
NO_ROOM = "255 options and their question do not fit: give fewer .* runtime\\.question_cells"


def decisions(*questions: object, about: object = "x") -> tuple[str, object]:
    return "/v1/decisions", {"model": "m", "input": about, "questions": questions}


def system_one(question: object, **more: object) -> tuple[str, object]:
    return "/v1/systemone", {"state": "x", "questions": {"q": question}, **more}


@cases(
    (*decisions(choice(), about=IMAGE), 422, "input[0].content[0].type", ""),
    (*decisions(choice(values=("a", " "))), 422, "questions[0]", ""),
    (*decisions(choice("@category")), 422, "questions[0]", ""),
    (*decisions(choice("@nobody")), 404, "questions[0]", ""),
    (*decisions(choice(), {"type": "box"}), 422, "questions[1].type", ""),
    (*decisions(choice(), about="word " * 400), 422, "input", ""),
    (*decisions(choice("long " * 5000)), 422, "questions[0]", ""),
    (*decisions(SHADES), 422, "questions[0]", NO_ROOM),
    (*decisions(*[choice()] * 401), 413, "questions", "at most 400"),
    (*decisions(choice("a" * 40_000)), 413, "questions[0]", "at most 32,768 bytes"),
    ("/v1/decisions", OF_TYPESAFE, 422, "the body", "are answered at /v1/systemone"),
    (*system_one({"type": "noul"}), 422, "q", ""),
    (*system_one({"type": "box", "instructions": "?"}), 422, "type", ""),
    (*system_one(NOUL, images=["data:image/png;base64,"]), 422, "images", ""),
    (*system_one(NOUL, state=PICTURE), 422, "state", ""),
    (*system_one(NOUL, state={"messages": PICTURE}), 422, "state", ""),
)
def test_what_cannot_be_asked(path: str, body: object, status: int, param: str, says: str, server: Server) -> None:
    response = server.http.post(path, json=body)
    answer = response.json()
    error = answer.get("error") or {"param": answer["detail"][0]["loc"][-1], "message": answer["detail"][0]["msg"]}
    assert (response.status_code, error["param"]) == (status, param), answer
    assert error["message"]
    assert re.search(says, error["message"])


def test_more_questions_than_the_cache_holds(server: Server) -> None:
    questions = [choice(f"Which colour has number {n}?") for n in range(40)]
    answer = ask(server, *questions)
    for n in (0, 17, 39):
        assert probabilities(answer, n) == pytest.approx(probabilities(ask(server, questions[n])), abs=CLOSE)
    assert server.metric("qcls_sets_evicted_total") > 20


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a small cache."""
    config = mission_with(tmp_path_factory.mktemp("narrow"), runtime={"question_prefixes": 2})
    with Server("--quiet", config=config) as server:
        yield server


def test_clients_that_crowd_the_cache_wait_for_each_other(narrow: Server) -> None:
    questions = [choice(f"Is it {n}?") for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(ask, narrow), questions))
    for question, answer in zip(questions[::5], answers[::5], strict=True):
        assert probabilities(answer) == pytest.approx(probabilities(ask(narrow, question)), abs=CLOSE)


def test_a_question_is_made_once(server: Server) -> None:
    first = ask(server, choice("Which colour is made once?"))
    made = server.metric("qcls_sets_made_total")
    second = ask(server, choice("Which colour is made once?"))
    assert server.metric("qcls_sets_made_total") == made
    assert first["answers"] == second["answers"]
    assert first["usage"]["input_tokens_details"]["cache_write_tokens"] > 0
    assert second["usage"]["input_tokens_details"]["cache_write_tokens"] == 0
