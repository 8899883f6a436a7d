"""An old configuration in the form of a new one: turns by the model's chat template, common texts written once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..config.load import load_config
from ..config.resources import config_path
from ..config.schema import OLLAMA
from ..config.template import LABELS_SLOT
from ..config.yaml_values import load_yaml, read_text
from .draft import checked, heading, mapping, model_part
from .model_choice import DraftModel, given_model

_CHATML = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\n(?P<user>.*?)<\|im_end\|>\n"
    r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?(?P<answer_cue>[^<]*)",
    re.DOTALL,
)
_TEXTS = ("prompt_template", "system", "user", "answer_cue")
_CONTROL = "<|"


def modern_text(source: str, folder: Path, chosen: DraftModel, *, override: bool) -> tuple[str, list[str]]:
    """The configuration of a file, or of a name, as a new one in that folder, and what is to be said of it.

    ChatML becomes system and user texts, and what all prompts have alike stands once; the words stay as they are, and
    so do all other settings. chosen: the model of a configuration that names none, or with override of any.
    Raises ConfigError, and ModelError where the model that it names cannot be used.
    """
    load_config(source)  # every mistake in it is told
    path = config_path(source).expanduser()
    tree: dict[str, Any] = load_yaml(read_text(path, "the configuration"))
    remarks: list[str] = []
    named = tree.pop("model", None)
    model = chosen
    if named and not override:
        model = _named(dict(named), path.parent)
    elif not named and not override:
        remarks.append(
            "it names no model; so far the embedded model answered, which knows only the prompts that come with it"
        )
    common = {key: tree.pop(key) for key in _TEXTS if key in tree}
    prompts = [_modern(_with_common(prompt, common), model, remarks) for prompt in tree.pop("prompts")]
    first = prompts[0]
    shared = {
        key: first[key] for key in _TEXTS if key in first and all(each.get(key) == first[key] for each in prompts)
    }
    prompts = [{key: value for key, value in prompt.items() if key not in shared} for prompt in prompts]
    parts = [
        heading(f"{source}, whose comments are not in it"),
        model_part(model),
        mapping(shared),
        *(_setting(key, value) for key, value in tree.items()),
        "prompts:\n",
        *(_prompt(prompt) for prompt in prompts),
    ]
    return checked("".join(parts), folder), remarks


def _named(settings: dict[str, Any], folder: Path) -> DraftModel:
    """The model that a configuration names, its file found from anywhere."""
    path = settings.get("path")
    if not isinstance(path, str):
        return DraftModel(settings=settings, why="as it was")
    file = path if path.startswith(OLLAMA) else str((folder / Path(path).expanduser()).absolute())
    found = given_model(file, None)
    assert found is not None
    return DraftModel(
        settings=settings | found.settings,
        why="as it was",
        has_chat_template=found.has_chat_template or "chat_template" in settings,
    )


def _with_common(prompt: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """A prompt with the common texts that it takes, as the loader gives them."""
    if "prompt_template" in prompt:
        return dict(prompt)
    own = any(key in prompt for key in _TEXTS)
    return {**{key: value for key, value in common.items() if not own or key != "prompt_template"}, **prompt}


def _modern(prompt: dict[str, Any], model: DraftModel, remarks: list[str]) -> dict[str, Any]:
    template = prompt.get("prompt_template")
    if template is None:
        return prompt
    text = str(template).removesuffix("\n")
    turns = _CHATML.fullmatch(text)
    if turns is None or not model.has_chat_template or any(_CONTROL in (part or "") for part in turns.groups()):
        if _CONTROL in text:
            why = "is not one of system, user and assistant in ChatML" if model.has_chat_template else "has to: "
            why += "" if model.has_chat_template else "the model's file has no chat template"
            remarks.append(f"{prompt['name']}: its text stays whole, since it {why}")
        return prompt
    labels = ", ".join(map(str, prompt["labels"]))
    found: dict[str, Any] = {"name": prompt["name"]}
    for key, value in turns.groupdict().items():
        if value is not None:
            found[key] = value if LABELS_SLOT in text else value.replace(f"[{labels}]", f"[{LABELS_SLOT}]", 1)
    return {**found, **{key: value for key, value in prompt.items() if key not in (*_TEXTS, "name")}}


def _setting(key: str, value: Any) -> str:
    return f"{key}:\n{mapping(value, indent=2)}" if isinstance(value, dict) else mapping({key: value})


def _prompt(prompt: dict[str, Any]) -> str:
    lines = mapping({"name": prompt["name"]} | prompt, indent=4)
    return f"  - {lines.removeprefix('    ')}"
