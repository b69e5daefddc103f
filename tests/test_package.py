"""What is published: wheel, sdist, and what works with the core dependencies alone.

The core environment is a venv with the wheel, and links to the installed distributions that its core dependencies need.
Packages of the extras cannot be imported there.
"""

import json
import os
import re
import subprocess
import venv
import zipfile
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

import hf_bidir

ROOT = Path(__file__).parents[1]
LARGE = tuple(f"model_cards/{name}-tanhmax/model.safetensors" for name in ("cifar10-dinov2", "minilm"))
EXCLUDED = (".ci/", ".github/", ".pre-commit-config.yaml", *LARGE)
EXTRA_PACKAGES = ("PIL", "accelerate", "captum", "datasets", "gradio", "matplotlib", "scipy", "timm")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return Path(*WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"]))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """The packages of an environment with the wheel and its core dependencies."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    needed = {}
    add_needed(published(site).requires, {""}, needed)
    for installed in needed.values():
        for name in {file.parts[0] for file in installed.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(installed.locate_file(name))
    return site


def published(site):
    return PathDistribution(next(site.glob("hf_bidir-*.dist-info")))


def add_needed(requirements, extras, needed):
    """Add the installed distributions that these requirements need, directly or through others."""
    for requirement in map(Requirement, requirements or []):
        marker, name = requirement.marker, (requirement.name, *sorted(requirement.extras))
        if name in needed or (marker and not any(marker.evaluate({"extra": extra}) for extra in extras)):
            continue
        needed[name] = distribution(requirement.name)
        add_needed(needed[name].requires, {"", *requirement.extras}, needed)


CORE_USE = """
import json, sys, torch
from importlib.metadata import entry_points
from importlib.util import find_spec
from transformers import AutoModel, BertConfig, BertForSequenceClassification
import hf_bidir  # after transformers
from typer.testing import CliRunner

(command,) = entry_points(group="console_scripts", name="hf-bidir")
app = command.load()

def invoke(words):
    done = CliRunner().invoke(app, words.split())
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
sys.path.append(sys.argv[1])
import benchmarks.gpu_sections  # a GPU is rented with little installed
print(json.dumps({
    "file": hf_bidir.__file__,
    "of extras": [name for name in sys.argv[2:] if find_spec(name)],
    "loaded": type(AutoModel.from_pretrained("signed")).__name__,
    "commands": {line: invoke(line) for line in lines},
}))
"""


@pytest.fixture(scope="module")
def used(site, tmp_path_factory):
    """What one process of the core environment did, and the folder that it did it in."""
    folder = tmp_path_factory.mktemp("used")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    command = [site.parents[2] / "bin/python", "-I", "-c", CORE_USE, ROOT, *EXTRA_PACKAGES]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder


def test_the_core_environment_has_the_wheel_and_no_package_of_an_extra(used, site):
    assert Path(used[0]["file"]).is_relative_to(site)
    assert used[0]["of extras"] == []


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


def test_version_and_addresses_are_the_same_everywhere(site):
    metadata = published(site).metadata
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    repository = re.search(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert metadata["Version"] == hf_bidir.__version__
    assert urls["Homepage"] == urls["Source"] == citation["repository-code"] == repository
    assert urls["Documentation"] == citation["url"]
    assert citation["license"] == metadata["License-Expression"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git clone")
def test_the_sdist_holds_the_files_of_the_repository():
    names = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    assert names == {name for name in listed if not name.startswith(EXCLUDED) and (ROOT / name).is_file()}
