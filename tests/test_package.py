"""What is published: wheel, sdist, and what works with the core dependencies alone.

The core environment is a venv with the wheel, and links to the installed distributions that its core dependencies need.
Packages of the extras cannot be imported there.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hf_bidir

ROOT = Path(__file__).parents[1]
LARGE = tuple(f"model_cards/{name}-tanhmax/model.safetensors" for name in ("minilm", "sst2-minilm"))
EXCLUDED = (".ci/", ".github/", ".pre-commit-config.yaml", *LARGE)
EXTRA_PACKAGES = ("PIL", "accelerate", "captum", "datasets", "evaluate", "gradio", "matplotlib", "scipy", "timm")


def run(command: list, folder: Path, expected: int = 0) -> str:
    """The stdout of a process that sees no packages but those of its interpreter, and no network."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def needed(requirements: list[str], extras: tuple[str, ...] = (), found: dict | None = None) -> dict:
    """The installed distributions, by name, that these requirements need, directly or through others."""
    found = {} if found is None else found
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in found:
            found[key] = distribution(requirement.name)
            needed(found[key].requires or [], tuple(requirement.extras), found)
    return found


@pytest.fixture(scope="module")
def core(wheel, metadata, tmp_path_factory):
    """The bin folder of an environment with the wheel and its core dependencies."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for installed in needed(metadata.get_all("Requires-Dist")).values():
        for name in {file.parts[0] for file in installed.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(installed.locate_file(name))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], folder)
    return folder / "bin"


CORE_USE = """
import json, torch
from importlib.util import find_spec
from transformers import AutoModel, BertConfig, BertForSequenceClassification
import hf_bidir  # after transformers
from typer.testing import CliRunner
from hf_bidir.cli import app

def invoke(*words):
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output.splitlines()[-1] if done.output else repr(done.exception)

for name in hf_bidir.__all__:
    if not name.startswith("Bidir"):
        getattr(hf_bidir, name)
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
stock = BertForSequenceClassification(BertConfig(**sizes)).eval()
stock.save_pretrained("stock")
model = hf_bidir.signed(stock).eval()
model.save_pretrained("signed")
ids = torch.tensor([[1, 2, 3]])
loaded = type(model).from_pretrained("signed").eval()
torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]
lines = [f"{name} --help" for name in names] + ["convert stock converted", "families roberta"]
lines += ["explain runs/x text", "evaluate runs/x"]
print(json.dumps({
    "file": hf_bidir.__file__,
    "of extras": [name for name in EXTRA_PACKAGES if find_spec(name)],
    "loaded": type(AutoModel.from_pretrained("signed")).__name__,
    "commands": {line: invoke(*line.split()) for line in lines},
}))
"""


@pytest.fixture(scope="module")
def used(core, tmp_path_factory):
    """What one process of the core environment did, and the folder that it did it in."""
    folder = tmp_path_factory.mktemp("used")
    code = f"EXTRA_PACKAGES = {EXTRA_PACKAGES}\n{CORE_USE}"
    return json.loads(run([core / "python", "-I", "-c", code], folder).splitlines()[-1]), folder


def test_the_core_environment_has_the_wheel_its_command_and_no_package_of_an_extra(used, core, tmp_path):
    assert Path(used[0]["file"]).is_relative_to(core.parent)
    assert used[0]["of extras"] == []
    assert "convert" in run([core / "hf-bidir", "--help"], tmp_path)


def test_with_the_core_a_model_is_signed_saved_reloaded_and_converted(used):
    assert used[0]["loaded"] == "BidirBertModel"
    assert (used[1] / "signed/modeling_bidir.py").is_file()
    assert json.loads((used[1] / "converted/config.json").read_text())["model_type"] == "bidir_bert"


def test_with_the_core_commands_have_help_and_name_the_extras_that_they_need(used):
    failed = {line.split()[0]: outcome for line, outcome in used[0]["commands"].items() if outcome[0] != 0}
    extras = {"explain": "explain", "evaluate": "explain,hub,train"}
    assert failed.keys() == extras.keys()
    for command, (code, output) in failed.items():
        expected = rf"error: \w+ is not installed; run: pip install 'hf-bidir\[{extras[command]}\]'"
        assert code == 2, command
        assert re.fullmatch(expected, output), f"{command}: {output}"


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {file for file in (ROOT / "hf_bidir").rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert names == {file.relative_to(ROOT).as_posix() for file in files}
    assert {"hf_bidir/py.typed", "hf_bidir/__init__.pyi", "hf_bidir/explain/draw/page.html"} <= names


def test_version_and_addresses_are_the_same_everywhere(metadata):
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    site = re.search(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert metadata["Version"] == hf_bidir.__version__
    assert urls["Homepage"] == urls["Source"] == citation["repository-code"] == site
    assert urls["Documentation"] == citation["url"]
    assert citation["license"] == metadata["License-Expression"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git clone")
def test_the_sdist_holds_the_files_of_the_repository(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"], built).split("\0")
    kept = {name for name in listed if name and not name.startswith(EXCLUDED) and (ROOT / name).is_file()}
    assert names == kept | {"PKG-INFO"}
