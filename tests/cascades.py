"""A small cascade of the embedded model: two prompts with one text first, then each with its own."""

from pathlib import Path
from typing import Any

import yaml
from commands import tiny_rows

from qcls_gguf import Classifier
from qcls_gguf.cascade import stamps

QUERIES = [row["query"] for row in tiny_rows("heldout")[:8]]
FORM = (
    "<|im_start|>system\nAnalyze the {what}. Output exactly one label from [none, {labels}]. Use 'none' if no {what}."
    "<|im_end|>\n<|im_start|>user\nquery: {{query}}<|im_end|>\n<|im_start|>assistant\nlabel:"
)
PROMPTS = {"category": "dress, jeans, shirt, skirt", "audience": "boy, girl, man, woman"}


def tree(model: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Two prompts of their own texts."""
    prompts = [
        {
            "name": name,
            "prompt_template": FORM.format(what=f"{name} intent", labels=labels),
            "labels": [*labels.split(", "), "none"],
            **changes,
        }
        for name, labels in PROMPTS.items()
    ]
    return {"prompts": prompts, **({} if model is None else {"model": {"path": str(model)}})}


def joint() -> dict[str, Any]:
    """The same prompts with one text."""
    lists = "\n".join(f"{name}: [{labels}, none]" for name, labels in PROMPTS.items())
    text = f"<|im_start|>system\nOne label each.\n{lists}<|im_end|>\n<|im_start|>user\nquery: {{query}}<|im_end|>\n"
    names = [{"name": name, "labels": [*labels.split(", "), "none"]} for name, labels in PROMPTS.items()]
    return {"prompt_template": f"{text}<|im_start|>assistant\n{{name}}:", "prompts": names}


def hashes(folder: Path, part: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """A model's sha256, and the stamps of the prompts."""
    path = folder / "part.yaml"
    path.write_text(yaml.safe_dump(part, allow_unicode=True))
    with Classifier.from_config(path) as classifier:
        return classifier.model.sha256, stamps(classifier.configured)


def write(
    folder: Path, first: dict[str, Any], thresholds: dict[str, float], last: dict[str, Any] | None = None
) -> Path:
    """A cascade of a first stage and the two prompts."""
    last = last or tree()
    (folder / "cheap.yaml").write_text(yaml.safe_dump(first, allow_unicode=True))
    first_sha, first_stamps = hashes(folder, first)
    sha, own = hashes(folder, last)
    stage = {
        "config": "cheap.yaml",
        "model_sha256": first_sha,
        "prompts": {name: {"threshold": t, "prompt_hash": first_stamps[name]} for name, t in thresholds.items()},
    }
    path = folder / "both.yaml"
    cascade = {"stages": [stage], "model_sha256": sha, "prompt_hashes": own}
    path.write_text(yaml.safe_dump({**last, "cascade": cascade}, allow_unicode=True))
    return path
