"""Parts of long queries, and answers of heads."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from learnt_heads import random_head, write_heads
from oracle import PromptSpec
from served import ROOT, Server, with_runtime

from qcls_gguf import Classifier, load_config
from qcls_gguf.native import NativeModel


def test_a_part_of_a_long_query_is_answered_and_said(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_query_tokens": 8, "long_queries": "head"}
    with Server(config=with_runtime(tmp_path, ROOT / "configs/mission.yaml", **settings)) as server:
        long, short = server.classify(query="red dress " * 30), server.classify(query="red dress")
        assert (long.status_code, long.headers["x-queries-cut"]) == (200, "1")
        assert "x-queries-cut" not in short.headers


def test_answers_say_which_are_a_heads(tmp_path: Path) -> None:
    config = load_config("mission")
    specs = [
        PromptSpec(name=each.name, template=each.prompt_template or "", labels=each.labels) for each in config.prompts
    ]
    path = ROOT / "models/fashion-tiny-Q8_0.gguf"
    with NativeModel(path) as model:
        head = random_head(np.random.default_rng(0), model.facts.n_embd, len(specs[0].labels), depth=2)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        write_heads(tmp_path / "heads.npz", model, sha256, {specs[0].name: (specs[0], head)})
    headed = with_runtime(tmp_path, ROOT / "configs/mission.yaml")
    headed.write_text(f"{headed.read_text()}\nheads: heads.npz\n")
    with Classifier.from_config(headed) as classifier:
        category, audience = classifier.classify("red dress").results
    choices = [{"value": label} for label in specs[0].labels]
    asked = {"type": "choice", "instructions": f"@{specs[0].name}", "choices": choices}
    free = {"type": "choice", "instructions": "Which?", "choices": [{"value": "red"}, {"value": "blue"}]}
    with Server(config=headed) as server:
        for _ in range(2):  # before and after a question without a head, which needs all layers
            results = server.classify(query="red dress").json()["results"]
            assert [each.get("scored_by") for each in results] == ["head", None]
            assert (results[0]["label"], results[0]["depth"]) == (category.label, 2)
            assert results[1]["label"] == audience.label
            body = {"model": "m", "input": "red dress", "questions": [asked, free]}
            own, other = server.http.post("/v1/decisions", json=body).json()["answers"]
            assert (own["choice"], own["x_scored_by"], own["x_depth"]) == (category.label, "head", 2)
            assert "x_scored_by" not in other
        assert (
            server.http.post("/predict?prompt=category", json={"inputs": "red dress"}).json()[0]["label"]
            == own["choice"]
        )
        (audited,) = server.classify(query="red dress", prompts=["category"], audit=True).json()["results"]
        assert (audited["label"], audited["scored_by"]) == (category.label, "head")
        (audited,) = server.classify(query="red dress", prompts=["audience"], audit=True).json()["results"]
        assert (audited["label"], "audit" in audited) == (audience.label, True)
        other = server.classify(query="red dress", scoring="first_token").json()["results"]
        assert not any("scored_by" in each for each in other)  # which is a scoring of the labels' texts
