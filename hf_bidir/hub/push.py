"""Upload of a checkpoint folder to the Hub: the publishable part of it, checked first, then in one commit."""

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import CommitInfo, HfApi, ModelCard, snapshot_download
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoConfig
from transformers.dynamic_module_utils import get_relative_import_files

from hf_bidir.checkpoints.adapters import ADAPTER_CONFIG, Adapter
from hf_bidir.checkpoints.examples import example_inputs, largest_difference, rounding_tolerance
from hf_bidir.checkpoints.reading import Checkpoint, open_checkpoint
from hf_bidir.common.card import CARD, read_card
from hf_bidir.common.files import RECORD, read_json, write_json
from hf_bidir.modeling import activations

from .card import merge_cards, write_card
from .files import CODE, COMPUTED_FROM, REPORTS, digests, matching
from .isolated import isolated_forward

MODELING = Path(activations.__file__).parent
TEXTS = ("*.json", "*.md", "*.txt", "*/*.json")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "added_tokens.json")
SECRET = re.compile(rb"\bhf_[A-Za-z0-9]{20,}\b")
LOCAL_PATH = re.compile(rb"(?<![\w.:/])(?:/(?:home|root|Users|mnt|tmp|work|data|opt|var)/|[A-Za-z]:\\)[\w.-][^\"\s]*")


class PushError(OSError):
    """The Hub refused or could not be reached; the message says what the repository has, and what the Hub said."""


def push_checkpoint(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
) -> CommitInfo | str:
    """Publish a checkpoint folder: weights, config, model code, tokenizer or image processor, card, figures, results.

    Before the upload, the folder is loaded and run in a clean process, and searched for tokens and local paths. Other
    files, such as pickles, are not published. Hand-written text in the repository's README.md is kept; the generated
    part is replaced. Everything is one commit: if it fails, the repository stays unchanged. The commit gets a tag
    computed from its content, and the card's example loads that revision.

    Args:
        folder: the checkpoint folder.
        repo_id: "owner/name"; created if it does not exist.
        private: whether a new repository is private; existing ones are not changed.
        revision: the branch, created if it does not exist; by default the main one.
        token: access token with write permission; by default the one of `hf auth login` or HF_TOKEN.
        dry_run: upload nothing.

    Returns:
        The commit, or, for a dry run, the card and the files with their sizes.

    Raises:
        FileNotFoundError, ValueError: the folder must not be published (`stage`).
        PushError: the Hub refused or could not be reached.
    """
    api = HfApi(token=token, library_name="hf_bidir")
    with tempfile.TemporaryDirectory(prefix="hf-bidir-push-") as scratch:
        if not dry_run:
            with _push_errors("nothing was uploaded"):
                api.whoami()  # fails before the checks, which take longer
        staged = Path(scratch, Path(folder).resolve().name)  # whose name heads the commit
        stage(folder, staged, repo_id)
        if dry_run:
            return _summary(staged, repo_id)
        with _push_errors("no commit was made"):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            _keep_hand_written(api, staged, repo_id, revision)
            message = f"Checkpoint {staged.name}"
            commit = api.upload_folder(repo_id=repo_id, folder_path=staged, commit_message=message, revision=revision)
        with _push_errors("the commit exists, but its tag does not"):
            api.create_tag(repo_id, tag=content_tag(staged), revision=commit.oid, exist_ok=True)
    return commit


def stage(folder: str | Path, target: Path, repo_id: str | None = None) -> Path:
    """Copy the publishable files of a checkpoint to a new folder, add model code and card, and check the result.

    Raises:
        FileNotFoundError: `folder` holds no checkpoint.
        ValueError: it holds a path of this machine or a token; it is neither signed nor an adapter; it does not load in
            a clean process, or computes other outputs there; or an adapter does not fit its base on the Hub, or names
            none.
    """
    checkpoint = open_checkpoint(folder)
    if not (checkpoint.is_signed or checkpoint.adapter):
        raise ValueError(
            f"expected a signed checkpoint or an adapter, got the model type {checkpoint.config.model_type}; hf-bidir "
            "convert makes a signed copy."
        )
    for name, file in matching(Path(folder), COMPUTED_FROM + REPORTS).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)
    if checkpoint.adapter:
        _pin_base(checkpoint.adapter, target)
        open_checkpoint(target).adapted()  # an error unless it fits that base, which was checked when it was pushed
    else:
        write_code(target)
        _check_alone(checkpoint, target)
    write_card(target, repo_id, content_tag(target))
    _check_private(target)
    return target


