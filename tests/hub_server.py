"""A local server that speaks as much of the Hub's protocol as a download of model files needs.

Like the Hub it answers a request for a file with a redirect to another host, where the bytes are: `localhost`
stands for that host, 127.0.0.1 for the Hub.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from local_server import Handler, LocalServer


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


class _Handler(Handler):
    def do_GET(self) -> None:  # noqa: N802
        hub: HubServer = self.server.owner  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        match [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]:
            case _ if hub.status is not None:
                self.send(hub.status, {})
            case ["api", "models", user, name, *asked]:  # nothing, or "revision" and which
                self._info(hub, f"{user}/{name}", asked[-1] if asked else "main")
            case [user, name, "resolve", revision, *file]:
                self._resolve(hub, f"{user}/{name}", revision, "/".join(file))
            case ["cdn", user, name, commit, *file]:
                assert self.headers.get("Authorization") is None, "the Hub's token went to another host"
                self.send(200, {}, hub.repos[f"{user}/{name}"].commits()[commit]["/".join(file)])
                hub.after_file()
            case _:
                self.send(404, {})

    do_HEAD = do_GET  # noqa: N815

    def _find(self, hub: HubServer, repo_id: str, revision: str) -> tuple[HubRepo, str] | None:
        """The repository and the commit, unless the answer is that one of them or the right to see it is missing."""
        repo = hub.repos.get(repo_id)
        sent = self.headers.get("Authorization")
        if repo is None or (repo.token and not repo.gated and sent != f"Bearer {repo.token}"):
            # The Hub does not tell a private repository from a missing one.
            self.send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        commit = repo.commit if revision == "main" else repo.tags.get(revision, revision)
        if commit not in repo.commits():
            self.send(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
            return None
        return repo, commit

    def _info(self, hub: HubServer, repo_id: str, revision: str) -> None:
        if found := self._find(hub, repo_id, revision):
            repo, commit = found
            siblings = [{"rfilename": name} for name in repo.commits()[commit]]
            info = {"id": repo_id, "modelId": repo_id, "sha": commit, "siblings": siblings, "gated": repo.gated}
            self.send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _resolve(self, hub: HubServer, repo_id: str, revision: str, file: str) -> None:
        if not (found := self._find(hub, repo_id, revision)):
            return
        repo, commit = found
        headers = {"X-Repo-Commit": commit}
        if repo.gated and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self.send(403, headers | {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        else:
            content = repo.commits()[commit][file]
            linked = {
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "Location": f"http://localhost:{hub.port}/cdn/{repo_id}/{commit}/{file}",
            }
            self.send(302, headers | linked)


HubServer.handler = _Handler
