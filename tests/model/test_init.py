"""`init` as its users run it."""

import json
import warnings
from pathlib import Path

import pytest
from chat_templates import CHATS
from commands import invoked
from conftest import MakeModel

from qcls_gguf import Classifier, load_config
from qcls_gguf.config.load import config_json_schema
from qcls_gguf.evaluation.evaluate import try_prior
from qcls_gguf.opening import ClassifierOpener


def init(*arguments: object) -> tuple[int, str]:
    done = invoked("init", *arguments)
    return done.exit_code, done.stderr


def labels(path: Path, query: str) -> dict[str, str]:
    """What a configuration answers; warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Classifier.from_config(path) as classifier:
            assert classifier.warnings == ()
            return classifier.classify(query).labels


MODELS = {"qwen3": "qwen3", "gemma": "llama", "qwen35": "qwen35", "gemma4": "gemma4", "granite4": "granitehybrid"}
"""chat templates, and small models of the architecture that comes with them"""


@pytest.fixture(params=[*MODELS, "lfm2", "none"])
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    if request.param == "none":
        return make_model()
    chat, name = CHATS[request.param], MODELS.get(request.param, request.param)
    return make_model(name, chat_template=chat.template, control_tokens=chat.control_tokens, add_bos=chat.add_bos)


def test_labels_to_a_configuration_that_labels(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--labels", "topic=delivery,refund,none", "--labels", "who=boy,girl", "-m", str(model)]
    code, said = init(*options)
    assert code == 0, said
    found = labels(tmp_path / "config.yaml", "where is my parcel")
    assert list(found) == ["topic", "who"]
    schema = (tmp_path / "config.yaml").read_text().partition("\n")[0].partition("$schema=")[2]
    assert json.loads((tmp_path / schema).read_bytes()) == config_json_schema()
    assert found["who"] in ("boy", "girl")
    before = (tmp_path / "config.yaml").read_text()
    code, said = init(*options)
    assert code == 2
    assert "--out config.yaml: is there already: name another file, or overwrite it with --force" in said
    assert (tmp_path / "config.yaml").read_text() == before
    assert init(*options, "--force")[0] == 0


@pytest.fixture
def chat_model(make_model: MakeModel) -> Path:
    chat = CHATS["qwen3"]
    return make_model("llama", chat_template=chat.template, control_tokens=chat.control_tokens)


def test_several_prompts_share_all_but_their_last_words(chat_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "joint.yaml"
    assert init("--labels", "a=p,q", "--labels", "b=p,q", "-m", chat_model, "-o", out)[0] == 0
    with Classifier.from_config(out) as classifier:
        fed = classifier.plan_counts("red dress").n_tokens_new
        longer = classifier.plan_counts("red dress red dress").n_tokens_new
        single = len(classifier.engine.model.tokenize(" red dress", parse_special=False))
    assert longer - fed == single, "a query is fed once for both prompts"


def test_a_source_is_needed_and_sources_exclude_each_other(tmp_path: Path) -> None:
    out = str(tmp_path / "x.yaml")
    for arguments, words in (
        ([], "give --labels NAME=LABEL,… or --data FILE"),
        (["--labels", "a=b,c", "--data", "rows.csv"], "--labels and --data are both given"),
        (["--from", "mission"], "--from was removed: copy the configuration"),
        (["--labels", "a=b,c", "--label-column", "x"], "--query-column, --label-column, … are for --data"),
        (["--labels", "a=b,c", "-m", "a", "-hf", "b/c"], "--model and --hf-repo are both given"),
        (["--labels", "a=b,c", "--family", "lfm2"], "--family was removed"),
    ):
        code, said = init(*arguments, "--out", out)
        assert code == 2
        assert words in said
    assert not Path(out).exists()


def test_a_configuration_is_tried_on_the_rows(chat_model: Path, tmp_path: Path) -> None:
    """How many are right, and whether the prior helps, against classifiers; --quick loads nothing."""
    out, data = tmp_path / "c.yaml", tmp_path / "rows.csv"
    queries = [f"{word} dress {i}" for i in range(40) for word in ("red", "blue", "plain")]

    def write(labels: list[str]) -> None:
        rows = [f"{query},{label}" for query, label in zip(queries, labels, strict=True)]
        data.write_text("\n".join(["query,color", *rows]))

    write(["red", "blue", "none"] * 40)
    options = ("--data", data, "-m", chat_model, "-o", out, "--force")
    assert "rows right" not in init(*options, "--quick")[1]
    config = load_config(out)
    with Classifier.from_config(config) as classifier:
        plain = [classifier.classify(query).labels["color"] for query in queries]
    with Classifier.from_config(config.changed(prompts=(config.prompts[0].changed(prior="content_free"),))) as prior:
        shifted = [prior.classify(query).labels["color"] for query in queries]
    assert plain != shifted
    for right, helps in ((plain, False), (shifted, True)):
        labels = [*right[:105], *["red", "blue", "none"] * 5]
        write(labels)
        with ClassifierOpener() as opener:
            tried = try_prior(config, data, opener)["color"]
        found = [sum(map(str.__eq__, answers, labels)) / 120 for answers in (plain, shifted)]
        assert (tried.statistics.accuracy, tried.with_prior) == pytest.approx(found)
        assert tried.helps == (helps and tried.lost is None)
        code, said = init(*options)
        assert code == 0
        assert "of 120 rows right" in said
        assert "of 120 rows right" in " ".join(out.read_text().replace("#", "").split())
        assert (load_config(out).prompts[0].prior == "content_free") == ("right with a content-free prior" in said)
