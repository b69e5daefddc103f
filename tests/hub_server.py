"""A Hub on loopback for the real client: accounts, private repositories, LFS uploads, tags, and faults on demand.

    with Hub({"hf_alice": Account("alice")}) as hub:
        # HF_ENDPOINT=hub.endpoint HF_TOKEN=hf_alice in a fresh process, with HF_HUB_DISABLE_XET=1

A commit is visible once it is complete, and not before. What is uploaded without being committed is in no repository.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_store import Account, Fault, File, Refusal, Repository

LFS_ENDINGS = (".safetensors", ".bin", ".png", ".pt")
MODEL = r"(?P<repo>[\w.-]+/[\w.-]+)"


class Hub:
    """The server and its content, for the duration of a `with`."""

    def __init__(self, accounts: dict[str, Account]):
        self.accounts = accounts
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytes] = {}  # LFS contents by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []  # method and path of every request
        self.lock, self.ended = threading.Lock(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    """One request and its response."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        """Log nothing."""

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        self.route, self.query = unquote(url.path), parse_qs(url.query)
        self.hub.requests.append((self.command, self.route))
        fault = self.hub.fault_for(self.command, self.route)
        if fault and fault.hang:
            self.hub.ended.wait()
        if fault and (fault.hang or fault.share is not None):
            self.rfile.read(int((fault.share or 0) * int(self.headers.get("Content-Length", 0))))
            self.close_connection = True
            self.connection.close()
            return
        self.body = self._read_body()
        try:
            if fault:
                raise Refusal(fault.status or 500, None, "injected fault")
            self._dispatch()
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code} if refusal.code else {}
            self.reply(refusal.status, {"error": str(refusal)}, headers | {"X-Error-Message": str(refusal)})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _dispatch(self) -> None:
        for methods, pattern, function in ROUTES:
            match = re.fullmatch(pattern, self.route)
            if match and self.command in methods.split():
                function(self, **match.groupdict())
                return
        raise Refusal(404, None, f"nothing at {self.command} {self.route}")

    def reply(self, status: int, content: object = None, headers: dict[str, str] | None = None) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def account(self) -> Account | None:
        """The account of the token; None without a token."""
        word = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if word and word not in self.hub.accounts:
            raise Refusal(401, None, "Invalid credentials in Authorization header")
        return self.hub.accounts.get(word)

    def repository(self, name: str, writing: bool = False) -> Repository:
        """The repository, if the account may see it, and may write to it where `writing` is set."""
        account, repository = self.account(), self.hub.repositories.get(name)
        mine = repository is not None and account is not None and account.name == repository.owner
        if repository is None or (repository.private and not mine):
            raise Refusal(401 if account is None else 404, "RepoNotFound", "Repository not found")
        if writing and account is None:
            raise Refusal(401, None, "Invalid username or password.")
        if writing and not (mine and account.role == "write"):
            raise Refusal(403, None, f"Forbidden: you don't have the rights to write to {name}")
        return repository


def whoami(request: Handler) -> None:
    account = request.account()
    if account is None:
        raise Refusal(401, None, "Invalid username or password.")
    access = {"accessToken": {"role": account.role, "displayName": "test"}}
    request.reply(200, {"type": "user", "name": account.name, "orgs": [], "auth": access})


def create(request: Handler) -> None:
    account, asked = request.account(), request.json()
    if account is None:
        raise Refusal(401, None, "Invalid username or password.")
    owner = asked.get("organization") or account.name
    name = f"{owner}/{asked['name']}"
    if account.role != "write" or owner != account.name:
        raise Refusal(403, None, f"Forbidden: you don't have the rights to create a model under {owner}")
    url = {"url": f"{request.hub.endpoint}/{name}", "id": name}
    if name in request.hub.repositories:
        request.reply(409, url | {"error": "You already created this model repo"})
        return
    private = asked.get("private") or asked.get("visibility") == "private"
    repository = request.hub.repositories[name] = Repository(name, bool(private))
    repository.add("initial commit", {".gitattributes": File(b"*.safetensors filter=lfs\n", False)}, "main", None)
    request.reply(200, url)


def validate_yaml(request: Handler) -> None:
    block = re.match(r"\s*---\n(.*?)\n---", request.json()["content"], re.DOTALL)
    warnings = [] if block else [{"message": "empty or missing yaml metadata in repo card"}]
    request.reply(200, {"errors": [], "warnings": warnings})


def preupload(request: Handler, repo: str, revision: str) -> None:
    files = request.repository(repo, writing=True).at(revision).files
    modes = [
        {
            "path": file["path"],
            "uploadMode": "lfs" if file["path"].endswith(LFS_ENDINGS) else "regular",
            "shouldIgnore": False,
            "oid": files[file["path"]].oid if file["path"] in files else None,
        }
        for file in request.json()["files"]
    ]
    request.reply(200, {"files": modes})


def lfs_batch(request: Handler, repo: str) -> None:
    request.repository(repo, writing=True)
    objects = []
    for wanted in request.json()["objects"]:
        actions = {
            "upload": {"href": f"{request.hub.endpoint}/lfs/{wanted['oid']}"},
            "verify": {"href": f"{request.hub.endpoint}/{repo}.git/info/lfs/objects/verify"},
        }
        present = wanted["oid"] in request.hub.uploads
        objects.append({**wanted, **({} if present else {"actions": actions})})
    request.reply(200, {"transfer": "basic", "objects": objects})


def lfs_put(request: Handler, oid: str) -> None:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise Refusal(400, None, "the content has another sha256")
    request.hub.uploads[oid] = request.body
    request.reply(200, {})


def lfs_verify(request: Handler, repo: str) -> None:
    request.repository(repo, writing=True)
    asked = request.json()
    if len(request.hub.uploads.get(asked["oid"], b"")) != asked["size"]:
        raise Refusal(422, None, "the uploaded object has another size")
    request.reply(200, {})


def commit(request: Handler, repo: str, revision: str) -> None:
    """All operations, or none."""
    with request.hub.lock:
        repository = request.repository(repo, writing=True)
        before = repository.at(revision)
        lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
        header, files = lines[0]["value"], dict(before.files)
        if header.get("parentCommit", before.sha) != before.sha:
            raise Refusal(412, None, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            _apply(request.hub, files, line["key"], line["value"])
        pull_request = "create_pr" in request.query
        branch = f"refs/pr/{len(repository.commits)}" if pull_request else revision
        made = repository.add(header["summary"], files, branch, before.sha)
    url = f"{request.hub.endpoint}/{repo}"
    content = {"success": True, "commitOid": made.sha, "commitUrl": f"{url}/commit/{made.sha}", "hookOutput": ""}
    if pull_request:
        content["pullRequestUrl"] = f"{url}/discussions/{branch.rpartition('/')[2]}"
    request.reply(200, content)


def _apply(hub: Hub, files: dict[str, File], key: str, value: dict) -> None:
    path = value["path"]
    if key == "file":
        files[path] = File(base64.b64decode(value["content"]), lfs=False)
    elif key == "lfsFile":
        if value["oid"] not in hub.uploads:
            raise Refusal(400, None, f"{path} was never uploaded")
        files[path] = File(hub.uploads[value["oid"]], lfs=True)
    else:
        for name in [name for name in files if name == path or name.startswith(path.rstrip("/") + "/")]:
            del files[name]


def info(request: Handler, repo: str, revision: str = "main") -> None:
    repository = request.repository(repo)
    at = repository.at(revision)
    siblings = [{"rfilename": path} for path in sorted(at.files)]
    facts = {"id": repo, "modelId": repo, "author": repository.owner, "sha": at.sha, "private": repository.private}
    request.reply(200, {**facts, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})


def list_models(request: Handler) -> None:
    (author,) = request.query["author"]
    visible = [one for one in request.hub.repositories.values() if one.owner == author and not one.private]
    request.reply(200, [{"id": one.name, "modelId": one.name, "private": False, "tags": []} for one in visible])


def tree(request: Handler, repo: str, revision: str, folder: str = "") -> None:
    files = request.repository(repo).at(revision).files
    request.reply(200, [_entry(path, file) for path, file in sorted(files.items()) if path.startswith(folder)])


def paths_info(request: Handler, repo: str, revision: str) -> None:
    files = request.repository(repo).at(revision).files
    asked = parse_qs(request.body.decode()).get("paths", [])
    request.reply(200, [_entry(path, files[path]) for path in asked if path in files])


def _entry(path: str, file: File) -> dict:
    entry = {"type": "file", "path": path, "size": len(file.content), "oid": File(file.content, lfs=False).oid}
    return entry | ({"lfs": {"oid": file.oid, "size": len(file.content), "pointerSize": 134}} if file.lfs else {})


def refs(request: Handler, repo: str) -> None:
    repository = request.repository(repo)

    def listed(names: dict[str, str], kind: str) -> list[dict]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha} for name, sha in names.items()]

    request.reply(
        200, {"branches": listed(repository.branches, "heads"), "tags": listed(repository.tags, "tags"), "converts": []}
    )


def tag(request: Handler, repo: str, revision: str) -> None:
    repository, name = request.repository(repo, writing=True), request.json()["tag"]
    if name in repository.tags:
        raise Refusal(409, None, f"Tag {name} exists already")
    repository.tags[name] = repository.at(revision).sha
    request.reply(200, {})


def branch(request: Handler, repo: str, name: str) -> None:
    repository = request.repository(repo, writing=True)
    repository.branches[name] = repository.at(request.json().get("startingPoint", "main")).sha
    request.reply(200, {})


def resolve(request: Handler, repo: str, revision: str, path: str) -> None:
    at = request.repository(repo).at(revision)
    if path not in at.files:
        raise Refusal(404, "EntryNotFound", "Entry not found")
    file = at.files[path]
    headers = {"X-Repo-Commit": at.sha, "ETag": f'"{file.oid}"', "Accept-Ranges": "bytes"}
    if file.lfs:
        size = str(len(file.content))
        # another host, as the Hub's storage is: the client follows a redirect within its Hub before it reads headers
        place = {"Location": f"{request.hub.endpoint.replace('127.0.0.1', 'localhost')}/lfs/{file.oid}"}
        request.reply(302, b"", headers | place | {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": size})
        return
    request.reply(200, file.content, headers)


def lfs_get(request: Handler, oid: str) -> None:
    request.reply(200, request.hub.uploads[oid], {"ETag": f'"{oid}"'})


API = rf"/api/models/{MODEL}"
REVISION = r"(?P<revision>[^/]+|refs/pr/\d+)"
ROUTES = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("POST", rf"{API}/preupload/{REVISION}", preupload),
    ("POST", rf"/{MODEL}\.git/info/lfs/objects/batch", lfs_batch),
    ("POST", rf"/{MODEL}\.git/info/lfs/objects/verify", lfs_verify),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", lfs_put),
    ("GET HEAD", r"/lfs/(?P<oid>[0-9a-f]{64})", lfs_get),
    ("POST", rf"{API}/commit/{REVISION}", commit),
    ("GET", r"/api/models", list_models),
    ("GET", API, info),
    ("GET", rf"{API}/revision/{REVISION}", info),
    ("GET", rf"{API}/tree/{REVISION}", tree),
    ("GET", rf"{API}/tree/{REVISION}/(?P<folder>.+)", tree),
    ("GET", rf"{API}/refs", refs),
    ("POST", rf"{API}/paths-info/{REVISION}", paths_info),
    ("POST", rf"{API}/tag/{REVISION}", tag),
    ("POST", rf"{API}/branch/(?P<name>.+)", branch),
    ("GET HEAD", rf"/{MODEL}/resolve/{REVISION}/(?P<path>.+)", resolve),
]
