"""A Hub on loopback for the real client: accounts, private repositories, LFS uploads, tags, and faults on demand.

    with Hub({"hf_alice": "alice"}) as hub, User(hub, folder / "home") as alice:  # hub_user.py
        alice.run("push", "runs/mine", "alice/mine")

A commit is visible once it is complete, and not before. What is uploaded without being committed is in no repository.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LARGE = (".safetensors", ".png")  # uploaded by LFS
MODEL, REVISION = r"(?P<repo>[\w.-]+/[\w.-]+)", r"(?P<revision>[^/]+|refs/pr/\d+)"


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
        self.uploads: dict[str, bytes] = {}  # LFS contents by SHA-256
        self.fault: tuple[str, str, int | None] | None = None  # method, part of the path, status; None: cut the body
        self.requests: list[tuple[str, str]] = []  # method and path of every request
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def create(self, name: str, files: dict[str, bytes] | None = None, private: bool = False) -> Repository:
        self.repositories[name] = Repository(name, private)
        self.repositories[name].add(files or {".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.repositories[name]

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
        url = urlsplit(self.path)
        route, self.query = unquote(url.path), parse_qs(url.query)
        self.hub.requests.append((self.command, route))
        method, part, status = self.hub.fault or ("", "", None)
        faulty = method == self.command and part in route
        if faulty and status is None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            self.close_connection = True
            self.connection.close()
            return None
        self.body = self._read_body()
        try:
            if faulty:
                raise Refusal(status, "injected fault")
            for methods, pattern, function in ROUTES:
                if self.command in methods and (match := re.fullmatch(pattern, route)):
                    return function(self, **match.groupdict())
            raise Refusal(404, "NoRoute", f"nothing at {self.command} {route}")
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)}
            self.reply({"error": str(refusal)}, refusal.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def account(self, needed: bool = True) -> str:
        """The account of the token; empty without a token."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if (token or needed) and token not in self.hub.accounts:
            raise Refusal(401, "Unauthorized", "Invalid credentials in Authorization header")
        return self.hub.accounts.get(token, "")

    def repository(self, name: str, writing: bool = False) -> Repository:
        """The repository, if the account may see it, and may write to it where `writing` is set."""
        account, repository = self.account(writing), self.hub.repositories.get(name)
        mine = account == name.partition("/")[0]
        if repository is None or (repository.private and not mine):
            raise Refusal(404 if account else 401, "RepoNotFound", "Repository not found")
        if writing and not mine:
            raise Refusal(403, "Forbidden", f"you don't have the rights to write to {name}")
        return repository


def whoami(request: Handler) -> None:
    request.reply({"type": "user", "name": request.account(), "orgs": []})


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


def preupload(request: Handler, repo: str, revision: str) -> None:
    files, modes = request.repository(repo, writing=True).at(revision), []
    for path in (file["path"] for file in json.loads(request.body)["files"]):
        mode = "lfs" if path.endswith(LARGE) else "regular"
        oid = object_id(path, files[path]) if path in files else None
        modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    request.reply({"files": modes})


def object_id(path: str, content: bytes) -> str:
    """The git object of the content; for an LFS file its SHA-256."""
    return hashlib.sha256(content).hexdigest() if path.endswith(LARGE) else git_object(content)


