"""Atomic file writes: a temporary file in the same folder, then a rename. Also JSON and hashes."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import sha_fileobj

from .errors import did_you_mean

Json = dict[str, Any]  # the content of a JSON file
RECORD, PREVIOUS = "run.json", "previous_run.json"  # records of a training run and of the run behind its checkpoint


def check_place(source: str | Path) -> None:
    """Raise FileNotFoundError unless a checkpoint is a folder or may be on the Hub.

    A name is no Hub name if it is written as a path, or if its folder is missing beside other checkpoints.
    """
    folder, name = Path(source), str(source)
    if any(folder.glob("*.json")):
        return
    beside = [file.parent.name for file in folder.parent.glob("*/*config.json")] if "/" in name else []
    if beside or folder.is_dir() or name[:1] in "./~" or name.count("/") > 1:
        close = did_you_mean(folder.name, beside)
        raise FileNotFoundError(f"expected a folder with config.json, found none at {source}; check the path.{close}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success and is deleted on failure; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp creates files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Json:
    """The content of a JSON file; empty if the file does not exist. Raises ValueError if it is not JSON in UTF-8."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"expected JSON in UTF-8 in {path}; {error}. Restore the file.") from error


def write_json(path: Path, content: Json) -> None:
    """Write `content` as indented JSON."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return sha_fileobj(stream).hex()
