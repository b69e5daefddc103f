"""`hf-bidir explain`: printed summary, page, JSON and errors."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app
from hf_bidir.explain import Explanation, explain, load_checkpoint

TEXT = "a unbelievably good film !"
DIGITS = Path(__file__).parents[2] / "model_cards/digits-tanhmax"


def run(*words, stdin=None):
    return CliRunner().invoke(app, ["explain", *(str(word) for word in words)], input=stdin)


def test_it_writes_a_page_and_prints_signed_tokens(checkpoint, tmp_path):
    result = run(checkpoint, f"{TEXT} <script>alert(1)</script>", "--details", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert re.match(r"(positive|negative), \d+\.\d % \(y = ", result.stdout)
    assert "\x1b" not in result.stdout
    assert "Loading" in result.stderr
    assert re.search(r"[+−]\d\S*  unbelievably", result.output)
    assert f"Saved: {tmp_path}" in result.output
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert ("&lt;script&gt;" in page, "<script" in page) == (True, False)
    assert "Contribution of each layer and head" in page.partition("<details>")[2]


def test_json_alone_is_printed_where_it_is_asked_for(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(checkpoint, TEXT, "--json")
    assert str(Explanation.from_json(result.stdout)) == str(explain(*load_checkpoint(checkpoint), TEXT))
    assert not (tmp_path / "explanation").exists()


def test_a_text_is_read_from_a_file_or_from_standard_input(checkpoint, tmp_path):
    (tmp_path / "review.txt").write_text(f"{TEXT}\n", encoding="utf-8-sig")
    for file, stdin in ((tmp_path / "review.txt", None), ("-", f"{TEXT}\r\n")):
        result = run(checkpoint, "--file", file, "--json", stdin=stdin)
        assert json.loads(result.stdout)["example"]["text"] == TEXT


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("{folder}", TEXT, "--target", "postive"), 'Did you mean "positive"?'),
        (("{folder}/absent", TEXT), "expected a folder with config.json"),
        (("{folder}", TEXT, "--output", "{folder}/config.json"), "config.json"),
        (("{digits}", "{folder}/config.json"), "cannot be read as one"),
        (("{folder}", "{folder}/config.json"), "config.json; BidirBertForSequenceClassification is a model of texts"),
        (
            ("{folder}", "absent.PNG"),
            "got the name of a file that does not exist, absent.PNG; BidirBertForSequenceClassification is",
        ),
        (
            ("{folder}", "{folder}/model.safetensors"),
            "model.safetensors; BidirBertForSequenceClassification is a model of",
        ),
        (("{folder}", "{folder}/texts.json", "--chat"), "texts.json; BidirBertForSequenceClassification is a model of"),
        (("{folder}", TEXT, "--chat"), "has no chat template"),
        (("{folder}",), "either a text (or the path of an image or a table) or --file"),
        (("{folder}", TEXT, "--file", "{folder}/config.json"), "or --file with a text."),
        (("{folder}", "--file", "{folder}/absent.txt"), "expected a text in UTF-8 in "),
        (("{folder}", "--file", "{folder}/latin-1.txt"), "expected a text in UTF-8 in "),
        (("{folder}", TEXT, "--text", "a", "--text", "b"), "(one --text)"),
        (("{digits}", DIGITS / "example.png", "--text", "a"), "--text"),
        (("{folder}", TEXT, "--position", "2"), "leave out position (--position)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path, words, named):
    (checkpoint / "texts.json").write_text('["hi"]', encoding="utf-8")
    (checkpoint / "latin-1.txt").write_text("café", encoding="latin-1")
    source, *others = (str(word).format(folder=checkpoint, digits=DIGITS) for word in words)
    result = run(source, "--output", tmp_path / "out", *others)
    *_, last = result.output.splitlines()
    assert (result.exit_code, last.startswith("error: "), named in last) == (2, True, True), result.output
    assert not (tmp_path / "out").exists()
