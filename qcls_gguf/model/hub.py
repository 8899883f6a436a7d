"""Models of the Hugging Face Hub: choose a file by its quantisation, download it once, find it again offline."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import ConfigError, ModelError

DEFAULT_QUANTIZATION = "Q4_K_M"

# llama.cpp's names, with the prefix that unsloth gives to its own mixes: UD-Q4_K_XL.
_LABEL = re.compile(
    r"(?<![A-Z0-9])(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32)(?![A-Z0-9_])", re.IGNORECASE
)
SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<part>\d{5})-of-(?P<n_parts>\d{5})\.gguf", re.IGNORECASE)
_GO_ONLINE = "run once online, without `offline` and HF_HUB_OFFLINE,"
# Companions of a model that are no model by themselves; llama.cpp (common/download.cpp) skips the same names.
_COMPANIONS = ("mmproj", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPEC = re.compile(
    r"(?:(?:https://)?(?:huggingface\.co|hf\.co)/)?"
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@:\s]+))?(?::(?P<quantization>[\w.-]+(?:/[\w.-]+)*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One quantisation of a model: `files` are the parts in order, `label` its quantisation or else its file name."""

    label: str
    files: tuple[str, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class HubRequest:
    """What a name asks for; what it leaves open is None."""

    repo: str
    quantization: str | None
    revision: str | None

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "")


def fetch_model(spec: str, *, offline: bool = False) -> Path:
    """Return the local path of a GGUF model on the Hub, downloading what the Hub's cache does not hold.

    `spec` is `user/repo` or `user/repo:quantization`, as for llama.cpp's `-hf`, and `@revision` may follow the
    repository, whose address may stand for it; a GGUF file's name may stand for the quantisation. For a split model all
    parts are fetched, of one commit, and the path is that of the first. With no quantisation Q4_K_M is chosen, or else
    the repository's only model. HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE are obeyed. A model in the cache is
    used, too, if the Hub cannot be reached.

    Raises ConfigError for an unusable `spec` or a quantisation that is not there, ModelError if fetching fails.
    """
    parts = _SPEC.fullmatch(spec)
    if parts is None or parts["repo"].lower().endswith(".gguf"):
        form = "user/repo[@revision][:quantization]: take these from the address of its page"
        raise ConfigError(f"model {spec!r} is not of the form {form}; a file is given as the model's `path`")
    request = HubRequest(parts["repo"], parts["quantization"], parts["revision"])
    try:
        # Imported late: a run with a local file must not wait for it.
        from huggingface_hub import constants

        return _find_cached(request) if offline or constants.HF_HUB_OFFLINE else _fetch(request)
    except (ConfigError, ModelError):
        raise
    except Exception as e:  # the library's own, its HTTP client's or the system's: they differ between versions
        what = f"cannot be fetched from {os.environ.get('HF_ENDPOINT', 'the hub')}"
        why = " ".join(str(e).split()) or type(e).__name__
        remedy = "check its name, the network and the room in HF_HOME; for what is private or gated set HF_TOKEN"
        raise ModelError(f"{request} {what} ({why}): {remedy}") from None


def cached_models() -> Iterator[tuple[str, Path]]:
    """(`user/repo[@REVISION]:QUANT`, first file) of every whole GGUF model in the Hub's cache; none without a cache.

    A repository's newest revision counts; it is named unless it is `main`.
    """
    try:
        from huggingface_hub import scan_cache_dir

        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except Exception:  # no cache, one that cannot be read, or a library that does not load: nothing is listed
        return
    for repo in repos:
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: revision.last_modified)
        root = newest.snapshot_path
        at = "" if "main" in newest.refs else f"@{min(newest.refs, default=newest.commit_hash)}"
        for variant in list_variants(file.file_path.relative_to(root).as_posix() for file in newest.files):
            if variant.complete:
                yield f"{repo.repo_id}{at}:{variant.label}", root / variant.files[0]


