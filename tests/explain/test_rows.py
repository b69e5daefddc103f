"""`hf-bidir explain MODEL TABLE`: one explanation per row, with the command itself."""

import csv
import re
import sys

import pandas as pd
import pytest
from transformers import ViTImageProcessor
from typer.testing import CliRunner

from hf_bidir.cli import app, rows
from hf_bidir.explain import Explanation, explain, load_checkpoint
from tests.explain.conftest import SHAPE, family, picture, saved, tokenizer, vit
from tests.processes import ROOT, run_python, together

TEXTS = ["a unbelievably good film", "bad", "a film !", "good bad good", "a good film", "unbelievably bad !"]
HEADER = "row,text"
MODULE = "import runpy; runpy.run_module('hf_bidir', run_name='__main__', alter_sys=True)"


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(rows, "PART", 2)


def run(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words)])


def written(path, texts=TEXTS):
    """A csv file with a column of numbers and one of texts."""
    lines = [f'{number},"{text}"' for number, text in enumerate(texts)]
    path.write_text("\n".join([HEADER, *lines]), encoding="utf-8")
    return path


def read(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_each_row_of_a_table_gets_the_explanation_of_its_text(checkpoint, tmp_path):
    done = run(checkpoint, written(tmp_path / "in.csv"), "--target", "positive", "--output", tmp_path / "out.csv")
    assert (done.exit_code, done.stdout) == (0, f"Saved: {tmp_path / 'out.csv'}. Rows with an error: 0\n")
    found = read(tmp_path / "out.csv")
    assert [(row["row"], row["text"]) for row in found] == [(str(number), text) for number, text in enumerate(TEXTS)]
    for row in found:
        alone = explain(*load_checkpoint(checkpoint), row["text"], "attnlrp", target="positive", verdict=False)
        stored = Explanation.from_json(row["explanation"])
        assert stored.scores.tolist() == pytest.approx(alone.scores.tolist(), rel=1e-3, abs=1e-5)
        assert (row["prediction"], row["target_name"], row["method"]) == (alone.prediction, "positive", "attnlrp")
        assert float(row["value"]) == pytest.approx(alone.value, rel=1e-3)
        assert row["explained"] == stored.explained
        assert row["error"] == ""
    assert {path.name for path in tmp_path.iterdir()} == {"signed", "in.csv", "out.csv"}


def test_the_strongest_words_are_followed_by_their_scores_as_many_as_are_asked_for(checkpoint, tmp_path):
    source = written(tmp_path / "in.csv", TEXTS[:1])
    assert run(checkpoint, source, "--output", tmp_path / "out.csv", "--top", 2).exit_code == 0
    (row,) = read(tmp_path / "out.csv")
    words = [re.fullmatch(r"(\w+) [+−]\d\S*", word)[1] for word in row["strongest"].split("; ")]
    assert words == [word for word, _ in Explanation.from_json(row["explanation"]).listing.strongest(2)]


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_tables_of_other_formats_are_read(checkpoint, tmp_path, ending):
    table, source = pd.DataFrame({"review": TEXTS[:2], "stars": [5, None]}), tmp_path / f"in.{ending}"
    match ending:
        case "tsv":
            table.to_csv(source, sep="\t")
        case "jsonl":
            table.to_json(source, orient="records", lines=True)
        case "parquet":
            table.to_parquet(source)
    assert run(checkpoint, source, "--column", "review", "--output", tmp_path / "out.csv").exit_code == 0
    found = read(tmp_path / "out.csv")
    assert [row["review"] for row in found] == TEXTS[:2]
    assert Explanation.from_json(found[1]["explanation"]).tokens == ["[CLS]", "bad", "[SEP]"]


def test_a_row_that_cannot_be_explained_is_named_and_the_run_goes_on(checkpoint, tmp_path):
    source = written(tmp_path / "in.csv", ["good film", "", "bad"])
    done = run(checkpoint, source, "--output", tmp_path / "out.csv")
    assert (done.exit_code, done.stdout) == (1, f"Saved: {tmp_path / 'out.csv'}. Rows with an error: 1\n")
    assert "row 2: expected a text with at least one word, got ''." in done.stderr
    first, empty, last = read(tmp_path / "out.csv")
    assert (bool(first["value"]), bool(empty["value"]), bool(last["value"])) == (True, False, True)
    assert empty["error"] == "expected a text with at least one word, got ''."


def test_an_interrupted_run_explains_the_remaining_rows(checkpoint, tmp_path, monkeypatch):
    source, whole, output = written(tmp_path / "in.csv"), tmp_path / "whole.csv", tmp_path / "out.csv"
    assert run(checkpoint, source, "--output", whole).exit_code == 0
    outcomes, calls = rows.outcomes, []

    def stopped(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return outcomes(*arguments, **options)

    monkeypatch.setattr(rows, "outcomes", stopped)
    interrupted = run(checkpoint, source, "--output", output)
    assert (interrupted.exit_code, output.exists()) == (130, False)
    assert interrupted.stderr.splitlines()[-1].startswith("interrupted; run the same command again to continue")
    assert run(checkpoint, source, "--output", output).exit_code == 0
    assert len(calls) == 4  # three parts, one of them twice
    assert output.read_bytes() == whole.read_bytes()


def test_parts_of_another_request_are_not_used(checkpoint, tmp_path, monkeypatch):
    source, output = written(tmp_path / "in.csv"), tmp_path / "out.csv"
    monkeypatch.setattr(rows, "_join", lambda *_: sys.exit(9))
    assert run(checkpoint, source, "--output", output).exit_code == 9
    monkeypatch.undo()
    assert run(checkpoint, source, "--output", output, "--method", "erasure").exit_code == 0
    assert {row["method"] for row in read(output)} == {"erasure"}


def test_two_processes_write_the_file_of_one(checkpoint, tmp_path):
    source = written(tmp_path / "in.csv", TEXTS * 30)
    script = tmp_path / "explain.py"
    script.write_text(MODULE)
    command = ["explain", checkpoint, source, "--output"]
    run_python(MODULE, *command, tmp_path / "alone.csv", PYTHONPATH=str(ROOT))
    together(script, *command, tmp_path / "together.csv")
    assert (tmp_path / "together.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


def test_a_table_of_images_is_explained_by_patch(tmp_path):
    folder = saved(vit(), ViTImageProcessor(size={"height": 8, "width": 8}), tmp_path / "vit")
    picture().save(tmp_path / "noise.png")
    source = written(tmp_path / "in.csv", [tmp_path / "noise.png", tmp_path / "absent.png"])
    done = run(folder, source, "--output", tmp_path / "out.csv")
    found, absent = read(tmp_path / "out.csv")
    assert Explanation.from_json(found["explanation"]).example.grid == [4, 4]
    assert (done.exit_code, "absent.png" in absent["error"]) == (1, True)


def test_two_columns_are_pairs(checkpoint, tmp_path):
    (tmp_path / "in.csv").write_text("question,context\na good film,bad !\n")
    columns = ["--column", "question", "--column", "context"]
    assert run(checkpoint, tmp_path / "in.csv", *columns, "--output", tmp_path / "out.csv").exit_code == 0
    (row,) = read(tmp_path / "out.csv")
    assert Explanation.from_json(row["explanation"]).example.texts == {"text 1": 0, "text 2": 5}


def test_a_table_that_was_written_stays(checkpoint, tmp_path):
    source, output = written(tmp_path / "in.csv"), tmp_path / "out.csv"
    output.write_text("mine")
    for target in (output, source):
        refused = run(checkpoint, source, "--output", target)
        assert (refused.exit_code, f"{target} exists. Choose another" in refused.stderr) == (2, True)
    assert output.read_text() == "mine"


def test_a_row_of_a_tagger_has_a_line_for_each_word_with_a_label(tmp_path):
    labels = {0: "PER", 1: "PER", 2: "LOC"}
    model = family("BertForTokenClassification", **SHAPE, id2label=labels, label2id={"PER": 0, "LOC": 2})
    folder = saved(model, tokenizer(), tmp_path / "tagger")
    source = written(tmp_path / "in.csv", ["good bad"])
    assert run(folder, source, "--output", tmp_path / "out.csv").exit_code == 0
    (row,) = read(tmp_path / "out.csv")
    stored = Explanation.from_json(row["explanation"])
    assert (row["prediction"].splitlines(), row["explained"]) == (stored.written, stored.explained)
    assert stored.example.places == [None, [0, 4], [5, 8], None]
    (scores,) = stored.scores.values()
    words = [[f"{word} {number}" for word, number in stored.row_of(of_row).strongest()] for of_row in scores]
    assert [line.split("; ") for line in row["strongest"].splitlines()] == words


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("in.csv", "--column", "review"), "in.csv has no column review (--column); its columns are row, text."),
        (("in.csv", "--output", "out"), "or for a table --output FILE.csv"),
        (("in.csv", "--json"), "leave out --file, --text, --chat and --json"),
        (("absent.csv",), "expected a data file at absent.csv; there is no such file"),
        (("in.csv", "--new-tokens", "2"), "new_tokens is for models that generate text"),
        (("in.csv", "--target", "postive"), 'Did you mean "positive"?'),
        (("old.csv",), "old.csv has the columns value, which explanations add"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "in.csv")
    (tmp_path / "old.csv").write_text("text,value\nbad,1\n")
    done = run(checkpoint, *words, *(() if "--output" in words else ("--output", "out.csv")))
    *_, last = done.output.splitlines()
    assert (done.exit_code, last.startswith("error: "), named in last) == (2, True, True), done.output
