"""A Label Studio ML backend before a running `qcls-gguf serve`: each <Choices> is labelled by the prompt of its name.

QCLS_ADDRESS=http://localhost:8080 uvicorn --app-dir docs/serving label_studio:app --port 9090
"""

import os
from typing import Any
from xml.etree import ElementTree

import httpx
from fastapi import FastAPI

VERSION = "qcls-gguf"
app = FastAPI()
client = httpx.AsyncClient(base_url=os.environ.get("QCLS_ADDRESS", "http://localhost:8080"), timeout=60)


@app.get("/")
@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "UP" if (await client.get("/ready")).is_success else "DOWN"}


@app.post("/setup")
async def setup(body: dict[str, Any]) -> dict[str, str]:
    return {"model_version": VERSION}


@app.post("/predict")
async def predict(body: dict[str, Any]) -> dict[str, Any]:
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
    return {"results": results, "model_version": VERSION}
