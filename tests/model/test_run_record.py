"""What `run` prints is what its record describes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qcls_gguf import Classifier, load_config
from qcls_gguf.report.run_record import RunRecord

CONFIG = Path(__file__).parents[2] / "configs" / "mission.yaml"


@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize("abstains", [False, True])
def test_a_result_is_a_record(audit: bool, abstains: bool) -> None:
    config = load_config(CONFIG)
    if abstains:
        prompts = tuple(replace(prompt, min_confidence=1.0, fallback="unsure") for prompt in config.prompts)
        config = replace(config, prompts=prompts)
    with Classifier.from_config(config, audit=audit) as classifier:
        result = classifier.classify("red dress for girls")
    plain = result.to_dict()
    assert RunRecord.model_validate(plain).to_dict() == json.loads(json.dumps(plain))
    for answer in plain["results"]:
        assert ("most_probable" in answer) == (abstains and answer["abstained"])
        assert ("audit" in answer) == audit
