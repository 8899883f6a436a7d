"""Fetching from the Hub, against a local server that speaks its protocol and with the library's real cache.

huggingface_hub reads its environment when it is imported, so every test has a process of its own to fetch in; which
file of a repository a quantisation means takes names only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cases import cases
from hub_server import HubRepo, HubServer

from qcls_gguf.model.hub import Variant, list_variants, matching

Q4, Q8 = b"four " * 40_000, b"eight " * 40_000
REPO = {
    "README.md": b"# a model",
    "Tiny-Q4_K_M.gguf": Q4,
    "Tiny-Q4_K_S.gguf": b"small",
    "tiny.q8_0.gguf": Q8,
    "BF16/Tiny-BF16-00001-of-00002.gguf": b"first",
    "BF16/Tiny-BF16-00002-of-00002.gguf": b"second",
    "mmproj-F16.gguf": b"eyes",
    "Tiny-imatrix.gguf": b"matrix",
}
WORKER = """
import json, sys
from qcls_gguf.model import hub
assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    try:
        answer = {"path": str(hub.fetch_model(**json.loads(line)))}
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass(kw_only=True)
class Fetcher:
    """A process that has fetch_model, and the environment for the next one."""

    env: dict[str, str]
    process: subprocess.Popen[str] | None = None

    def ask(self, spec: str, **options: object) -> dict[str, str]:
        """Call fetch_model and return its path, or its error and message."""
        if self.process is None:
            command, pipe = [sys.executable, "-W", "error", "-c", WORKER], subprocess.PIPE
            self.process = subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({"spec": spec, **options}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the process ended: {self.close()}")
        answer: dict[str, str] = json.loads(line)
        return answer

    def path(self, spec: str, **options: object) -> Path:
        """Call fetch_model, which has to succeed."""
        answer = self.ask(spec, **options)
        assert "path" in answer, answer
        return Path(answer["path"])

    def refused(self, kind: str, spec: str, *words: str, **options: object) -> None:
        """Call fetch_model, which has to raise `kind` with one line of text that has these words."""
        answer = self.ask(spec, **options)
        assert answer.get("error") == kind, answer
        assert "\n" not in answer["message"]
        assert [word for word in words if word not in answer["message"]] == [], answer

    def close(self, **env: str) -> str:
        """End the process; the next call starts another, with this in its environment. Returns what stderr has."""
        self.env |= env
        process, self.process = self.process, None
        return process.communicate(timeout=30)[1] if process else ""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(repos={"user/Tiny-GGUF": HubRepo(files=dict(REPO))}) as server:
        yield server


@pytest.fixture
def fetcher(hub: HubServer, tmp_path: Path) -> Iterator[Fetcher]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1,localhost", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = Fetcher(env=env | {"HF_HOME": str(tmp_path / "hf")})
    yield worker
    worker.close()


def test_downloads_once_then_answers_from_the_cache(hub: HubServer, fetcher: Fetcher) -> None:
    fetcher.env["TQDM_POSITION"] = "-1"  # shows the library's progress bar although stderr is no terminal
    path = fetcher.path("user/Tiny-GGUF:Q4_K_M")
    assert (path.name, path.read_bytes()) == ("Tiny-Q4_K_M.gguf", Q4)
    assert path.is_relative_to(fetcher.env["HF_HOME"])
    assert hub.downloads() == ["Tiny-Q4_K_M.gguf"]
    assert "Tiny-Q4_K_M.gguf" in fetcher.close(), "no progress was shown"

    hub.requests.clear()
    assert fetcher.path("user/Tiny-GGUF:q4_k_m") == path
    assert fetcher.path("https://huggingface.co/user/Tiny-GGUF") == path
    assert hub.downloads() == []


def test_a_new_version_on_the_hub_is_fetched(hub: HubServer, fetcher: Fetcher) -> None:
    repo = hub.repos["user/Tiny-GGUF"]
    old, old_commit = fetcher.path("user/Tiny-GGUF"), repo.commit
    repo.replace({"Tiny-Q4_K_M.gguf": b"newer"})
    assert fetcher.path("user/Tiny-GGUF").read_bytes() == b"newer"
    repo.replace({"renamed-Q4_K_M.gguf": b"newer"})
    assert fetcher.path("user/Tiny-GGUF").name == "renamed-Q4_K_M.gguf"
    assert fetcher.path(f"user/Tiny-GGUF@{old_commit}") == old
    assert fetcher.path(f"user/Tiny-GGUF@{old_commit}", offline=True).read_bytes() == Q4


def test_a_revision_is_part_of_a_name(hub: HubServer, fetcher: Fetcher) -> None:
    repo = hub.repos["user/Tiny-GGUF"]
    repo.tags = {"v1": repo.commit, "refs/pr/1": repo.commit}
    repo.replace({"Tiny-Q4_K_M.gguf": b"newer", "Tiny-Q8_0.gguf": b"a", "other-Q8_0.gguf": b"b"})
    repo.tags["v2"] = repo.commit
    for name in ("user/Tiny-GGUF@v1", "user/Tiny-GGUF@refs/pr/1:Tiny-Q4_K_M.gguf", "user/Tiny-GGUF@v1:Q4_K_M"):
        assert (fetcher.path(name).read_bytes(), fetcher.path(name, offline=True).read_bytes()) == (Q4, Q4)
    assert fetcher.path("user/Tiny-GGUF@v1").parent.name == repo.tags["v1"]
    missing = "user/Tiny-GGUF@v2 is not in the local cache: run once online"
    fetcher.refused("ModelError", "user/Tiny-GGUF@v2", missing, offline=True)
    several = "user/Tiny-GGUF@v2 has several files for Q8_0: name one, as user/Tiny-GGUF@v2:FILE, of "
    fetcher.refused("ConfigError", "user/Tiny-GGUF@v2:Q8_0", several)
    assert fetcher.path("user/Tiny-GGUF@v2").read_bytes() == b"newer"
    fetcher.refused("ModelError", "user/Tiny-GGUF@v9:Q4_K_M", "v9")


def test_split_model_brings_all_parts(hub: HubServer, fetcher: Fetcher) -> None:
    path = fetcher.path("user/Tiny-GGUF:bf16")
    assert (path.name, path.read_bytes()) == ("Tiny-BF16-00001-of-00002.gguf", b"first")
    assert path.with_name("Tiny-BF16-00002-of-00002.gguf").read_bytes() == b"second"
    assert fetcher.path("user/Tiny-GGUF:BF16", offline=True) == path
    path.with_name("Tiny-BF16-00002-of-00002.gguf").unlink()
    fetcher.refused("ModelError", "user/Tiny-GGUF:BF16", "lacks parts", offline=True)
    assert fetcher.path("user/Tiny-GGUF:BF16") == path
    assert path.with_name("Tiny-BF16-00002-of-00002.gguf").exists()

    hub.repos["user/Tiny-GGUF"].replace({"Tiny-BF16-00001-of-00002.gguf": b"alone"})
    fetcher.refused("ModelError", "user/Tiny-GGUF:Tiny-BF16-00001-of-00002.gguf", "lacks parts")


def test_parts_are_of_one_commit(hub: HubServer, fetcher: Fetcher) -> None:
    repo = hub.repos["user/Tiny-GGUF"]
    hub.after_file = lambda: repo.replace(dict.fromkeys(repo.files, b"newer"))
    path = fetcher.path("user/Tiny-GGUF:BF16")
    assert path.read_bytes() == b"first"
    assert path.with_name("Tiny-BF16-00002-of-00002.gguf").read_bytes() == b"second"


def test_offline_after_a_download(hub: HubServer, fetcher: Fetcher) -> None:
    path = fetcher.path("user/Tiny-GGUF:Q8_0")
    fetcher.close()
    hub.requests.clear()
    assert fetcher.path("user/Tiny-GGUF:Q8_0", offline=True) == path
    assert fetcher.path("user/Tiny-GGUF", offline=True) == path
    fetcher.refused("ModelError", "user/Tiny-GGUF:Q4_K_M", "Q4_K_M", "has Q8_0", offline=True)
    fetcher.close(HF_HUB_OFFLINE="1")
    assert fetcher.path("user/Tiny-GGUF:Q8_0") == path
    fetcher.refused("ModelError", "user/Tiny-GGUF:Q4_K_M", "has Q8_0")
    assert hub.requests == []


def test_hub_down(hub: HubServer, fetcher: Fetcher) -> None:
    cached = fetcher.path("user/Tiny-GGUF")
    hub.status = 503
    assert fetcher.path("user/Tiny-GGUF") == cached
    fetcher.refused("ModelError", "user/Tiny-GGUF:Q8_0", "503")
    fetcher.close(HF_ENDPOINT="http://127.0.0.1:9")  # the discard port: nothing listens there
    assert fetcher.path("user/Tiny-GGUF") == cached
    told = "cannot be fetched from http://127.0.0.1:9", "check its name, the network"
    fetcher.refused("ModelError", "user/Tiny-GGUF:Q8_0", *told)


def test_a_quantisation_that_is_not_there(hub: HubServer, fetcher: Fetcher) -> None:
    fetcher.refused("ConfigError", "user/Tiny-GGUF:Q4_K", "has no Q4_K: ", "BF16, Q4_K_M, Q4_K_S, Q8_0")
    hub.repos["user/Tiny-GGUF"].replace({"Tiny-Q4_0.gguf": b"", "Tiny-Q4_1.gguf": b""})
    fetcher.refused("ConfigError", "user/Tiny-GGUF", "has no Q4_K_M, the default")
    hub.repos["user/one"] = HubRepo(files={"Tiny-Q5_0.gguf": b"one", "mmproj-Q8_0.gguf": b""})
    assert fetcher.path("user/one").name == "Tiny-Q5_0.gguf"
    hub.repos["user/none"] = HubRepo(files={"model.safetensors": b""})
    fetcher.refused("ConfigError", "user/none", "has no GGUF model")
    hub.repos["user/two"] = HubRepo(files={"a-Q4_0.gguf": b"a", "b-Q4_0.gguf": b"b"})
    fetcher.refused("ConfigError", "user/two:Q4_0", "a-Q4_0.gguf, b-Q4_0.gguf")
    assert fetcher.path("user/two:b-Q4_0.gguf").read_bytes() == b"b"


@cases(
    ("Tiny-GGUF", "user/repo[@revision][:quantization]: take these from"),
    ("https://huggingface.co/user/repo/tree/main", "the address of its page"),
    ("user/repo/more", "the address of its page"),
    ("models/tiny.gguf", "given as the model's `path`"),
)
def test_malformed_requests(spec: str, words: str, fetcher: Fetcher, hub: HubServer) -> None:
    fetcher.refused("ConfigError", spec, words)
    assert hub.requests == []


def test_repositories_that_refuse(hub: HubServer, fetcher: Fetcher) -> None:
    hub.repos["user/gated"] = HubRepo(files={"m-Q4_K_M.gguf": b"gated"}, token="hf_right", gated=True)
    hub.repos["user/private"] = HubRepo(files={"m-Q4_K_M.gguf": b"private"}, token="hf_right")
    fetcher.refused("ModelError", "user/gated", "gated", "HF_TOKEN")
    fetcher.refused("ModelError", "user/private", "epository")
    fetcher.refused("ModelError", "user/missing", "HF_TOKEN")
    fetcher.close(HF_TOKEN="hf_right")
    assert fetcher.path("user/gated").read_bytes() == b"gated"
    assert fetcher.path("user/private").read_bytes() == b"private"


def test_parts_are_grouped_and_companions_left_out() -> None:
    names = """
        b/M-Q8_0-00002-of-00002.gguf b/M-Q8_0-00001-of-00002.gguf M-BF16-00002-of-00003.gguf M-imatrix-Q4_0.gguf
        M-imatrix.gguf imatrix.gguf mmproj-M-F16.gguf plain.gguf M-Q4_0.safetensors
    """
    assert list_variants(names.split()) == [
        Variant(label="BF16", files=("M-BF16-00002-of-00003.gguf",), complete=False),
        Variant(label="Q4_0", files=("M-imatrix-Q4_0.gguf",), complete=True),
        Variant(label="Q8_0", files=("b/M-Q8_0-00001-of-00002.gguf", "b/M-Q8_0-00002-of-00002.gguf"), complete=True),
        Variant(label="plain.gguf", files=("plain.gguf",), complete=True),
    ]


@cases(
    ("Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),
    ("Q4_K_XL", "Qwen3-8B-UD-Q4_K_XL.gguf"),
    ("Q8_0", "Q8_0/model-00001-of-00002.gguf"),
    ("IQ4_XS", "model.IQ4_XS.gguf"),
    ("4bit", "odd-4bit.gguf"),
    ("odd-4bit.gguf", "odd-4bit.gguf"),
    ("Q8_0/model-00002-of-00002.gguf", "Q8_0/model-00001-of-00002.gguf"),
    ("Q4_K", None),
)
def test_a_quantisation_is_matched_as_a_whole_word(wanted: str, found: str | None) -> None:
    names = """
        Qwen3-8B-Q4_K_M.gguf Qwen3-8B-UD-Q4_K_M.gguf Qwen3-8B-UD-Q4_K_XL.gguf Q8_0/model-00002-of-00002.gguf
        Q8_0/model-00001-of-00002.gguf qwen3_8b_f16.gguf model.IQ4_XS.gguf odd-4bit.gguf mmproj-BF16.gguf imatrix.gguf
        model-BF16.imatrix.gguf config.json
    """
    variants = matching(list_variants(names.split()), wanted)
    assert [variant.files[0] for variant in variants] == ([found] if found else [])
