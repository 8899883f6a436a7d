"""A Label Studio ML backend that asks `qcls-gguf serve`: each <Choices> is labelled by the prompt of its name.

QCLS_ADDRESS=http://localhost:8080 uvicorn --app-dir docs/serving label_studio:app --port 9090

What cannot be labelled is left out of a task's result, and the log says why: a <Choices> that no prompt is named for, a
task without the text, a text that is too long, a label that is none of the choices. An error answers 422 or 503.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

VERSION = "qcls-gguf"
N_AT_ONCE = 100  # texts of one request
log = logging.getLogger("uvicorn.error")
client = httpx.AsyncClient(base_url=os.environ.get("QCLS_ADDRESS", "http://localhost:8080"), timeout=60)
schemas: dict[str, str] = {}  # of projects that have been set up


def text_of(task: dict[str, Any], value: str) -> str | None:
    """The text of a task that `value`, such as $query or $row.query, names; None where there is none."""
    if not value.startswith("$"):
        return value
    found: Any = task.get("data")
    keys = [value[1:]] if isinstance(found, dict) and value[1:] in found else value[1:].split(".")
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return str(found) if isinstance(found, str | int | float) else None


def choices_of(config: object) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """(name, name of the text, what names its text, values by label) of each <Choices>. Raises ValueError."""
    try:
        tree = ElementTree.fromstring(config if isinstance(config, str) else "")
    except ElementTree.ParseError as e:
        raise ValueError(f"label_config is not XML: {e}") from None
    texts = {tag.get("name"): tag.get("value", "") for tag in tree.iter("Text") if tag.get("valueType") != "url"}
    for tag in tree.iter("Choices"):
        name, to = tag.get("name", ""), tag.get("toName", "")
        if to not in texts:
            raise ValueError(f"<Choices name={name!r} toName={to!r}>: only a <Text> with its text is labelled")
        choices = [(each.get("value", ""), each.get("alias")) for each in tag.iter("Choice")]
        values = {value: alias or value for value, alias in choices} | {alias: alias for _, alias in choices if alias}
        yield name, to, texts[to], values


async def labelled(name: str, texts: list[str]) -> list[dict[str, Any]]:
    """The answer to each text, `{"error"}` for one that cannot be labelled. Raises ValueError."""
    answers: list[dict[str, Any]] = []
    for first in range(0, len(texts), N_AT_ONCE):
        asked = {"queries": texts[first : first + N_AT_ONCE], "prompts": [name]}
        response = await client.post("/v1/classify", json=asked)
        if response.status_code in (404, 422):
            raise ValueError(f"<Choices name={name!r}>: {response.json()['error']['message']}")
        answers += response.raise_for_status().json()["answers"]
    return answers


async def body_of(request: Request) -> dict[str, Any]:
    """Raises ValueError."""
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


async def predict(request: Request) -> JSONResponse:
    body = await body_of(request)
    tasks = body.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ValueError("a prediction needs `tasks`, a list of tasks with `data`")
    config = body.get("label_config") or schemas.get(str(body.get("project")), "")
    found: list[list[tuple[dict[str, Any], float]]] = [[] for _ in tasks]
    for name, to, named, values in choices_of(config):
        texts = [text_of(task, named) for task in tasks]
        try:
            answers = iter(await labelled(name, [text for text in texts if text is not None]))
        except ValueError as e:
            log.warning("%s", e)
            continue
        for results, task, text in zip(found, tasks, texts, strict=True):
            answer = {"error": f"there is no text {named}"} if text is None else next(answers)
            (best,) = answer.get("results", [{"label": None}])
            if (label := values.get(best["label"], None if values else best["label"])) is None:
                why = answer.get("error", f"{best['label']!r} is none of its choices")
                log.warning("task %s, <Choices name=%r>: %s", task.get("id"), name, why)
                continue
            result = {"from_name": name, "to_name": to, "type": "choices", "value": {"choices": [label]}}
            results.append((result, best["probability"]))
    predictions = [
        {
            "result": [result for result, _ in results],
            "score": min((probability for _, probability in results), default=0.0),
            "model_version": VERSION,
        }
        for results in found
    ]
    return JSONResponse({"results": predictions, "model_version": VERSION})


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "UP" if (await client.get("/ready")).is_success else "DOWN"})


async def setup(request: Request) -> JSONResponse:
    body = await body_of(request)
    list(choices_of(body.get("schema")))  # refuses what will not be answered
    schemas[str(body.get("project"))] = body["schema"]
    return JSONResponse({"model_version": VERSION})


async def nothing(_: Request) -> JSONResponse:
    """For what Label Studio tells a model that it might learn from."""
    return JSONResponse({"versions": [VERSION]})


async def refused(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 422 if isinstance(error, ValueError) else 503)


app = Starlette(
    routes=[
        Route("/", health),
        Route("/health", health),
        Route("/setup", setup, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
        *(Route(path, nothing, methods=["POST"]) for path in ("/webhook", "/train", "/versions")),
    ],
    exception_handlers={ValueError: refused, httpx.HTTPError: refused},
)
