"""Names of models on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ..errors import ConfigError

_SPEC = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@:\s]+))?(?::(?P<quantization>[\w.-]+(?:/[\w.-]+)*))?", re.ASCII
)
_FORM = "user/repo[@revision][:quantization]"
_REVISION = r"(?P<revision>refs/[^/]+/[^/]+|(?![^/]*\.gguf\b)[^/?]+)"
_PAGE = "(?:blob|raw|resolve|tree)/"
_ADDRESS = re.compile(
    r"(?:https?://[^/]+/|[\w-]+(?:\.[\w-]+)+/)?(?P<repo>[\w.-]+/[\w.-]+)(?P<quantization>:[\w.-]+)?"
    rf"(?:/(?:{_PAGE}{_REVISION}(?:/|$))?(?P<file>(?!{_PAGE})[\w./-]+\.gguf)?)?(?:[?#].*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRequest:
    """What a name asks for; what it leaves open is None."""

    repo: str
    quantization: str | None
    revision: str | None

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "")


def parse_name(spec: str, quantization: str | None, revision: str | None) -> HubRequest:
    """What `spec` asks for, with what is given beside it. Raises ConfigError for a text that is no such name."""
    found = _SPEC.fullmatch(spec)
    if found is None:
        remedy = _as_spec(spec)
        raise ConfigError(f"model {spec!r} is not of the form {_FORM}: {remedy}")
    if quantization == "":
        raise ConfigError("the quantization is empty: name one such as Q4_K_M, or leave it out")
    if found["repo"].lower().endswith(".gguf"):
        raise ConfigError(f"model {spec!r} looks like a file's path, but there is no such file: correct it")
    if quantization and (found["quantization"] or quantization).upper() != quantization.upper():
        raise ConfigError(f"model {spec!r} and quantization {quantization!r} disagree: give one of them only")
    if revision and (found["revision"] or revision) != revision:
        raise ConfigError(f"model {spec!r} and revision {revision!r} disagree: give one of them only")
    return HubRequest(
        repo=found["repo"],
        quantization=quantization or found["quantization"],
        revision=revision or found["revision"],
    )


def _as_spec(spec: str) -> str:
    """What to write instead of the address of a page or file, or a path that begins with a repository."""
    if Path(spec).is_file():
        return "a file on this disk is given as the model's `path`"
    found = _ADDRESS.fullmatch(spec)
    if found is None:
        if "://" in spec:
            return "the address of a file has the form https://HOST/USER/REPO/resolve/REVISION/FILE.gguf"
        return "a file is named by its path instead" if spec.lower().endswith(".gguf") else "correct it"
    revision = unquote(found["revision"] or "main")  # such as refs%2Fpr%2F1
    at = "" if revision == "main" else f"@{revision}"
    file = f":{found['file']}" if found["file"] else found["quantization"] or ""
    return f"write {found['repo']}{at}{file}"
