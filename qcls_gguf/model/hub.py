"""Models of the Hugging Face Hub: choose a file by its quantisation, download it once, find it again offline."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from ..errors import ConfigError, ModelError

DEFAULT_QUANTIZATION = "Q4_K_M"

# llama.cpp's names, with the prefix that unsloth gives to its own mixes: UD-Q4_K_XL.
_LABEL = re.compile(
    r"(?<![A-Z0-9])(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32)(?![A-Z0-9_])", re.IGNORECASE
)
_SPLIT = re.compile(r"(?P<prefix>.+)-(?P<part>\d{5})-of-(?P<n_parts>\d{5})\.gguf", re.IGNORECASE)
_GO_ONLINE = "run once online, without `offline` and HF_HUB_OFFLINE,"
# Companions of a model that are no model by themselves; llama.cpp (common/download.cpp) skips the same names.
_COMPANIONS = ("mmproj", "mtp-", "eagle3-", "dflash-", "dspark-")


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


def fetch_model(
    spec: str, quantization: str | None = None, revision: str | None = None, *, offline: bool = False
) -> Path:
    """Return the local path of a GGUF model on the Hub, downloading what the Hub's cache does not hold.

    `spec` is `user/repo` or `user/repo:quantization`, as for llama.cpp's `-hf`, and `@revision` may follow the
    repository; a GGUF file's name in the repository may stand for the quantisation. For a split model all parts are
    fetched and the path is that of the first. With no quantisation Q4_K_M is chosen, or else the repository's only
    model. HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE are obeyed. A model in the cache is used, too, if the Hub
    cannot be reached.

    Raises ConfigError for an unusable `spec` or a quantisation that is not there, ModelError if fetching fails.
    """
    request = parse_name(spec, quantization, revision)
    try:
        # Imported late: a run with a local file must not wait for it.
        from huggingface_hub import constants

        return _find_cached(request) if offline or constants.HF_HUB_OFFLINE else _fetch(request)
    except (ConfigError, ModelError):
        raise
    except Exception as error:  # the library's own, its HTTP client's or the system's: they differ between versions
        raise _explain(error, request) from None


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
    return HubRequest(found["repo"], quantization or found["quantization"], revision or found["revision"])


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


def cached_models() -> Iterator[tuple[str, Path]]:
    """(`user/repo[@REVISION]:QUANT`, first file) of every whole GGUF model in the Hub's cache; none without a cache.

    A repository's newest revision counts; it is named unless it is `main`.
    """
    try:
        from huggingface_hub import scan_cache_dir

        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except Exception:  # no cache, one that cannot be read, or a library that does not load: each lists nothing
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
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        base = PurePosixPath(name).name.lower()
        if not base.endswith(".gguf") or any(companion in base for companion in _COMPANIONS):
            continue
        # X-imatrix.gguf is a calibration matrix, X-imatrix-Q4_K_M.gguf a model made with one.
        if "imatrix" in base and (base.endswith("imatrix.gguf") or not _LABEL.search(base)):
            continue
        split = _SPLIT.fullmatch(name)
        key = (split["prefix"], int(split["n_parts"])) if split else (name, 1)
        parts.setdefault(key, {})[int(split["part"]) if split else 1] = name
    variants = []
    for (prefix, n_parts), found in parts.items():
        labels = _LABEL.findall(prefix)
        label = labels[-1].upper() if labels else PurePosixPath(found[min(found)]).name
        complete = sorted(found) == list(range(1, n_parts + 1))
        files = tuple(found[part] for part in sorted(found))
        variants.append(Variant(label=label, files=files, complete=complete))
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
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import EntryNotFoundError

    # What is asked for by name and cached needs no list of the repository; one request then looks for a newer
    # version of it, and hf_hub_download keeps to the cache at once if that fails.
    wanted = request.quantization or DEFAULT_QUANTIZATION
    cached = [v for v in _cached_variants(request)[1] if v.label == wanted.upper() and v.complete]
    if len(cached) == 1:
        try:
            return _download(request, cached[0])
        except EntryNotFoundError:
            pass  # renamed or removed since
    # Asked without the retries of list_repo_files, which keep a user with no network waiting for half a minute.
    info = HfApi().model_info(request.repo, revision=request.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    variants = list_variants(file.rfilename for file in info.siblings or ())
    chosen = _choose(variants, request, offline=False)
    if not chosen.complete:
        raise ModelError(f"{request} lacks parts of {chosen.files[0]}, it has {len(chosen.files)}: choose another file")
    return _download(request, chosen)


def _download(request: HubRequest, variant: Variant) -> Path:
    from huggingface_hub import hf_hub_download

    first = Path(hf_hub_download(request.repo, variant.files[0], revision=request.revision))
    # Later parts come from the commit of the first, however the branch moves in between. In the cache the path is
    # FOLDER/snapshots/COMMIT/FILE.
    commit = first.parts[-1 - len(PurePosixPath(variant.files[0]).parts)]
    for file in variant.files[1:]:
        hf_hub_download(request.repo, file, revision=commit)
    return first


def _find_cached(request: HubRequest) -> Path:
    folder, variants = _cached_variants(request)
    if folder is None or not variants:
        raise ModelError(f"{request} is not in the local cache: {_GO_ONLINE} to download it")
    chosen = _choose(variants, request, offline=True)
    if not chosen.complete:
        raise ModelError(f"{request}: the local cache lacks parts of {chosen.files[0]}: {_GO_ONLINE} to complete it")
    return folder / chosen.files[0]


def _cached_variants(request: HubRequest) -> tuple[Path | None, list[Variant]]:
    """The folder of the requested revision in the Hub's cache, if there is one, and the models in it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # With no pattern allowed this only looks up the folder, and misses no file in it.
        folder = snapshot_download(request.repo, revision=request.revision, local_files_only=True, allow_patterns=[])
    except LocalEntryNotFoundError:
        return None, []
    root = Path(folder)
    # is_file: a link whose target was deleted is no cached file.
    return root, list_variants(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def _choose(variants: Sequence[Variant], request: HubRequest, *, offline: bool) -> Variant:
    """The one variant that the request names or that the default picks; a miss lists what there is instead."""
    if not variants:
        raise ConfigError(f"{request} has no GGUF model: name a repository with .gguf files, often one ending in -GGUF")
    found = matching(variants, request.quantization or DEFAULT_QUANTIZATION)
    if not found and request.quantization is None and len(variants) == 1:
        found = list(variants)
    if len(found) == 1:
        return found[0]
    if found:
        files = ", ".join(variant.files[0] for variant in found)
        raise ConfigError(
            f"{request} has several files for {request.quantization or DEFAULT_QUANTIZATION}: name one, as "
            f"{request}:FILE, of {files}"
        )
    labels = ", ".join(dict.fromkeys(variant.label for variant in variants))
    where = "the local cache" if offline else "the repository"
    if offline and request.quantization:
        raise ModelError(
            f"{request}: {request.quantization} is not in the local cache, which has {labels}: "
            f"choose one of these, or {_GO_ONLINE} to download it"
        )
    if request.quantization:
        wanted = f"quantization {request.quantization!r}"
    else:
        wanted = f"{DEFAULT_QUANTIZATION}, the default"
    raise ConfigError(f"{request} has no {wanted}: choose one that {where} has: {labels}")


def _explain(error: Exception, request: HubRequest) -> ConfigError | ModelError:
    """Say in one sentence what failed and what to do, whichever library it came from."""
    if isinstance(error, ImportError):
        return ModelError(f"{request} cannot be downloaded, huggingface_hub does not load ({error}): install it again")
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"model {request} is not a valid name of a repository ({reason}): correct it")
    token = "set HF_TOKEN, or log in with `hf auth login`"
    if isinstance(error, errors.GatedRepoError):
        return ModelError(
            f"{request} is gated and this account has no access: accept its terms on its page, then {token}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"{request.repo} has no revision {request.revision!r}: name a branch, tag or commit of it")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"{request} does not exist, or is private: check its name; for a private one {token}")
    if status in (401, 403):
        return ModelError(
            f"{request}: {constants.ENDPOINT} refuses access (HTTP {status}): check the token, or {token}"
        )
    if status is not None and (status == 429 or status >= 500):
        return ModelError(f"{request}: {constants.ENDPOINT} is overloaded or down (HTTP {status}): try again later")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(f"{request} does not fit in {constants.HF_HUB_CACHE}: free space, or set HF_HOME elsewhere")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
        return ModelError(
            f"{constants.HF_HUB_CACHE} cannot be written ({reason}): correct it, or set HF_HOME elsewhere"
        )
    return ModelError(
        f"{request} cannot be fetched from {constants.ENDPOINT} ({reason}): "
        "check the network and HF_ENDPOINT, then run again, which begins a file anew that was not whole"
    )
