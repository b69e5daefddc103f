"""The state of the Hub in `hub_server.py`: accounts, repositories with their commits, and faults on demand."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Account:
    """The owner of a token, and its rights."""

    name: str
    role: Literal["read", "write"] = "write"


@dataclass(frozen=True)
class File:
    """The content of one path in one commit."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """The git object of the content; for an LFS file its SHA-256, as the Hub's preupload returns it."""
        if self.lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    files: dict[str, File]


@dataclass
class Repository:
    """A model repository: its commits, branches and tags."""

    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def add(self, title: str, files: dict[str, File], branch: str, parent: str | None) -> Commit:
        number = f"{self.name} {len(self.commits)} {title} {parent}"
        commit = Commit(hashlib.sha1(number.encode()).hexdigest(), parent, title, files)
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit

    def at(self, revision: str) -> Commit:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return self.commits[sha]


@dataclass
class Fault:
    """A failure of the next `times` requests of a method whose path contains `path`."""

    method: str
    path: str
    status: int | None = None  # return this status and do nothing
    share: float | None = None  # read this share of the body, then close the connection
    hang: bool = False  # read nothing and send no response until the server ends
    times: int = 1


class Refusal(Exception):
    """An error response; the client reads the code from a header."""

    def __init__(self, status: int, code: str | None = None, message: str = ""):
        super().__init__(message)
        self.status, self.code = status, code