def content_tag(folder: Path) -> str:
    """A name from the hash of all files that affect outputs: weights, config, code, tokenizer or processor."""
    files = digests(folder, COMPUTED_FROM + CODE)
    listed = "".join(f"{name} {digest}\n" for name, digest in files.items())
    return f"content-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"


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
    for file in code_files(config.auto_map):
        shutil.copy(file, folder)


def code_files(auto_map: dict[str, str]) -> set[Path]:
    """The files of modeling/ that a config's `auto_map` names, and those that they import."""
    modules = {MODELING / f"{path.partition('.')[0]}.py" for path in auto_map.values()}
    imports = {Path(file) for module in modules for file in get_relative_import_files(module)}
    return modules | imports


def _pin_base(adapter: Adapter, target: Path) -> None:
    """Name an adapter's base on the Hub, and its commit, whose code and weights it needs."""
    base, revision = adapter.base, adapter.revision
    if Path(base).exists():
        base = read_json(adapter.folder / RECORD).get("recipe", {}).get("base_model")
    if not base:
        raise ValueError(
            f"the base model of the adapter {adapter.source} is the folder {adapter.base}, which others do not have. "
            f'Push it first, then write its name, owner/name, as "base_model_name_or_path" into {ADAPTER_CONFIG}.'
        )
    if revision is None:
        with _push_errors(f"nothing was uploaded; the adapter's base, {base}, has to be on the Hub first"):
            revision = Path(snapshot_download(base, allow_patterns=["config.json"])).name
    write_json(target / ADAPTER_CONFIG, adapter.config | {"base_model_name_or_path": base, "revision": revision})


def _check_private(folder: Path) -> None:
    """Raise ValueError for an access token or a path of this machine in a text."""
    # the card, which repeats what the others say, comes late
    for name, file in reversed(matching(folder, TEXTS).items()):
        text = file.read_bytes()
        if SECRET.search(text):
            raise ValueError(f"{name} holds what looks like a Hub token; remove it, and revoke the token.")
        place = LOCAL_PATH.search(text)
        if place and name not in VOCABULARIES:
            raise ValueError(f"{name} names a path of this machine ({place[0].decode(errors='replace')}); remove it.")


def _check_alone(checkpoint: Checkpoint, staged: Path) -> None:
    """Run the copy in a clean process; ValueError if it fails or computes other outputs than the checkpoint here."""
    model = checkpoint.model()
    inputs = example_inputs(model)
    with torch.inference_mode():
        outputs = {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}
    try:
        alone = isolated_forward(staged, checkpoint.auto_class, inputs)
    except RuntimeError as error:
        raise ValueError(f"nothing was uploaded: {error}") from error
    difference = largest_difference(list(outputs.values()), [alone[name] for name in outputs], inputs)
    if not difference <= rounding_tolerance(model.dtype):  # also of NaN
        raise ValueError(
            f"in a clean process the checkpoint computes other outputs, which differ by {difference:.1e}; nothing was "
            "uploaded."
        )


def _summary(staged: Path, repo_id: str) -> str:
    """The card, and the files with their sizes."""
    files = matching(staged, ("*", "*/*"))
    sizes = {name: file.stat().st_size for name, file in files.items()}
    card = files[CARD].read_text(encoding="utf-8")
    lines = [f"{size:>13,}  {name}" for name, size in sizes.items()]
    total = f"{sum(sizes.values()):>13,}  bytes in one commit to {repo_id}, {content_tag(staged)}. Nothing was sent."
    return "\n".join([card, *lines, total])


def _keep_hand_written(api: HfApi, staged: Path, repo_id: str, revision: str | None) -> None:
    """Merge the card with the card in the repository, if there is one."""
    try:
        published = api.hf_hub_download(repo_id, CARD, revision=revision)
    except EntryNotFoundError:
        return
    written = read_card(Path(published), f"the README.md of {repo_id}")
    merge_cards(written, ModelCard.load(staged / CARD)).save(staged / CARD)


@contextmanager
def _push_errors(state: str) -> Iterator[None]:
    """Put the client's errors, which say what to do, into one line after the state of the repository."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # the client raises RuntimeError for a file that it could not send
        raise PushError(f"{state}: {' '.join(str(error).split())}") from error