def list_variants(names: Iterable[str]) -> list[Variant]:
    """Group the GGUF files among a repository's `names` into models, leaving out what only accompanies one."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        base = PurePosixPath(name).name.lower()
        # X-imatrix.gguf is a calibration matrix, X-imatrix-Q4_K_M.gguf a model made with one.
        is_model = base.endswith(".gguf") and not base.endswith("imatrix.gguf")
        if not is_model or any(companion in base for companion in _COMPANIONS):
            continue
        split = SPLIT_NAME.fullmatch(name)
        groups.setdefault((split["prefix"], int(split["n_parts"])) if split else (name, 1), []).append(name)
    variants = []
    for (prefix, n_parts), files in groups.items():
        labels = _LABEL.findall(prefix)
        label = labels[-1].upper() if labels else PurePosixPath(files[0]).name
        variants.append(Variant(label=label, files=tuple(files), complete=len(files) == n_parts))
    return variants


def matching(variants: Iterable[Variant], quantization: str) -> list[Variant]:
    """The variants that `quantization` names: by file name, else by the label, else as a whole word of the path."""
    wanted = quantization.upper()
    variants = list(variants)
    if wanted.endswith(".GGUF"):
        return [v for v in variants if any(wanted in (f.upper(), PurePosixPath(f).name.upper()) for f in v.files)]
    word = re.compile(rf"(?<![A-Z0-9_]){re.escape(wanted)}(?![A-Z0-9_])", re.IGNORECASE)
    return [v for v in variants if v.label == wanted] or [v for v in variants if word.search(v.files[0])]


def _fetch(request: HubRequest) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        # Asked without the retries of list_repo_files, which keep a user with no network waiting for half a minute.
        info = HfApi().model_info(request.repo, revision=request.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception:  # the Hub cannot be reached
        with suppress(ConfigError, ModelError):
            return _find_cached(request)
        raise
    first, *others = _choose(list_variants(file.rfilename for file in info.siblings or ()), request, offline=False)
    path = Path(hf_hub_download(request.repo, first, revision=request.revision))
    # Later parts come from the commit of the first, however the branch moves in between. In the cache the path is
    # FOLDER/snapshots/COMMIT/FILE.
    commit = path.parts[-1 - len(PurePosixPath(first).parts)]
    for name in others:
        hf_hub_download(request.repo, name, revision=commit)
    return path


def _find_cached(request: HubRequest) -> Path:
    """The first file of the requested model in the Hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    variants: list[Variant] = []
    with suppress(LocalEntryNotFoundError):
        # With no pattern allowed this only looks up the folder, and misses no file in it.
        folder = snapshot_download(request.repo, revision=request.revision, local_files_only=True, allow_patterns=[])
        root = Path(folder)
        # is_file: a link whose target was deleted is no cached file.
        variants = list_variants(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    if not variants:
        raise ModelError(f"{request} is not in the local cache: {_GO_ONLINE} to download it")
    return root / _choose(variants, request, offline=True)[0]


def _choose(variants: Sequence[Variant], request: HubRequest, *, offline: bool) -> tuple[str, ...]:
    """The files of the one variant that is named, or the default; a miss lists what there is instead."""
    if not variants:
        raise ConfigError(f"{request} has no GGUF model: name a repository with .gguf files, often one ending in -GGUF")
    matches = matching(variants, request.quantization or DEFAULT_QUANTIZATION)
    if not matches and request.quantization is None and len(variants) == 1:
        matches = list(variants)
    if len(matches) == 1:
        files = matches[0].files
        if not matches[0].complete:
            remedy = f"{_GO_ONLINE} to complete it" if offline else "choose another file"
            raise ModelError(f"{request} lacks parts of {files[0]}, it has {len(files)}: {remedy}")
        return files
    wanted = request.quantization or f"{DEFAULT_QUANTIZATION}, the default"
    if matches:
        names = ", ".join(variant.files[0] for variant in matches)
        raise ConfigError(f"{request} has several files for {wanted}: name one, as {request}:FILE, of {names}")
    labels = ", ".join(dict.fromkeys(variant.label for variant in variants))
    if offline:
        raise ModelError(f"{request}: {wanted}, is not in the local cache, which has {labels}: {_GO_ONLINE} for others")
    raise ConfigError(f"{request} has no {wanted}: choose one that it has: {labels}")
