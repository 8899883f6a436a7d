"""The same questions to two servers with `POST /v1/systemone`, in turns: times, and how far their answers differ.

python systemone_peers.py http://localhost:8080 http://localhost:8081 [ROUNDS [STATE]]

Each round asks eight questions about one state: STATE or, without it, 50 words that no round before had.
"""

import json
import random
import statistics
import sys
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

TOPICS = ("delivery", "refunds", "a broken item", "the price", "an account", "a warranty")
QUESTIONS: dict[str, dict[str, Any]] = {
    "topic": {"type": "choice", "instructions": "What is it about?", "criteria": dict.fromkeys(TOPICS)},
    "tone": {"type": "choice", "instructions": "Which tone?", "criteria": {"calm": None, "angry": "insults, threats"}},
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait", "this week", "today"]},
    **{f"about {each}": {"type": "noul", "instructions": f"Is it about {each}?"} for each in TOPICS[:5]},
}
TEXT = "the a order customer wrote that parcel late came broken again money back please day week shop box never"


def numbers(answer: dict[str, Any]) -> list[float]:
    """The probabilities of an answer."""
    return [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())


def main(addresses: list[str], n_rounds: int, state: str | None) -> None:
    draw = random.Random(0)
    servers = [(each, HTTPConnection(urlsplit(each).netloc, timeout=600)) for each in addresses]
    ms: dict[str, list[float]] = {each: [] for each in addresses}
    largest, where = 0.0, ""
    for turn in range(n_rounds + 3):
        text = state or " ".join(draw.choices(TEXT.split(), k=50))
        answers = {}
        for address, server in draw.sample(servers, len(servers)):
            body = json.dumps({"state": text, "questions": QUESTIONS})
            server.close()  # as the server may have done meanwhile
            server.connect()
            began = time.perf_counter()
            server.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
            response = server.getresponse()
            content = response.read()
            took = 1e3 * (time.perf_counter() - began)
            if response.status != 200:
                sys.exit(f"{address}: {response.status} {content.decode()}")
            answers[address] = json.loads(content)["answers"]
            if turn >= 3:  # the first rounds warm up
                ms[address].append(took)
        first, second = answers.values()
        for name in QUESTIONS:
            for one, other in zip(numbers(first[name]), numbers(second[name]), strict=True):
                if abs(one - other) > largest:
                    largest, where = abs(one - other), f"{name} of {text!r}"
    for address, times in ms.items():
        print(f"{address}: p50 {statistics.median(times):.2f} ms, slowest {max(times):.2f} ms, {n_rounds} rounds")
    print(f"largest difference of a probability: {largest:.5f} ({where})")


if __name__ == "__main__":
    main(sys.argv[1:3], int(sys.argv[3]) if len(sys.argv) > 3 else 50, sys.argv[4] if len(sys.argv) > 4 else None)
