"""A service whose configuration is a cascade."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cascades import QUERIES, joint, write
from served import Server


def test_the_metrics_count_the_answers_of_each_stage(tmp_path: Path) -> None:
    with Server(config=write(tmp_path, joint(), {"category": 0.7, "audience": 0.6})) as server:
        answered: Counter[str] = Counter()
        for query in QUERIES:
            answered.update(answer["stage"] for answer in server.classify(query=query).json()["results"])
        assert set(answered) == {"cheap", "both"}  # else this shows nothing
        for stage, n in answered.items():
            assert server.metric(f'qcls_stage_answers_total{{stage="{stage}"}}') == n
