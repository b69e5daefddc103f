"""Upload of a checkpoint folder to the Hub: the publishable part of it, checked first, then in one commit."""

import fnmatch
import hashlib
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import CommitInfo, HfApi, ModelCard, metadata_update, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import AutoConfig

from hf_bidir.checkpoints.adapters import ADAPTER_CONFIG, read_adapter
from hf_bidir.checkpoints.examples import example_inputs, rounding_tolerance
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.common.card import CARD, read_card
from hf_bidir.common.errors import first_line
from hf_bidir.common.files import read_json, with_imports, write_json
from hf_bidir.common.model_types import is_signed
from hf_bidir.hub.card import merge_cards, write_card
from hf_bidir.hub.files import CODE, COMPUTED_FROM, MODULES, REPORTS, digests, matching
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.modeling import activations

logger = logging.getLogger(__name__)

MODELING = Path(activations.__file__).parent
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".h5", ".msgpack")
# pickles that a Trainer saves for resuming: never published, and no reason to refuse a folder
TRAINER_FILES = {"training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
LARGEST = 5 * 2**30  # bytes of one file
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b")
LOCAL_PATH = re.compile(r"(?<![\w.:/])(?:/(?:home|root|Users|mnt|tmp|work|data|opt|var)/|[A-Za-z]:\\)[\w.-]")
OUR_CODE = re.compile(r"((?:configuration|modeling)_bidir\w*)\.")  # how `auto_map` names it, in every version
ADVICE = {  # by the status of the Hub's response
    401: "the Hub does not know this token; log in with `hf auth login`, or set HF_TOKEN",
    403: "this token may not write to {}; use one with write access, of the account that owns it",
    409: "that exists already; choose another name",
    412: "somebody changed the repository meanwhile; run the command again",
}
MISSING = "this account cannot see {}: it does not exist, or is private to another account; check the name, and your "
MISSING += "account with `hf auth whoami`"


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
    replaces: str | None = None,
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
        replaces: an earlier model of yours on the Hub, whose card then names this one as its `new_version`.

    Returns:
        The commit, or, for a dry run, the files with their sizes and the card.

    Raises:
        FileNotFoundError, ValueError: the folder must not be published (`stage`), or the options exclude each other.
        PushError: the Hub refused or could not be reached.
    """
    if replaces == repo_id:
        raise ValueError(
            f"expected the name of an earlier model that {repo_id} replaces, got its own; name another one."
        )
    api = HfApi(token=token, library_name="hf_bidir")
    with tempfile.TemporaryDirectory(prefix="hf-bidir-push-") as scratch:
        if not dry_run:
            with _one_line_errors(repo_id):
                api.whoami()  # fails before the checks, which take longer
            if replaces is not None:
                with _one_line_errors(replaces):
                    api.model_info(replaces)
        # the folder's name heads the card; a pull request's author may not be allowed to create a tag
        pinned = (revision or "main") if create_pr else None
        staged = stage(folder, Path(scratch, Path(folder).resolve().name), repo_id, pinned)
        if dry_run:
            where = f"{repo_id}{f', {revision}' if revision else ''}"
            lines = [staged.summary(), f"This would be one commit to {where} ({staged.content})."]
            lines += [f"The card of {replaces} would name {repo_id} as its new version."] * (replaces is not None)
            return "\n".join([*lines, "Nothing was sent."])
        with _one_line_errors(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None and not create_pr:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            if tag is not None and tag in {ref.name for ref in api.list_repo_refs(repo_id).tags}:
                raise PushError(f"{repo_id} has the tag {tag} already; nothing was changed, choose another name.")
            _keep_hand_written(api, staged, repo_id, revision)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=staged.folder,
                commit_message=f"Checkpoint {staged.folder.name}",
                revision=revision,
                create_pr=create_pr,
            )
        with _one_line_errors(repo_id, "the commit exists, but its tag does not"):
            if not create_pr:
                _tag_content(api, staged, repo_id, commit.oid)
            if tag is not None:
                api.create_tag(repo_id, tag=tag, revision=commit.oid)
        if replaces is not None:
            with _one_line_errors(replaces, f"the commit exists, but the card of {replaces} does not name it"):
                metadata_update(replaces, {"new_version": repo_id}, overwrite=True, token=token, create_pr=create_pr)
    return commit


@dataclass(frozen=True)
class Staged:
    """A folder with exactly the published files."""

    folder: Path

    @property
    def files(self) -> dict[str, Path]:
        """The files by name."""
        return matching(self.folder, ("*", *MODULES))

    @property
    def content(self) -> str:
        """A hash of all files that affect outputs: weights, config, code, tokenizer or processor."""
        files = digests(self.folder, COMPUTED_FROM + CODE)
        listed = "".join(f"{name} {digest}\n" for name, digest in files.items()).encode()
        return f"content-{hashlib.sha256(listed).hexdigest()[:12]}"

    @property
    def card(self) -> str:
        return (self.folder / CARD).read_text(encoding="utf-8")

    def summary(self) -> str:
        """The card, then the list of files with their sizes."""
        sizes = {name: file.stat().st_size for name, file in self.files.items()}
        lines = [f"{size:>13,}  {name}" for name, size in sizes.items()]
        return "\n".join([self.card, *lines, f"{sum(sizes.values()):>13,}  bytes together"])


def stage(folder: str | Path, target: Path, repo_id: str | None = None, revision: str | None = None) -> Staged:
    """Copy the publishable files of a checkpoint folder, its model code and its card into `target`, and check them.

    The card's example loads `repo_id`, by default the folder, with `revision`, by default `Staged.content`, which must
    then become a tag.

    Raises:
        FileNotFoundError: `folder` holds no checkpoint.
        ValueError: it holds a pickle, a path of this machine, a token, a file over 5 GiB, or unknown code; or it does
            not load in a clean process, or computes other outputs there; or the base model of an adapter is a folder.
    """
    folder = Path(folder)
    adapter = read_adapter(folder)
    if not ((folder / "config.json").is_file() or adapter) or not list(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"expected a checkpoint folder with config.json and *.safetensors; got {folder}.")
    if adapter and Path(adapter.base).exists():
        raise ValueError(
            f"the base model of the adapter {folder} is the folder {adapter.base}, which others do not have. Push "
            f'it first, then write its name, owner/name, as "base_model_name_or_path" into {folder / ADAPTER_CONFIG}.'
        )
    files = matching(folder, ("*", "[0-9]_*/*")).keys()
    pickles = sorted(name for name in files - TRAINER_FILES if Path(name).suffix in PICKLES)
    if pickles:
        raise ValueError(f"{folder} holds {', '.join(pickles)}: such files can run code when read. Remove them first.")
    for name, file in matching(folder, COMPUTED_FROM + CODE + REPORTS).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)
    if not adapter:
        _add_code(target)
    elif adapter.revision is None:  # its code, and the weights that it belongs to, are those of a commit of its base
        cached = snapshot_download(adapter.base, allow_patterns=["config.json"])
        write_json(target / ADAPTER_CONFIG, adapter.config | {"revision": Path(cached).name})
    staged = Staged(target)
    write_card(target, repo_id, revision or staged.content)
    _check_contents(staged)
    _check_alone(staged)
    return staged


def _add_code(target: Path) -> None:
    """Replace the model code in the folder, of this version or an earlier one, by this version's."""
    config = read_json(target / "config.json")
    if not is_signed(kind := config.get("model_type")):
        raise ValueError(
            f"expected a signed checkpoint, got the model type {kind}; hf-bidir convert makes a signed copy."
        )
    known = code_files(config.get("auto_map", {}), target)
    before = {file.name: file.read_bytes() for file in target.glob("*.py")}
    if unknown := sorted(name for name in before if name not in known and not (MODELING / name).is_file()):
        raise ValueError(f"{unknown[0]} is not model code of this hf_bidir, so its effect is unknown; remove it.")
    for name in before:
        (target / name).unlink()
    if config.get("auto_map") != AutoConfig.from_pretrained(target).auto_map:  # the config of an earlier version
        open_checkpoint(target).model().save_pretrained(target)
    write_code(target)
    for name, code in before.items():
        if not (target / name).is_file() or (target / name).read_bytes() != code:
            logger.warning("%s is of another version of hf_bidir; this version's code is published instead.", name)


def write_code(folder: Path) -> None:
    """Replace the model code in a signed checkpoint, and its names in config.json, by those of this version."""
    for file in folder.glob("*.py"):
        file.unlink()
    config, fields = AutoConfig.from_pretrained(folder), read_json(folder / "config.json")
    if fields.get("auto_map") != config.auto_map:
        write_json(folder / "config.json", fields | {"auto_map": config.auto_map})
    home = sys.modules[type(config).__module__]
    if hasattr(home, "write_code"):  # a model whose code is not in modeling/
        home.write_code(folder)
        return
    for name in code_files(config.auto_map):
        shutil.copyfile(MODELING / name, folder / name)


def code_files(auto_map: dict[str, str], folder: Path = MODELING) -> list[str]:
    """The files in a folder of model code that a config's `auto_map` needs, by name."""
    named = {f"{match[1]}.py" for path in auto_map.values() if (match := OUR_CODE.match(path))}
    return sorted(with_imports(named, folder))


def _check_contents(staged: Staged) -> None:
    # the card, which repeats what the others say, comes last
    for file in sorted(staged.files.values(), key=lambda file: file.name == CARD):
        if file.stat().st_size > LARGEST:
            raise ValueError(f"{file.name} is larger than {LARGEST // 2**30} GiB; save the model in smaller shards.")
        if file.suffix not in (".json", ".md", ".txt"):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file.name} is not UTF-8 ({error}); save it as UTF-8.") from error
        if SECRET.search(text):
            raise ValueError(f"{file.name} holds what looks like a Hub token; remove it, and revoke the token.")
        if file.name not in VOCABULARIES and (place := LOCAL_PATH.search(text)):
            named = text[place.start() : place.start() + 40]
            raise ValueError(f"{file.name} names a path of this machine ({named!r}); remove it.")


