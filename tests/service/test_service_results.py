"""Queries kept for those that begin like them, answers by stages, and answers of heads."""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cascades import PROMPTS, QUERIES, joint, write
from learnt_heads import random_head, write_heads
from oracle import PromptSpec
from served import ROOT, Server, with_runtime

from qcls_gguf import Classifier, load_config
from qcls_gguf.native import NativeModel


def test_clients_that_type_are_answered_from_kept_queries(tmp_path: Path) -> None:
    texts = ["red summer dress", "blue jeans for boys", "light pink tee for girls", "red shoes"]
    with Server(config=with_runtime(tmp_path, ROOT / "configs/mission.yaml", kept_queries=4)) as server:

        def typed(text: str) -> list[Any]:
            return [server.classify(query=text[:n]).json()["results"] for n in range(1, len(text) + 1)]

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(typed, texts))
        assert server.metric("qcls_kept_query_tokens_total") > 0
    with Classifier.from_config("mission") as classifier:
        for text, found in zip(texts, answers, strict=True):
            for n, results in enumerate(found, 1):
                wanted = classifier.classify(text[:n]).results
                assert [each["label"] for each in results] == [each.label for each in wanted]


def test_a_part_of_a_long_query_is_answered_and_said(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_query_tokens": 8, "long_queries": "head"}
    with Server(config=with_runtime(tmp_path, ROOT / "configs/mission.yaml", **settings)) as server:
        long, short = server.classify(query="red dress " * 30), server.classify(query="red dress")
        assert (long.status_code, long.headers["x-queries-cut"]) == (200, "1")
        assert "x-queries-cut" not in short.headers


def test_the_metrics_count_the_answers_of_each_stage(tmp_path: Path) -> None:
    with Server(config=write(tmp_path, joint(), {"category": 0.7, "audience": 0.6})) as server:
        answered: Counter[str] = Counter()
        for query in QUERIES:
            answered.update(answer["stage"] for answer in server.classify(query=query).json()["results"])
        assert set(answered) == {"cheap", "both"}  # else this shows nothing
        for stage, n in answered.items():
            assert server.metric(f'qcls_stage_answers_total{{stage="{stage}"}}') == n


def test_a_cascade_gives_one_answer_however_a_prompt_is_asked(tmp_path: Path) -> None:
    with Server(config=write(tmp_path, joint(), {"category": 0.7, "audience": 0.95})) as server:
        labels = [*PROMPTS["audience"].split(", "), "none"]
        question = {"type": "choice", "instructions": "@audience", "choices": [{"value": label} for label in labels]}
        free = {"type": "choice", "instructions": "Which?", "choices": [{"value": "red"}, {"value": "blue"}]}
        seen = set()
        for query in QUERIES:
            wanted = server.classify(query=query).json()["results"][1]
            seen.add(wanted["stage"])
            for more in ({"prompts": ["audience"]}, {"scoring": "tree"}, {"prompts": ["audience"], "scoring": "tree"}):
                answer = server.classify(query=query, **more)
                found = answer.json()["results"][-1]
                assert (found["label"], found["stage"]) == (wanted["label"], wanted["stage"])
                assert found["probability"] == pytest.approx(wanted["probability"], abs=0.01)
                assert wanted["stage"] in answer.headers["x-stage"].split(", ")
            body = {"model": "m", "input": query, "questions": [free, question, free]}
            asked = server.http.post("/v1/decisions", json=body).json()["answers"]
            assert (asked[1]["choice"], asked[1]["x_stage"]) == (wanted["label"], wanted["stage"])
            assert "x_stage" not in asked[0]
            assert asked[0] == asked[2]
            ranked = server.http.post("/predict?prompt=audience", json={"inputs": query})
            assert ranked.json()[0]["label"] == wanted["label"]
            assert ranked.headers["x-stage"] == wanted["stage"]
            for other in ({"audit": True}, {"scoring": "first_token"}):
                answer = server.classify(query=query, prompts=["audience"], **other)
                assert "stage" not in answer.json()["results"][0]
        assert seen == {"cheap", "both"}  # else this shows nothing


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
