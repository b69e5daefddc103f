"""A Hub on loopback for the real client: accounts, repositories, branches, tags, and faults on demand.

    with Hub({"hf_alice": "alice"}) as hub, alice(hub, folder) as run:  # hub_user.py
        run("push", "runs/mine", "alice/mine")

A commit is visible once it is complete, and not before. All files are uploaded with their commit, none by LFS.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

MODEL, REVISION = r"(?P<repo>[\w.-]+/[\w.-]+)", r"(?P<revision>[^/]+)"
API = rf"/api/models/{MODEL}"


class Refusal(Exception):
    """An error response; the client reads the code from a header."""

    def __init__(self, status: int, code: str, message: str = "refused"):
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Repository:
    """A model repository: the files of its commits by path, and the commits of its branches and tags."""

    name: str
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def add(self, files: dict[str, bytes], branch: str = "main") -> str:
        sha = hashlib.sha1(f"{self.name} {len(self.commits)}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def commit_of(self, revision: str) -> str:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def at(self, revision: str) -> dict[str, bytes]:
        return self.commits[self.commit_of(revision)]


class Hub:
    """The server and its content, for the duration of a `with`."""

    def __init__(self, accounts: dict[str, str]):
        self.accounts = accounts  # names by token; a name ending in " (read)" may not write
        self.repositories: dict[str, Repository] = {}
        self.fault: tuple[str, int] | None = None  # part of the path, status
        self.requests: list[tuple[str, str]] = []  # method and path of every request
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def create(self, name: str, files: dict[str, bytes] | None = None, private: bool = False) -> None:
        self.repositories[name] = Repository(name, private)
        self.repositories[name].add(files or {".gitattributes": b""})

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request and its response."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        """Log nothing."""

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if self.hub.fault and self.hub.fault[0] in path:
                raise Refusal(self.hub.fault[1], "injected fault")
            self._dispatch(path)
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)}
            self.reply({"error": str(refusal)}, refusal.status, headers)

    do_GET = do_HEAD = do_POST = handle_any

    def _dispatch(self, path: str) -> None:
        for (methods, pattern), function in ROUTES.items():
            match = re.fullmatch(pattern, path)
            if match and self.command in methods.split():
                function(self, **match.groupdict())
                return
        raise Refusal(404, "NoRoute", f"nothing at {self.command} {path}")

    def reply(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def account(self) -> str:
        """The account of the token."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.hub.accounts:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        return self.hub.accounts[token]

    def repository(self, name: str, writing: bool = False) -> Repository:
        """The repository; where `writing` is set, only for its owner."""
        if name not in self.hub.repositories:
            raise Refusal(404, "RepoNotFound", "Repository not found")
        if writing and self.account() != name.partition("/")[0]:
            raise Refusal(403, "Forbidden", f"you don't have the rights to write to {name}")
        return self.hub.repositories[name]


ROUTES: dict[tuple[str, str], Callable[..., None]] = {}


def route(methods: str, pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have the function answer requests; it gets the named groups of the pattern."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        ROUTES[methods, pattern] = function
        return function

    return register


@route("GET", r"/api/whoami-v2")
def whoami(request: Handler) -> None:
    request.reply({"type": "user", "name": request.account(), "orgs": []})


@route("POST", r"/api/repos/create")
def create(request: Handler) -> None:
    asked = json.loads(request.body)
    owner = asked.get("organization") or request.account()
    name = f"{owner}/{asked['name']}"
    if owner != request.account():
        raise Refusal(403, "Forbidden", f"you don't have the rights to create a model under {owner}")
    exists = name in request.hub.repositories
    if not exists:
        request.hub.create(name, private=asked.get("private") or asked.get("visibility") == "private")
    request.reply({"url": f"{request.hub.endpoint}/{name}", "id": name}, 409 if exists else 200)


@route("POST", r"/api/validate-yaml")
def validate(request: Handler) -> None:
    request.reply({"errors": [], "warnings": []})


@route("POST", rf"{API}/preupload/{REVISION}")
def preupload(request: Handler, repo: str, revision: str) -> None:
    files, modes = request.repository(repo, writing=True).at(revision), []
    for path in (file["path"] for file in json.loads(request.body)["files"]):
        oid = object_id(files[path]) if path in files else None
        modes.append({"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": oid})
    request.reply({"files": modes})


def object_id(content: bytes) -> str:
    """The git object of the content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@route("POST", rf"{API}/commit/{REVISION}")
def commit(request: Handler, repo: str, revision: str) -> None:
    """All operations, or none."""
    repository = request.repository(repo, writing=True)
    files = dict(repository.at(revision))
    for line in request.body.splitlines()[1:]:
        file = json.loads(line)["value"]
        files[file["path"]] = base64.b64decode(file["content"])
    sha = repository.add(files, revision)
    url = f"{request.hub.endpoint}/{repo}/commit/{sha}"
    request.reply({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


@route("GET", rf"{API}(/revision/{REVISION})?")
def info(request: Handler, repo: str, revision: str | None) -> None:
    repository = request.repository(repo)
    sha = repository.commit_of(revision or "main")
    request.reply({"id": repo, "sha": sha, "private": repository.private})


@route("GET", rf"{API}/tree/{REVISION}")
def tree(request: Handler, repo: str, revision: str) -> None:
    entries = []
    for path, content in request.repository(repo).at(revision).items():
        entries.append({"type": "file", "path": path, "size": len(content), "oid": object_id(content)})
    request.reply(entries)


@route("POST", rf"{API}/tag/{REVISION}")
def tag(request: Handler, repo: str, revision: str) -> None:
    repository, name = request.repository(repo, writing=True), json.loads(request.body)["tag"]
    if name in repository.tags:
        raise Refusal(409, "Conflict", f"Tag {name} exists already")
    repository.tags[name] = repository.commit_of(revision)
    request.reply({})


@route("POST", rf"{API}/branch/{REVISION}")
def branch(request: Handler, repo: str, revision: str) -> None:
    repository = request.repository(repo, writing=True)
    repository.branches[revision] = repository.commit_of("main")
    request.reply({})


@route("GET HEAD", rf"/{MODEL}/resolve/{REVISION}/(?P<path>.+)")
def resolve(request: Handler, repo: str, revision: str, path: str) -> None:
    repository = request.repository(repo)
    files = repository.at(revision)
    if path not in files:
        raise Refusal(404, "EntryNotFound", "Entry not found")
    headers = {"X-Repo-Commit": repository.commit_of(revision), "ETag": f'"{object_id(files[path])}"'}
    request.reply(files[path], headers=headers)
