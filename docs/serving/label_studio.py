"""A Label Studio ML backend that asks `qcls-gguf serve`: each <Choices> is labelled by the prompt of its name.

QCLS_ADDRESS=http://localhost:8080 uvicorn --app-dir docs/serving label_studio:app --port 9090
"""

import os
from typing import Any
from xml.etree import ElementTree

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

VERSION = "qcls-gguf"
client = httpx.AsyncClient(base_url=os.environ.get("QCLS_ADDRESS", "http://localhost:8080"), timeout=60)


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "UP" if (await client.get("/ready")).is_success else "DOWN"})


async def setup(_: Request) -> JSONResponse:
    return JSONResponse({"model_version": VERSION})


async def predict(request: Request) -> JSONResponse:
    body = await request.json()
    config = ElementTree.fromstring(body["label_config"])
    texts = {tag.get("name"): tag.get("value", "").removeprefix("$") for tag in config.iter("Text")}
    choices = {name: tag.get("toName") for tag in config.iter("Choices") if (name := tag.get("name"))}
    results = []
    for task in body["tasks"]:
        found: list[dict[str, Any]] = []
        probabilities = []
        for name, of_text in choices.items():
            asked = {"query": str(task["data"][texts[of_text]]), "prompts": [name]}
            (answer,) = (await client.post("/v1/classify", json=asked)).raise_for_status().json()["results"]
            value = {"choices": [answer["label"]]}
            found.append({"from_name": name, "to_name": of_text, "type": "choices", "value": value})
            probabilities.append(answer["probability"])
        results.append({"result": found, "score": min(probabilities, default=0.0), "model_version": VERSION})
    return JSONResponse({"results": results, "model_version": VERSION})


app = Starlette(
    routes=[
        Route("/", health),
        Route("/health", health),
        Route("/setup", setup, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
    ]
)
