"""Checks of the layout: imports, public names, lengths, links."""

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import hf_bidir
from hf_bidir import BidirBertConfig
from tests.conftest import GPU, SLOW

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hf_bidir"
FOLDERS = ("hf_bidir", "training", "tests", "space", "benchmarks", "research", "docs")
SOURCES = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
TRAVELS = {"torch", "transformers"} | sys.stdlib_module_names


@cache
def imported(file: Path) -> set[str]:
    """Modules that a file imports, anywhere in it; relative ones keep their dots."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def siblings_of(module: str) -> set[str]:
    """The files of modeling/ that one of them imports."""
    return {name[1:] for name in imported(PACKAGE / "modeling" / f"{module}.py") if name.startswith(".")}


@pytest.mark.parametrize("file", sorted((PACKAGE / "modeling").glob("*.py")), ids=lambda file: file.name)
def test_modeling_imports_only_torch_transformers_and_its_own_files(file):
    siblings = {f".{sibling.stem}" for sibling in file.parent.glob("*.py")}
    foreign = {name for name in imported(file) - siblings if name.split(".")[0] not in TRAVELS}
    assert not foreign, f"{file.name} imports {foreign}, which does not travel with a checkpoint"


def test_modeling_is_flat_because_remote_code_is_one_folder():
    folders = {path.name for path in (PACKAGE / "modeling").iterdir() if path.is_dir()}
    assert folders <= {"__pycache__"}


def test_a_remote_module_names_every_file_it_needs_because_transformers_5_0_copies_no_others():
    for module in {path.partition(".")[0] for path in BidirBertConfig().auto_map.values()}:
        direct = siblings_of(module)
        for sibling in direct:
            assert siblings_of(sibling) <= direct, f"{module}.py needs the imports of {sibling}.py as well"


MAY_IMPORT = {
    "common": set(),
    "modeling": set(),
    "kernels": {"common", "modeling"},
    "checkpoints": {"common", "modeling", "kernels"},
    "finetune": {"common", "modeling", "checkpoints"},
    "recurrent": {"common", "modeling", "finetune"},
    "explain": {"common", "modeling", "checkpoints"},
    "hub": {"common", "modeling", "checkpoints", "finetune", "explain"},
    "deploy": {"common", "modeling", "checkpoints"},
    "cli": {"common", "modeling", "kernels", "checkpoints", "deploy", "finetune", "explain", "hub"},
}


@pytest.mark.parametrize("subpackage", sorted(path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))))
def test_subpackages_import_in_one_direction(subpackage):
    for file in (PACKAGE / subpackage).rglob("*.py"):
        used = {name.split(".")[1] for name in imported(file) if name.startswith("hf_bidir.")} - {subpackage}
        assert used <= MAY_IMPORT[subpackage], f"{file.relative_to(PACKAGE)} imports {used - MAY_IMPORT[subpackage]}"


def test_the_package_imports_no_other_folder_and_only_research_imports_research():
    for file in SOURCES:
        folder = file.relative_to(ROOT).parts[0]
        forbidden = {*FOLDERS[1:]} if folder == "hf_bidir" else {"research"} - {folder}
        assert not {name.split(".")[0] for name in imported(file)} & forbidden, file


def test_the_lists_of_slow_tests_and_of_tests_for_a_gpu_name_what_exists():
    assert not [name for name in (*SLOW, *GPU) if not (ROOT / "tests" / name).exists()]


FROZEN = {  # public functions with their first parameters, as published; classes and others by name
    "hf_bidir": [
        "tanhmax(scores, keep=None, dim=-1, negative_mass=1.0)",
        "bidir_attention(query, key, value, keep=None, activation='tanhmax', negative_mass=1.0, scaling=None, "
        "dropout=0.0, implementation='auto')",
        "register_attn_activation(name, fn)",
        *("signed", "softmax", "unsigned", "convert_checkpoint", "NegativeMassSchedule"),
        *("BidirRnnConfig", "BidirRnnForSequenceClassification"),
    ],
    "hf_bidir.explain": [
        "attention_rollout(attentions, keep=None, residual=0.5)",
        "attention_flow(attentions, keep=None, source=0)",
        "contributions(cache, request)",
        "erasure(cache, request, rescale=True)",
        "token_scores(model, inputs, method=None, target=None)",
        "explain(model, processor, inputs, method=None)",
        "image_heatmap",
        "score_grid",
    ],
    "hf_bidir.hub": ["build_model_card(folder)", "push_checkpoint(folder, repo_id)"],
}


@pytest.mark.parametrize("module", FROZEN)
def test_public_names_are_listed_and_their_signatures_begin_as_published(module):
    package = importlib.import_module(module)
    for published in FROZEN[module]:
        name, _, parameters = published.partition("(")
        assert name in package.__all__
        public = getattr(package, name)
        if parameters:
            typed = [str(each.replace(annotation=each.empty)) for each in inspect.signature(public).parameters.values()]
            assert ", ".join(typed).startswith(parameters.rstrip(")"))


@pytest.mark.parametrize("page", ["explain", "hub", "hf_bidir"])
def test_every_public_name_is_in_the_reference(page):  # `make docs` checks that every name there exists
    public = hf_bidir._HOMES if page == "hf_bidir" else importlib.import_module(f"hf_bidir.{page}").__all__
    text = (ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8")
    assert set(public) <= set(re.findall(r"^::: .*\.(\w+)$", text, re.MULTILINE))
