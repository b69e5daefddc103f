"""The part of a checkpoint folder that is published, and the checks before it."""

import hashlib
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig

from hf_bidir.checkpoints.adapters import ADAPTER_CONFIG, Adapter, read_adapter
from hf_bidir.checkpoints.convert import TOLERANCE, TOLERATED_STEPS
from hf_bidir.checkpoints.kinds import example_inputs
from hf_bidir.checkpoints.reading import read_adapted, read_bidir
from hf_bidir.common.files import read_json, write_json
from hf_bidir.hub.checkpoint_files import CODE, COMPUTED_FROM, MODULES, REPORTS, digests, found
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.hub.model_card import write_card
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
# files of earlier versions; their checkpoints are published with the code of this version
FORMER_CODE = re.compile(r"(configuration|modeling)_bidir_(bert|deit|vit)\.py")


@dataclass(frozen=True)
class Staged:
    """A folder with exactly the published files."""

    folder: Path

    @property
    def files(self) -> dict[str, int]:
        """Size in bytes of each file."""
        return {
            name: file.stat().st_size for name, file in found(self.folder, ("*", *MODULES)).items() if file.is_file()
        }

    @property
    def content(self) -> str:
        """A hash of all files that affect outputs: weights, config, code, tokenizer or processor."""
        files = digests(self.folder, COMPUTED_FROM + CODE)
        listed = "".join(f"{name} {digest}\n" for name, digest in files.items())
        return f"content-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"

    @property
    def card(self) -> str:
        return (self.folder / "README.md").read_text(encoding="utf-8")

    def summary(self) -> str:
        """The card, then the list of files with their sizes."""
        lines = [f"{size:>13,}  {name}" for name, size in self.files.items()]
        return "\n".join([self.card, *lines, f"{sum(self.files.values()):>13,}  bytes together"])


def stage(folder: str | Path, target: Path, repo_id: str | None = None, revision: str | None = None) -> Staged:
    """Copy the publishable files of a checkpoint folder, its model code and its card into `target`, and check them.

    Args:
        folder: the checkpoint.
        target: a folder, made if it does not exist.
        repo_id: the repository that the card's example loads; by default the folder.
        revision: the revision that it loads; by default `Staged.content`, which must then become a tag.

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
    files = found(folder, ("*", "[0-9]_*/*")).keys()
    pickles = sorted(name for name in files - TRAINER_FILES if Path(name).suffix in PICKLES)
    if pickles:
        raise ValueError(f"{folder} holds {', '.join(pickles)}: such files can run code when read. Remove them first.")
    target.mkdir(parents=True, exist_ok=True)
    for name, file in found(folder, COMPUTED_FROM + CODE + REPORTS).items():
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target / name)
    if adapter:  # the code is in the repository of its base
        _pin_base(adapter, target)
    else:
        _add_code(target)
    staged = Staged(target)
    write_card(target, repo_id, revision or staged.content)
    _check_contents(staged)
    _check_alone(staged)
    return staged


def _pin_base(adapter: Adapter, target: Path) -> None:
    """Name the commit of the base model, whose weights the adapter belongs to."""
    if adapter.revision is None:
        cached = snapshot_download(adapter.base, allow_patterns=["config.json"])
        write_json(target / ADAPTER_CONFIG, adapter.config | {"revision": Path(cached).name})


def _add_code(target: Path) -> None:
    """Replace the model code in the folder by this version's, with everything that it imports."""
    for file in target.glob("*.py"):
        ours = MODELING / file.name
        if not ours.is_file() and not FORMER_CODE.fullmatch(file.name):
            raise ValueError(f"{file.name} is not model code of this hf_bidir, so its effect is unknown; remove it.")
        if not ours.is_file() or ours.read_bytes() != file.read_bytes():
            logger.warning("%s is of another version of hf_bidir; this version's code is published instead.", file.name)
        file.unlink()
    auto_map = AutoConfig.from_pretrained(target).auto_map
    if read_json(target / "config.json").get("auto_map") != auto_map:  # the config of an earlier version
        read_bidir(target).save_pretrained(target)
    for name in code_files(auto_map):
        shutil.copyfile(MODELING / name, target / name)


def code_files(auto_map: dict[str, str]) -> list[str]:
    """The files of modeling/ that a config's `auto_map` needs, by name."""
    needed, found = set(), {f"{path.partition('.')[0]}.py" for path in auto_map.values()}
    while found:
        needed |= found
        imports = "".join((MODELING / name).read_text(encoding="utf-8") for name in found)
        found = {f"{name}.py" for name in re.findall(r"^ *from \.(\w+) import", imports, re.MULTILINE)} - needed
    return sorted(needed)


def _check_contents(staged: Staged) -> None:
    for file in (staged.folder / name for name in staged.files):
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
        place = LOCAL_PATH.search(text) if file.name not in VOCABULARIES else None
        if place:
            start = place.start()
            raise ValueError(f"{file.name} names a path of this machine ({text[start : start + 40]!r}); remove it.")


def _check_alone(staged: Staged) -> None:
    """Load the staged folder in a clean process, and compare its outputs with those of the model here."""
    adapter = read_adapter(staged.folder)
    # not merged, as the clean process computes it: merging rounds
    model = read_adapted(adapter).get_base_model() if adapter else read_bidir(staged.folder)
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
        tolerance = max(TOLERANCE, TOLERATED_STEPS * torch.finfo(value.dtype).eps)
        if not difference <= tolerance * max(1.0, value.abs().max().item()):
            raise ValueError(
                f"in a clean process the checkpoint computes other outputs ({name} differs by {difference:.1e}); "
                "nothing was uploaded."
            )
