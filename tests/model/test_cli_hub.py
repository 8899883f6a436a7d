"""A model of the hub or of Ollama's store, from the command line to a label; the hub is a local server."""

import hashlib
import json
import os
import subprocess
from functools import partial
from pathlib import Path

from commands import ROOT
from commands import run as command
from hub_server import HubRepo, HubServer

MODEL = ROOT / "models" / "fashion-tiny-Q8_0.gguf"


def test_a_model_of_the_hub_is_fetched_once_and_found_offline(tmp_path: Path) -> None:
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}

    def run(repo: str, *arguments: str, endpoint: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
        words = ["-hf", repo, "--query", "blue jeans", "--format", "json", *arguments]
        return command("run", *words, env=environment | {"HF_ENDPOINT": endpoint})

    files = {"Fashion-Q8_0.gguf": MODEL.read_bytes(), "README.md": b"a model"}
    with HubServer(repos={"some/fashion": HubRepo(files=files)}) as hub:
        first = run("some/fashion:Q8_0", endpoint=hub.url)
        assert first.returncode == 0, first.stderr
        assert run("some/fashion:Q8_0", endpoint=hub.url).returncode == 0
        assert len(hub.downloads()) == 1
        missing = run("some/fashion:Q2_K", endpoint=hub.url)
    assert missing.returncode == 2
    assert "Q8_0" in missing.stderr
    answer = json.loads(first.stdout)
    assert answer["model"]["path"].endswith("Fashion-Q8_0.gguf")
    offline = run("some/fashion:Q8_0", "--offline")
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout)["results"] == answer["results"]
    absent = run("some/other:Q8_0", "--offline")
    assert absent.returncode == 3
    assert "some/other" in absent.stderr
    assert "Traceback" not in absent.stderr + missing.stderr


def test_a_model_of_ollamas_store_is_used_where_it_lies(tmp_path: Path) -> None:
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    blob = tmp_path / "blobs" / f"sha256-{digest}"
    manifest = tmp_path / "manifests/registry.ollama.ai/library/fashion/latest"
    for path in (blob, manifest):
        path.parent.mkdir(parents=True)
    blob.hardlink_to(MODEL)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [{**layer, "size": MODEL.stat().st_size}]}))

    run = partial(command, env=os.environ | {"OLLAMA_MODELS": str(tmp_path), "HF_HOME": str(tmp_path / "hub")})
    done = run("run", "--model", "ollama:fashion", "--query", "blue jeans", "--format", "json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["model"]
    assert (model["path"], model["sha256"]) == (str(blob), digest)
    listed = json.loads(run("models", "--format", "json").stdout)
    assert [found["name"] for found in listed["models"]] == ["(embedded)", "ollama:fashion:latest"]
    absent = run("run", "--model", "ollama:nosuch", "--query", "blue jeans")
    assert absent.returncode == 3
    assert "Ollama's store has no nosuch:latest: it has fashion:latest" in absent.stderr
