"""A local server that speaks as much of the Hub's protocol as a download of model files needs.

Like the Hub it answers a request for a file with a redirect to another host, where the bytes are: `localhost`
stands for that host, 127.0.0.1 for the Hub.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from local_server import LocalServer

_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(kw_only=True)
class HubRepo:
    """A model repository whose one branch, `main`, holds `files`; `token` is what a private or gated one asks for,
    `tags` are names of commits."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    past: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """The id of the branch's last commit."""
        return f"{len(self.past):040x}"

    def replace(self, files: dict[str, bytes]) -> None:
        """Add a commit to the branch, with other files; the earlier commits can still be asked for by id."""
        self.past[self.commit] = self.files
        self.files = files

    def commits(self) -> dict[str, dict[str, bytes]]:
        """The files by commit id."""
        return self.past | {self.commit: self.files}


@dataclass(kw_only=True)
class HubServer(LocalServer):
    """Serves `repos`; `requests` are the lines received, such as `GET /api/...`."""

    repos: dict[str, HubRepo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None
    """Answer every request with this status."""
    after_file: Callable[[], object] = lambda: None
    """Called when the bytes of a file have been sent."""

    def downloads(self) -> list[str]:
        """The names of the files whose bytes were asked for since `requests` was last cleared."""
        return [line.split("/", 5)[-1] for line in self.requests if line.startswith("GET /cdn/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output free of the access log."""

    def do_GET(self) -> None:
        """Answer, with a body where it was not HEAD that asked."""
        hub: HubServer = self.server.owner  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        match [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]:
            case _ if hub.status is not None:
                self._send(hub.status)
            case ["api", "models", user, name]:
                self._info(hub, f"{user}/{name}", "main")
            case ["api", "models", user, name, "revision", revision]:
                self._info(hub, f"{user}/{name}", revision)
            case [user, name, "resolve", revision, *file]:
                self._resolve(hub, f"{user}/{name}", revision, "/".join(file))
            case ["cdn", user, name, commit, *file]:
                self._body(hub, hub.repos[f"{user}/{name}"].commits()[commit]["/".join(file)])
                hub.after_file()
            case _:
                self._send(404)

    do_HEAD = do_GET  # noqa: N815

    def _find(self, hub: HubServer, repo_id: str, revision: str) -> tuple[HubRepo, str] | None:
        """The repository and the commit, unless the answer is that one of them or the right to see it is missing."""
        repo = hub.repos.get(repo_id)
        sent = self.headers.get("Authorization")
        if repo is None or (repo.token and not repo.gated and sent != f"Bearer {repo.token}"):
            # The Hub does not tell a private repository from a missing one.
            self._send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        commit = repo.commit if revision == "main" else repo.tags.get(revision, revision)
        if commit not in repo.commits():
            self._send(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
            return None
        return repo, commit

    def _info(self, hub: HubServer, repo_id: str, revision: str) -> None:
        found = self._find(hub, repo_id, revision)
        if found is not None:
            repo, commit = found
            siblings = [{"rfilename": name} for name in repo.commits()[commit]]
            info = {"id": repo_id, "modelId": repo_id, "sha": commit, "siblings": siblings, "gated": repo.gated}
            self._send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _resolve(self, hub: HubServer, repo_id: str, revision: str, file: str) -> None:
        found = self._find(hub, repo_id, revision)
        if found is None:
            return
        repo, commit = found
        files = repo.commits()[commit]
        headers = {"X-Repo-Commit": commit}
        if repo.gated and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self._send(403, headers | {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif file not in files:
            self._send(404, headers | {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        else:
            content = files[file]
            linked = {
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "Location": f"http://localhost:{hub.port}/cdn/{repo_id}/{commit}/{file}",
            }
            self._send(302, headers | linked)

    def _body(self, hub: HubServer, content: bytes) -> None:
        assert self.headers.get("Authorization") is None, "the Hub's token went to another host"
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if found:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if found else 200, headers, content[start:])

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        self.close_connection = True


HubServer.handler = _Handler
