"""`hf-bidir explain`: printed summary, page and errors."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir.cli import app
from hf_bidir.explain import read_text, token_scores
from tests.explain.conftest import NAMES, bert, explained, tokenizer
from tests.processes import run_python

TEXT = "a unbelievably good film !"
DIGITS = Path(__file__).parents[2] / "model_cards/digits-tanhmax"


def run(*words):
    return CliRunner().invoke(app, ["explain", *(str(word) for word in words)])


def test_it_writes_a_page_and_prints_signed_tokens(checkpoint, tmp_path):
    result = run(checkpoint, f"{TEXT} <script>alert(1)</script>", "--figure", "heads", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert re.search(r"Prediction: (positive|negative) \(\d+\.\d%\)", result.output)
    assert re.search(r"[+−]\d\S*  unbelievably", result.output)
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert ("&lt;script&gt;" in page, "<script" in page) == (True, False)
    assert ("Contribution of each layer and head" in page, "Coefficients of layer" in page) == (True, False)


def test_a_chosen_method_of_a_stock_checkpoint_is_named_without_the_default(stock_checkpoint, tmp_path):
    result = run(stock_checkpoint, TEXT, "--method", "erasure", "--output", tmp_path / "out")
    assert "renormalised" in result.output
    assert "is the default" not in result.output


def test_the_scores_of_a_loaded_checkpoint_are_those_of_the_method_by_word(checkpoint):
    explanation = explained(checkpoint, TEXT, target="negative", layer=1, head=0)
    example = read_text(tokenizer(), TEXT, 12)
    scores = token_scores(bert(**NAMES), example.inputs, target=0, layer=1, head=0)
    torch.testing.assert_close(explanation.scores, example.by_token(scores[0]))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("{folder}", ""), "''"),
        (("{folder}", TEXT, "--target", "postive"), 'Did you mean "positive"?'),
        (("{folder}", TEXT, "--method", "rolout"), 'Did you mean "rollout"?'),
        (("{folder}", TEXT, "--figure", "head"), "got 'head'"),
        (("{folder}", TEXT, "--layer", "7"), "layer 7 does not exist; choose 0 to 2"),
        (("{folder}/absent", TEXT), "expected a folder with config.json"),
        (("{folder}", TEXT, "--output", "{folder}/config.json"), "config.json"),
        (("{digits}", "{folder}/config.json"), "cannot be read as one"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path, words, named):
    source, *others = (word.format(folder=checkpoint, digits=DIGITS) for word in words)
    result = run(source, "--output", tmp_path / "out", *others)
    *_, last = result.output.splitlines()
    assert (result.exit_code, last.startswith("error: "), named in last) == (2, True, True), result.output
    assert not (tmp_path / "out").exists()


def test_the_default_explanation_of_a_text_imports_few_files_and_no_library_for_drawing():
    run_python(FEW_FILES)


FEW_FILES = """
import sys
import hf_bidir.explain
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "film"]
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(words)}
model = hf_bidir.signed(BertForSequenceClassification(BertConfig(**shape)), negative_mass=0.0)
tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
hf_bidir.explain.explain(model, tokenizer, "a good film")
files = [name for name in sys.modules if name.partition(".")[0] == "hf_bidir"]
assert len(files) <= 38, sorted(files)
assert not {"matplotlib", "captum"} & sys.modules.keys()
"""
