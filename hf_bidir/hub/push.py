"""Upload of a checkpoint folder to the Hub: checked first, then in one commit."""

import fnmatch
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitInfo, HfApi, ModelCard
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hf_bidir.common.card import read_card
from hf_bidir.hub.checkpoint_files import CODE, COMPUTED_FROM
from hf_bidir.hub.model_card import merge_cards
from hf_bidir.hub.staging import Staged, stage

README = "README.md"


class PushError(OSError):
    """The Hub refused or could not be reached; the message says what to do."""


def push_checkpoint(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    create_pr: bool = False,
    dry_run: bool = False,
    tag: str | None = None,
) -> CommitInfo | str:
    """Publish a checkpoint folder: weights, config, model code, tokenizer or image processor, card, figures, results.

    Before the upload, the folder is loaded and run in a clean process, and searched for pickles, tokens and local
    paths. Hand-written text in the repository's README.md is kept; the generated part is replaced. Everything is one
    commit: if it fails, the repository stays unchanged. Unchanged files are not uploaded again, and a folder that is
    already published makes no commit. The commit gets a tag computed from its content, and the card's example loads
    that revision.

    Args:
        folder: the checkpoint folder.
        repo_id: "owner/name"; created if it does not exist.
        private: whether a new repository is private; existing ones are not changed.
        revision: the branch, created if it does not exist; by default the main one.
        token: access token with write permission; by default the one of `hf auth login` or HF_TOKEN.
        create_pr: propose the commit as a pull request instead, without a tag of its content.
        dry_run: upload nothing.
        tag: tag for the commit, such as "v1".

    Returns:
        The commit, or, for a dry run, the files with their sizes and the card.

    Raises:
        FileNotFoundError, ValueError: the folder must not be published (`staging.py`).
        PushError: the Hub refused or could not be reached.
    """
    api = HfApi(token=token, library_name="hf_bidir")
    with tempfile.TemporaryDirectory(prefix="hf-bidir-push-") as scratch:
        if not dry_run:
            with _one_line_errors(repo_id):
                api.whoami()  # fails before the checks, which take longer
        # the folder's name heads the card; a pull request's author may not be allowed to create a tag
        pinned = (revision or "main") if create_pr else None
        staged = stage(folder, Path(scratch, Path(folder).resolve().name), repo_id, pinned)
        if dry_run:
            where = f"{repo_id}{f', {revision}' if revision else ''}"
            return f"{staged.summary()}\nThis would be one commit to {where} ({staged.content}). Nothing was sent."
        with _one_line_errors(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = _upload(api, staged, repo_id, revision, create_pr, tag)
        with _one_line_errors(repo_id, "the commit exists, but its tag does not"):
            if not create_pr:
                _tag_content(api, staged, repo_id, commit.oid)
            if tag is not None:
                api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit


def _upload(
    api: HfApi, staged: Staged, repo_id: str, revision: str | None, create_pr: bool, tag: str | None
) -> CommitInfo:
    """Create the commit, in a new branch if `revision` does not exist, unless the tag exists."""
    if revision is not None and not create_pr:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    if tag is not None and tag in _tags(api, repo_id):
        raise PushError(f"{repo_id} has the tag {tag} already; nothing was changed, choose another name.")
    _merge_card(api, staged, repo_id, revision)
    return api.upload_folder(
        repo_id=repo_id,
        folder_path=staged.folder,
        revision=revision,
        create_pr=create_pr,
        commit_message=f"Checkpoint {staged.folder.name}",
    )


def _tags(api: HfApi, repo_id: str) -> set[str]:
    return {ref.name for ref in api.list_repo_refs(repo_id).tags}


def _tag_content(api: HfApi, staged: Staged, repo_id: str, commit: str) -> None:
    """Tag the commit with the hash of its content, unless an earlier commit with the same content has the tag."""
    api.create_tag(repo_id, tag=staged.content, revision=commit, exist_ok=True)
    names = [name for pattern in COMPUTED_FROM + CODE for name in fnmatch.filter(staged.files, pattern)]
    tagged, pushed = (
        {file.path: getattr(file, "blob_id", None) for file in api.get_paths_info(repo_id, names, revision=revision)}
        for revision in (staged.content, commit)
    )
    if tagged != pushed:
        raise PushError(
            f"the commit exists, but in {repo_id} the tag {staged.content}, which the card names, points to other "
            "files. Find out who made it, delete it, and run the command again."
        )


def _merge_card(api: HfApi, staged: Staged, repo_id: str, revision: str | None) -> None:
    """Merge the card with the card in the repository."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            published = api.hf_hub_download(repo_id, README, revision=revision, local_dir=scratch)
            written = read_card(Path(published), f"the README.md of {repo_id}")
    except EntryNotFoundError:
        return
    merge_cards(written, ModelCard(staged.card)).save(staged.folder / README)


@contextmanager
def _one_line_errors(repo_id: str, state: str = "the repository is unchanged") -> Iterator[None]:
    """Turn the client's errors into one line with the state and what to do, without any token."""
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PushError("no Hub token was found; log in with `hf auth login`, or set HF_TOKEN.") from error
    except RepositoryNotFoundError as error:
        raise PushError(
            f"this account cannot see {repo_id}: it does not exist, or is private to another account. Check the name, "
            "and your account with `hf auth whoami`."
        ) from error
    except RevisionNotFoundError as error:
        raise PushError(f"{repo_id} has no such revision ({_first_line(error)}); name a branch.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        advice = {
            401: "the Hub does not know this token; log in with `hf auth login`, or set HF_TOKEN",
            403: f"this token may not write to {repo_id}; use one with write access, of the account that owns it",
            409: "that exists already; choose another name",
            412: "somebody changed the repository meanwhile; run the command again",
        }.get(status or 0, "run the command again")
        raise PushError(f"{state}: {advice} ({_first_line(error)}).") from error
    except PushError:
        raise
    except (OSError, RuntimeError) as error:  # the client raises RuntimeError for a file it could not send
        raise PushError(
            f"the connection to the Hub broke ({_first_line(error)}); {state}, run the command again."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
