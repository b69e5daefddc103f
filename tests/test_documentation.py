"""The documentation holds: its Python blocks run, its commands parse, its links lead somewhere.

Python blocks of a page share one namespace and one folder, in which small models stand in for checkpoints of the Hub
and for the reader's own runs. A block after the line `<!-- gpu -->` runs on a GPU only.
"""

import importlib
import io
import os
import re
import runpy
import shlex
import shutil
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoProcessor

import hf_bidir
from hf_bidir.cli import app
from hf_bidir.kernels.fused_path import HAS_TRITON
from tests.explain.image_text_models import two_towers, untrained
from tests.tiny_models import stock_model

ROOT = Path(__file__).parents[1]
GLOBS = ["*.md", "docs/**/*.md", "training/**/*.md", "space/*.md", "benchmarks/*.md", "research/**/README.md"]
GLOBS += ["model_cards/**/README.md"]
FILES = [file for pattern in GLOBS for file in sorted(ROOT.glob(pattern))]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}
RESULTS = [*ROOT.glob("benchmarks/results/*.md")]  # of which links are tested
CARDS = ROOT / "model_cards"  # their Python blocks run in tests/hub
BLOCK = re.compile(r"(<!-- gpu -->\n+)?^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`((?:hf-bidir|make|python) [^`\n]+|--[a-z][\w-]+[^`\n]*)`")
FOLDERS = ("hf_bidir", "training", "benchmarks", "research", "space")
MODULES = ("research.", "benchmarks.", "training.")  # after python -m
SOURCES = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
WORDS = set(re.findall(r"(?<![^\W_])[a-z]\w+", "".join(f.read_text("utf-8") for f in SOURCES).replace("-", "_")))
TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)}
VALUE = re.compile(r"(True|False|None|\d+|torch\.[\w.]+\S*\)|\{.*\}|'.*?')(?:: .*)?$")  # in the comment on a print
NUMBER = re.compile(r"(?<![\w.+-])(?:^[+-]?\d+|[+-]\d+|[+-]?\d+(?=\.\d))(?:\.\d+)?\b")  # in the other comments
PYTHON = [name for name, text in PAGES.items() if "```python" in text and not name.startswith("model_cards/")]
CLASSES = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
STAND_INS = {  # name: architecture, card with the tokenizer or image processor, whether it is signed
    "google-bert/bert-base-uncased": ("bert", "sst2-rnn-tanhmax", False),
    "FacebookAI/roberta-base": ("roberta", "sst2-rnn-tanhmax", False),
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": ("bert", "sst2-rnn-tanhmax", False),
    "cross-encoder/ms-marco-MiniLM-L6-v2": ("bert", "sst2-rnn-tanhmax", False),
    "HuggingFaceTB/SmolLM2-135M": ("llama", "imdb-lm-tanhmax", False),
    "google/vit-base-patch16-224": ("vit", "digits-tanhmax", False),
    "runs/mine": ("bert", "sst2-rnn-tanhmax", True),
    "runs/sst2-tanhmax": ("bert", "sst2-rnn-tanhmax", True),
}
SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"
JOINT = {"openai/clip-vit-base-patch32": partial(two_towers, "clip"), "HuggingFaceTB/SmolVLM-256M-Instruct": untrained}
COPIES = {"runs/digits-tanhmax": "digits-tanhmax", "runs/smol-healed": "imdb-lm-tanhmax"}


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory):
    """A folder with everything that the examples load."""
    folder = tmp_path_factory.mktemp("examples")
    for name, (family, card, is_signed) in STAND_INS.items():
        processor, fields = AutoProcessor.from_pretrained(CARDS / card), {}
        if family != "vit":
            fields = CLASSES | {"vocab_size": len(processor), "pad_token_id": processor.pad_token_id}
        model = stock_model(family, **fields)
        for part in (hf_bidir.signed(model) if is_signed else model, processor):
            part.save_pretrained(folder / name)
    bert = Transformer(str(folder / "google-bert/bert-base-uncased"))
    SentenceTransformer(modules=[bert, Pooling(32), Normalize()], device="cpu").save(str(folder / SENTENCES))
    for name, made in JOINT.items():
        for part in made():
            part.save_pretrained(folder / name)
    for name, card in COPIES.items():
        shutil.copytree(CARDS / card, folder / name)
    shutil.copyfile(next((ROOT / "space/examples/digits").iterdir()), folder / "runs/digits-tanhmax/digit.png")
    Image.effect_noise((8, 8), 60).convert("RGB").save(folder / "cat.png")
    return folder


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_blocks_of_a_page_run_offline_and_print_what_their_comments_say(
    page, stand_ins, tmp_path, monkeypatch
):
    folder, printed = tmp_path / "clone", []
    shutil.copytree(stand_ins, folder)
    (folder / "model_cards").symlink_to(CARDS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def record(*values):
        printed.append((sys._getframe(1).f_lineno, " ".join(map(str, values))))

    namespace, text = {"__name__": "__main__", "print": record}, PAGES[page]
    torch.manual_seed(0)
    for block in BLOCK.finditer(text):
        if block[3] == "python" and (not block[1] or torch.cuda.is_available()):
            above = text[: block.start(4)].count("\n")  # tracebacks and `printed` then have the page's lines
            exec(compile("\n" * above + block[4], str(ROOT / page), "exec"), namespace)
    lines = text.splitlines()
    for line, output in printed:
        comment = lines[line - 1].partition("  # ")[2]
        assert agrees(comment, output), f"{page}, line {line}: {output!r} was printed, not {comment!r}"


def agrees(comment: str, output: str) -> bool:
    """A comment that begins with a value gives what is printed; in others, the numbers with a sign or a decimal point,
    and one that they begin with, are among the printed numbers, in their order, rounded to the same digits."""
    comment, output = (text.replace("\N{MINUS SIGN}", "-") for text in (comment, output))
    if value := VALUE.match(comment):
        return value[1] == output
    numbers = map(float, re.findall(r"[+-]?\d+(?:\.\d*)?(?:e[+-]\d+)?", output))
    for expected in NUMBER.findall(comment):
        digits = len(expected.partition(".")[2])
        rounded = (f"{number:.{digits}f}" for number in numbers)  # those behind the ones that agreed
        if expected.removeprefix("+") not in rounded:
            return False
    return True


@pytest.mark.parametrize(
    ("comment", "output", "agree"),
    [
        ("first: −0.75, flat", "flat     −0.75", True),
        ("first: +0.75, flat", "flat     −0.75", False),
        ("first: −0.75, flat", "flat     +0.75", False),
        ("+1.2, charming", "charming +1.24", True),
        ("0.29, 0, −0.29", "[0.2876, 0, -0.2876]", True),
        ("0.29, 0, +0.29", "[0.2876, 0, -0.2876]", False),
        ("−3, then others", "[3, 5]", False),
        ("3, then others", "[-3, 5]", False),
        ("of 3 rows", "[4, 5]", True),  # a count in a sentence
    ],
)
def test_a_number_in_a_comment_has_the_sign_and_the_digits_that_are_printed(comment, output, agree):
    assert agrees(comment, output) is agree


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_accepted_by_their_own_parsers(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = PAGES[page]
    for block in BLOCK.finditer(text):
        lines = block[4].replace("\\\n", " ").splitlines() if block[3] in ("bash", "sh", "console") else []
        for command in re.split(r"&&|;|\n", "\n".join(line.partition("  #")[0].removeprefix("$ ") for line in lines)):
            check_command(command, monkeypatch)
    for span in SPAN.findall(BLOCK.sub("", text)):
        check_command(span, monkeypatch, is_complete=False)


def check_command(command: str, monkeypatch: pytest.MonkeyPatch, is_complete: bool = True) -> None:
    """Fail if a command has an unknown sub-command, option or value, or, if it `is_complete`, lacks an argument."""
    words = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
    problem = problem_of(words, monkeypatch) if words else None
    missing = problem and re.search(r"Missing (parameter|argument)|arguments are required", problem)
    assert not problem or (missing and not is_complete), f"{command}\n{problem}"


def problem_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    program, *arguments = words
    if program.startswith("--"):  # an option that is named in a sentence
        name = program.strip("-").replace("-", "_").partition("=")[0].removeprefix("no_")
        return None if name in WORDS else "no command has this option"
    if program == "make":
        return None if TARGETS.issuperset(arguments) else "no such target"
    if program == "hf-bidir":
        return problem_of_cli(arguments)
    return problem_of_script(words, monkeypatch) if program in ("python", "torchrun", "accelerate") else None


def problem_of_cli(words: list[str]) -> str | None:
    command = typer.main.get_command(app)
    for child in command.commands.values():
        child.callback = lambda **_: None
    try:
        command.main(words, prog_name="hf-bidir", standalone_mode=False)
    except Exception as error:  # of click, or of typer's copy of it
        return str(error) or type(error).__name__
    return None


def problem_of_script(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Run a script up to the end of its parser."""
    index = next((i for i, word in enumerate(words) if word.endswith(".py") or word.startswith(MODULES)), None)
    if index is None:
        return None
    file, parse, said = file_of(words[index]), ArgumentParser.parse_known_args, io.StringIO()

    def parse_only(parser, *arguments):
        _, unknown = parse(parser, *arguments)
        if unknown:
            parser.error(f"unrecognized arguments: {unknown}")
        sys.exit(0)

    if HAS_TRITON:  # imported before a benchmark turns Triton's interpreter off
        importlib.import_module("hf_bidir.kernels.fused_launch")
    with monkeypatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))  # restored afterwards
        patch.setattr(sys, "argv", [str(file), *words[index + 1 :]])
        patch.syspath_prepend(str(file.parent))
        patch.setattr(ArgumentParser, "parse_known_args", parse_only)
        patch.setattr(sys, "stderr", said)
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:
            return said.getvalue() or "refused" if end.code else None
    return "no parser was reached"


def file_of(program: str) -> Path:
    """The file that `python FILE.py` or `python -m MODULE` runs."""
    path = ROOT / (program if program.endswith(".py") else program.replace(".", "/"))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("page", sorted(str(file.relative_to(ROOT)) for file in [*FILES, *RESULTS]))
def test_the_links_and_pictures_of_a_page_exist(page):
    text = BLOCK.sub("", (ROOT / page).read_text("utf-8"))
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page} links to {target}#{anchor}"


def anchors(file: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