def _check_alone(staged: Staged) -> None:
    """Load the staged folder in a clean process, and compare its outputs with those of the model here."""
    checkpoint = open_checkpoint(staged.folder)
    # not merged, as the clean process computes it: merging rounds
    model = checkpoint.adapted().get_base_model() if checkpoint.adapter else checkpoint.model()
    name = type(model).__name__
    auto = next((auto for auto, path in model.config.auto_map.items() if path.endswith(f".{name}")), "AutoModel")
    inputs = example_inputs(model)
    with torch.inference_mode():
        here = {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}
    try:
        there = isolated_forward(staged.folder, auto, inputs)
    except RuntimeError as error:
        raise ValueError(f"nothing was uploaded: {error}") from error
    for name, value in here.items():
        difference = (value - there[name]).abs().max().item()
        if not difference <= rounding_tolerance(value.dtype) * max(1.0, value.abs().max().item()):
            raise ValueError(
                f"in a clean process the checkpoint computes other outputs ({name} differs by {difference:.1e}); "
                "nothing was uploaded."
            )


def _keep_hand_written(api: HfApi, staged: Staged, repo_id: str, revision: str | None) -> None:
    """Merge the card with the card in the repository, if there is one."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            published = api.hf_hub_download(repo_id, CARD, revision=revision, local_dir=scratch)
            written = read_card(Path(published), f"the README.md of {repo_id}")
    except EntryNotFoundError:
        return
    merge_cards(written, ModelCard(staged.card)).save(staged.folder / CARD)


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


@contextmanager
def _one_line_errors(name: str, state: str = "no commit was made") -> Iterator[None]:
    """Turn the client's errors into one line with the state and what to do, without any token.

    Args:
        name: of the repository that the calls concern.
        state: what the Hub has if a call fails.
    """
    try:
        yield
    except PushError:
        raise
    except LocalTokenNotFoundError as error:
        raise PushError(f"{state}: no Hub token was found; log in with `hf auth login`, or set HF_TOKEN.") from error
    except RevisionNotFoundError as error:
        raise PushError(f"{state}: {name} has no such revision ({first_line(error)}); name a branch.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        advice = MISSING if isinstance(error, RepositoryNotFoundError) or status == 404 else ADVICE.get(status or 0)
        told = (advice or "run the command again").format(name)
        raise PushError(f"{state}: {told} ({first_line(error)}).") from error
    except (OSError, RuntimeError) as error:  # the client raises RuntimeError for a file it could not send
        raise PushError(
            f"{state}: the connection to the Hub broke ({first_line(error)}); run the command again."
        ) from error
