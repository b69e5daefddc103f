"""A checkpoint folder to the Hub: checked first, then in one commit."""

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

from hf_bidir.hub.checkpoint_files import CODE, COMPUTED_FROM
from hf_bidir.hub.model_card import merge_cards
from hf_bidir.hub.staging import Staged, stage

README = "README.md"


class PushError(OSError):
    """The Hub refused, or could not be reached; the message says what to do."""


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

    Before anything leaves, the folder is loaded and run in a process that has nothing else, and searched for pickles,
    tokens and paths of this machine. What a person wrote in the repository's README.md stays; the generated part is
    renewed. Everything is one commit: where it fails, the repository is as it was. Unchanged files are not sent again,
    and a folder that is published already makes no commit. The commit gets a tag made from its content, and the card's
    example loads that revision.

    Args:
        folder: the checkpoint.
        repo_id: "owner/name"; created where there is none.
        private: how it is created; an existing repository stays as it is.
        revision: the branch, created where there is none; by default the main one.
        token: of an account that may write; by default the one that `hf auth login` or HF_TOKEN gave.
        create_pr: propose the commit as a pull request instead, without a tag of its content.
        dry_run: change nothing.
        tag: a name for the commit, such as "v1".

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
                api.whoami()  # before the checks, which take longer
        # the card is headed by the name; who proposes a change may not be allowed to tag it
        pinned = (revision or "main") if create_pr else None
        staged = stage(folder, Path(scratch, Path(folder).resolve().name), repo_id, pinned)
        if dry_run:
            where = f"{repo_id}{f', {revision}' if revision else ''}"
            return f"{staged.summary()}\nThis would be one commit to {where} ({staged.content}). Nothing was sent."
        with _one_line_errors(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None and not create_pr:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            if tag is not None and tag in _tags(api, repo_id):
                raise PushError(f"{repo_id} has the tag {tag} already; nothing was changed, choose another name.")
            _keep_what_a_person_wrote(api, staged, repo_id, revision)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=staged.folder,
                revision=revision,
                create_pr=create_pr,
                commit_message=f"Checkpoint {Path(folder).resolve().name}",
            )
        with _one_line_errors(repo_id, "the commit is there, its tag is not yet"):
            if not create_pr:
                _tag_content(api, staged, repo_id, commit.oid)
            if tag is not None:
                api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit


def _tags(api: HfApi, repo_id: str) -> set[str]:
    return {ref.name for ref in api.list_repo_refs(repo_id).tags}


def _tag_content(api: HfApi, staged: Staged, repo_id: str, commit: str) -> None:
    """Give the commit the name of its content, unless an earlier commit with the same content has it."""
    api.create_tag(repo_id, tag=staged.content, revision=commit, exist_ok=True)
    names = [name for pattern in COMPUTED_FROM + CODE for name in fnmatch.filter(staged.files, pattern)]
    tagged, pushed = (
        {file.path: file.blob_id for file in api.get_paths_info(repo_id, names, revision=revision)}
        for revision in (staged.content, commit)
    )
    if tagged != pushed:
        raise PushError(
            f"the commit is there, but in {repo_id} the tag {staged.content}, which the card names, is on something "
            "else. Find out who made it, delete it, and give the command again."
        )


def _keep_what_a_person_wrote(api: HfApi, staged: Staged, repo_id: str, revision: str | None) -> None:
    """Merge the card with the one that the repository has."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            published = api.hf_hub_download(repo_id, README, revision=revision, local_dir=scratch)
            written = ModelCard.load(published)
    except EntryNotFoundError:
        return
    merge_cards(written, ModelCard(staged.card)).save(staged.folder / README)


@contextmanager
def _one_line_errors(repo_id: str, state: str = "the repository is as it was") -> Iterator[None]:
    """The client's errors as one line that says how things stand and what to do; never with a token in it."""
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PushError("there is no Hub token here; log in with `hf auth login`, or set HF_TOKEN.") from error
    except RepositoryNotFoundError as error:
        raise PushError(
            f"{repo_id} does not exist for this account, or is private and another's; check the name, and who you are "
            "with `hf auth whoami`."
        ) from error
    except RevisionNotFoundError as error:
        raise PushError(f"{repo_id} has no such revision ({_first_line(error)}); name a branch.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        advice = {
            401: "the Hub does not know this token; log in with `hf auth login`, or set HF_TOKEN",
            403: f"this token may not write to {repo_id}; take one with write access, of the account that owns it",
            409: "that exists already; choose another name",
            412: "somebody has changed the repository meanwhile; give the command again",
        }.get(status or 0, "give the command again")
        raise PushError(f"{state}: {advice} ({_first_line(error)}).") from error
    except PushError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: the client's word for a file that it could not send
        raise PushError(
            f"the Hub could not be reached to the end ({_first_line(error)}); {state}, give the command again."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