def git_object(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_batch(request: Handler, repo: str) -> None:
    request.repository(repo, writing=True)
    objects = json.loads(request.body)["objects"]
    for wanted in objects:
        if wanted["oid"] not in request.hub.uploads:
            wanted["actions"] = {"upload": {"href": f"{request.hub.endpoint}/lfs/{wanted['oid']}"}}
    request.reply({"transfer": "basic", "objects": objects})


def lfs_put(request: Handler, oid: str) -> None:
    assert hashlib.sha256(request.body).hexdigest() == oid
    request.hub.uploads[oid] = request.body
    request.reply({})


def commit(request: Handler, repo: str, revision: str) -> None:
    """All operations, or none."""
    repository = request.repository(repo, writing=True)
    lines, files = [json.loads(line) for line in request.body.splitlines()], dict(repository.at(revision))
    for line in lines[1:]:
        value = line["value"]
        if line["key"] == "deletedFile":
            del files[value["path"]]
            continue
        large = line["key"] == "lfsFile"
        files[value["path"]] = request.hub.uploads[value["oid"]] if large else base64.b64decode(value["content"])
    proposed = "create_pr" in request.query
    branch = f"refs/pr/{len(repository.commits)}" if proposed else revision
    sha, url = repository.add(files, branch), f"{request.hub.endpoint}/{repo}"
    discussion = {"pullRequestUrl": f"{url}/discussions/{branch.rpartition('/')[2]}"} if proposed else {}
    request.reply(
        {"success": True, "commitOid": sha, "commitUrl": f"{url}/commit/{sha}", "hookOutput": ""} | discussion
    )


def info(request: Handler, repo: str, revision: str = "main") -> None:
    repository = request.repository(repo)
    siblings = [{"rfilename": path, "size": len(content)} for path, content in repository.at(revision).items()]
    facts = {"id": repo, "sha": repository.commit_of(revision), "private": repository.private, "siblings": siblings}
    card = repository.at(revision).get("README.md", b"").decode().partition("---\n")[2].partition("---\n")[0]
    request.reply(facts | ({"cardData": yaml.safe_load(card)} if card else {}))


def list_models(request: Handler) -> None:
    (author,) = request.query["author"]
    repositories = request.hub.repositories.values()
    request.reply([{"id": one.name} for one in repositories if one.name.startswith(f"{author}/") and not one.private])


def entries(request: Handler, repo: str, revision: str) -> None:
    files = request.repository(repo).at(revision)
    asked = parse_qs(request.body.decode()).get("paths", files) if request.command == "POST" else files
    found = {path: files[path] for path in asked if path in files}
    request.reply(
        [{"type": "file", "path": path, "size": len(one), "oid": git_object(one)} for path, one in found.items()]
    )


def refs(request: Handler, repo: str) -> None:
    repository = request.repository(repo)
    tags = [{"name": name, "ref": f"refs/tags/{name}", "targetCommit": sha} for name, sha in repository.tags.items()]
    request.reply({"branches": [], "tags": tags, "converts": []})


def tag(request: Handler, repo: str, revision: str) -> None:
    repository, name = request.repository(repo, writing=True), json.loads(request.body)["tag"]
    if name in repository.tags:
        raise Refusal(409, "Conflict", f"Tag {name} exists already")
    repository.tags[name] = repository.commit_of(revision)
    request.reply({})


def branch(request: Handler, repo: str, name: str) -> None:
    repository = request.repository(repo, writing=True)
    repository.branches[name] = repository.commit_of("main")
    request.reply({})


def resolve(request: Handler, repo: str, revision: str, path: str) -> None:
    repository = request.repository(repo)
    if path not in repository.at(revision):
        raise Refusal(404, "EntryNotFound", "Entry not found")
    content = repository.at(revision)[path]
    headers = {"X-Repo-Commit": repository.commit_of(revision), "ETag": f'"{object_id(path, content)}"'}
    request.reply(content, headers=headers)


API = rf"/api/models/{MODEL}"
ROUTES = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create),
    ("POST", r"/api/validate-yaml", lambda request: request.reply({"errors": [], "warnings": []})),
    ("POST", rf"{API}/preupload/{REVISION}", preupload),
    ("POST", rf"/{MODEL}\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", lfs_put),
    ("POST", rf"{API}/commit/{REVISION}", commit),
    ("GET", r"/api/models", list_models),
    ("GET", rf"{API}(/revision/{REVISION})?", lambda request, repo, revision: info(request, repo, revision or "main")),
    ("GET", rf"{API}/tree/{REVISION}", entries),
    ("POST", rf"{API}/paths-info/{REVISION}", entries),
    ("GET", rf"{API}/refs", refs),
    ("POST", rf"{API}/tag/{REVISION}", tag),
    ("POST", rf"{API}/branch/(?P<name>.+)", branch),
    ("GET HEAD", rf"/{MODEL}/resolve/{REVISION}/(?P<path>.+)", resolve),
]
