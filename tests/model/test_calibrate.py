"""`qcls-gguf calibrate`: from labelled data to the answers of the next run."""

import hashlib
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from calibrations import FASHION, LABELS, changed, config, fashion, probabilities, softmax, specs
from conftest import MakeModel, RunPython, WriteConfig
from evaluations import ROOT, evaluated, run

from qcls_gguf import Classifier, ConfigError, load_config
from qcls_gguf.config.calibration_file import calibration_text, prompt_hash
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.tuning.calibrate import CalibrationRecord, FitSettings, calibrate

__all__ = ["config", "fashion"]  # fixtures
DEV = ROOT / "models" / "tiny" / "dev.jsonl"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sixty labelled queries for two of the embedded model's own prompts."""
    rows = [json.loads(line) for line in DEV.read_text(encoding="utf-8").splitlines()[:60]]
    for row in rows:
        row["labels"] = {name: row["labels"][name] for name in FASHION}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_from_labelled_queries_to_calibrated_answers(data: Path, fashion: Path, tmp_path: Path) -> None:
    """Fit, write, use, and evaluate.

    The prior takes `none` for the answer without content, which here it is right to be: there is much to correct.
    """
    fashion = changed(fashion, prompt="audience", prior="content_free", content_free_queries=["N/A"])
    out = tmp_path / "fits.yaml"
    arguments: list[object] = ["calibrate", "--data", data, "--config", fashion, "--out", out, "--prompt", "audience"]
    done = run(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert f"written: {out}" in done.stderr
    record = json.loads(done.stdout)
    assert (record["written"], list(record["prompts"]), record["data"]["n_rows"]) == (str(out), ["audience"], 60)
    assert CalibrationRecord.model_validate(record).to_dict() == record
    fit = record["prompts"]["audience"]
    assert fit["accepted"] is True
    assert fit["log_loss"]["before"] - fit["log_loss"]["after"] > fit["log_loss"]["standard_error"] > 0

    text = out.read_text(encoding="utf-8")
    assert text.startswith("# Written by `qcls-gguf calibrate`")
    tree = yaml.safe_load(text)
    assert tree["model_sha256"] == record["model"]["sha256"]
    entry = tree["prompts"]["audience"]
    assert (entry["temperature"], entry["scoring"]) == (fit["temperature"], "tree")
    assert entry["fit"]["n_rows"] == 60

    calibrated = changed(fashion, calibration="fits.yaml")
    raw, found = probabilities(fashion), probabilities(calibrated)
    expected = softmax(list(np.log(raw["audience"]) / entry["temperature"]))
    assert found["audience"] == pytest.approx(expected, abs=1e-4)
    assert {name: found[name] for name in found if name != "audience"} == {
        name: raw[name] for name in raw if name != "audience"
    }

    modes = evaluated(calibrated, data, modes=("tree",))["modes"]
    assert list(modes) == ["tree", "calibrated"]
    assert modes["calibrated"]["prompts"]["audience"]["log_loss"] < fit["log_loss"]["before"]
    assert modes["calibrated"]["prompts"]["colour"]["log_loss"] == pytest.approx(
        modes["tree"]["prompts"]["colour"]["log_loss"]
    )

    again = run(*arguments)
    assert again.returncode == 2
    assert f"--out {out}: is there already: name another file, or overwrite it with --force" in again.stderr
    assert out.read_text(encoding="utf-8") == text
    table = run(*arguments, "--force", "--config", calibrated)
    assert table.returncode == 0, table.stderr
    assert "kept: +" in table.stdout
    assert out.read_text(encoding="utf-8") == text  # whatever the calibration was that it replaces


def test_the_calibrated_mode_is_what_the_classifier_answers(
    make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    """In the configured scorings, with prior and temperature."""
    path = write_config(make_model(), specs("joint", "first_token"), flash_attn=False, kv_type="f32")
    path = changed(changed(path, prior="content_free"), prompt="item", temperature=0.3, min_confidence=1, fallback="?")
    rows = tmp_path / "rows.jsonl"
    given = [
        {"query": "red dress", "labels": {"item": "jump", "user": ["boy", "man"]}},
        {"query": "", "labels": {"user": "man"}},
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    modes = evaluated(path, rows, modes=("tree",))["modes"]
    assert modes["calibrated"]["agreement_with_joint"] is not None  # item is scored by joint
    losses = []
    with Classifier.from_config(path) as classifier:
        for row in given:
            for answer in classifier.classify(str(row["query"])).results:
                labels: Any = row["labels"]
                if accepted := labels.get(answer.prompt):
                    losses.append(-np.log(sum(s.probability for s in answer.scores if s.label in accepted)))
    assert modes["calibrated"]["log_loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert modes["calibrated"]["log_loss"] != pytest.approx(modes["tree"]["log_loss"], abs=1e-3)


def test_fits_to_what_cannot_be_told_are_refused_and_nothing_is_written(
    make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    """The labels are drawn from the model's own probabilities: no temperature is better than 1."""
    path = write_config(make_model(), specs("tree", "tree"))
    random, rows = Random(1), []
    with Classifier.from_config(path) as classifier:
        for i in range(60):
            answers = classifier.classify(query := f"query {i}").results
            drawn = {a.prompt: random.choices(LABELS[a.prompt], [s.probability for s in a.scores])[0] for a in answers}
            rows.append({"query": query, "labels": drawn})
    (data := tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("calibrate", "--data", data, "--config", path, "--out", tmp_path / "fits.yaml")
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("refused: ") == 2
    assert "nothing written: no fit lowers the held-out log-loss" in done.stderr
    assert not (tmp_path / "fits.yaml").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ("colours",)}, "`prompt` colours: is no prompt of the configuration, did you mean colour?"),
        ({"n_folds": 7}, "rows.jsonl: prompt audience: has 60 labelled rows, 7 folds need 70: label more"),
        ({"out": "rows.jsonl", "force": True}, "is the file of `data`: name another"),
        ({"out": "fashion.yaml", "force": True}, "is the file of the configuration: name another"),
        ({"config": {"temperature": 2}}, "prompts.colour.temperature: 2 is given, and calibrate fits one: remove it"),
    ],
)
def test_refusals_come_before_the_model_is_loaded(
    change: dict[str, Any], words: str, data: Path, fashion: Path, tmp_path: Path
) -> None:
    steps: list[str] = []
    options = {"data": data, "out": tmp_path / "fits.yaml", "config": {}, **change}
    options |= {key: tmp_path / options[key] for key in ("data", "out")}
    path = changed(fashion, prompt="colour", **options["config"]) if options["config"] else fashion
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    with (
        pytest.raises(ConfigError, match=re.escape(words)),
        ClassifierOpener(on_step=lambda *step: steps.append(step[0])) as opener,
    ):
        calibrate(FitSettings(**{**options, "config": load_config(path)}), opener)
    assert steps == []
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_calibration_is_for_its_own_model(fashion: Path, tmp_path: Path) -> None:
    sha256 = hashlib.sha256((ROOT / "models" / "fashion-tiny-Q8_0.gguf").read_bytes()).hexdigest()
    colour = load_config(fashion).prompts[1]
    entry = {"prompt_hash": prompt_hash(colour), "scoring": "tree", "temperature": 2.0, "fit": {}}
    (tmp_path / "fits.yaml").write_text(calibration_text(sha256, {"colour": entry}), encoding="utf-8")
    path = changed(fashion, calibration="fits.yaml")
    other = run("run", "--config", path, "--query", "x", "--model", ROOT / "models" / "fashion-tiny-Q4_K_M.gguf")
    assert other.returncode == 2
    assert f"was made with the model of sha256 {sha256[:12]}…" in other.stderr


def test_without_scipy_it_says_how_to_install_it(run_python: RunPython, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, sys; find = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name == 'scipy' else find(name, *rest);"
        "from qcls_gguf.cli import main;"
        "sys.argv = ['qcls-gguf', 'advise', '--data', 'missing.jsonl', '--cascade', '0.9']; main()"
    )
    done = run_python(code)
    assert done.returncode == 2
    assert "--cascade needs scipy: pip install 'qcls-gguf[calibrate]'" in done.stderr
