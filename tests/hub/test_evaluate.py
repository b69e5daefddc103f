"""evaluate_checkpoint: the card's numbers reproduced from the files alone."""

import json
import re
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import confusion_matrix
from transformers import AutoImageProcessor, AutoTokenizer, BertForMaskedLM, DataCollatorWithPadding
from transformers.trainer_utils import PredictionOutput
from typer.testing import CliRunner

from hf_bidir import BidirViTForImageClassification
from hf_bidir.checkpoints.convert import convert_checkpoint
from hf_bidir.checkpoints.layer_hooks import without_negatives
from hf_bidir.cli import app
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_digits
from hf_bidir.finetune.record import source_of
from hf_bidir.hub import build_model_card, evaluate_checkpoint
from hf_bidir.hub.predictions import ROW, Predictions
from tests.tiny_models import stock_model
from training.checkpoints import CARDS
from training.text_classification import main as train_on_texts

SMALL = ["--hidden_size", "8", "--num_hidden_layers", "1", "--num_attention_heads", "2", "--intermediate_size", "8"]
BRIEF = ["--max_steps", "3", "--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"]
ROWS = [(f"{'abc'[row % 3]} film {row}", row % 3 + 1) for row in range(30)]  # the classes are 1, 2 and 3


def table(path, rows, text="text"):
    texts, labels = zip(*rows, strict=True)
    Dataset.from_dict({text: texts, "label": labels}).to_parquet(str(path))
    return str(path)


@pytest.fixture(scope="module")
def stars(tmp_path_factory):
    """A finished run on texts, whose labels 1, 2 and 3 have other names, and its test file."""
    place = tmp_path_factory.mktemp("stars")
    file = table(place / "test.parquet", ROWS)
    files = ["--train_file", file, "--validation_file", file, "--test_file", file]
    options = [*files, "--class_names", "low", "mid", "high", "--vocab_size", "60", "--output_dir", str(place / "run")]
    train_on_texts([*options, *SMALL, *BRIEF])
    return place / "run", file


@pytest.fixture
def digits(tmp_path):
    """A copy of a committed checkpoint, which was evaluated and whose run names its data set."""
    return shutil.copytree(CARDS / "digits-tanhmax", tmp_path / "digits-tanhmax")


def results(folder):
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


def evaluate(*words):
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


def test_texts_are_measured_as_the_run_measured_them_whatever_the_batch_size(stars):
    folder, file = stars
    scores = evaluate_checkpoint(folder, file, batch_size=7).scores
    assert scores == {name: results(folder)[f"test_{name}"] for name in scores}
    assert scores.keys() == {"accuracy", "macro_f1", "recall_low", "recall_mid", "recall_high"}


def test_images_are_measured_on_the_data_set_that_the_run_names_also_without_negative_coefficients(digits):
    rows, model = read_digits()["test"], BidirViTForImageClassification.from_pretrained(digits).eval()
    pixels = ImageCollator(AutoImageProcessor.from_pretrained(digits))(rows)["pixel_values"]
    with torch.no_grad(), without_negatives(model):
        predictions = model(pixels).logits.argmax(-1).numpy()
    evaluation = evaluate_checkpoint(digits)
    assert evaluation.data == {"source": "digits", "rows": 360}
    assert evaluation.scores["accuracy"] == results(digits)["test_accuracy"]
    assert evaluation.without_negatives == pytest.approx(np.mean(predictions == np.array(rows["label"])))
    assert evaluation.without_negatives < evaluation.scores["accuracy"] - 0.1
    assert 0 < evaluation.negative_share < 1


def test_labels_mean_what_they_meant_in_training_in_a_file_without_some_of_the_classes(stars, tmp_path):
    recall = evaluate_checkpoint(*stars).scores
    part = table(tmp_path / "part.parquet", [ROWS[row] for row in (1, 2, 4, 5)])
    assert evaluate_checkpoint(stars[0], part).scores["accuracy"] == (recall["recall_mid"] + recall["recall_high"]) / 2


def test_a_label_that_the_model_does_not_know_is_refused_or_left_out_on_request(stars, tmp_path):
    file = table(tmp_path / "other.parquet", [*ROWS[:4], ("odd", 0)])
    with pytest.raises(ValueError, match=r"row 4 \(from 0\): unknown labels 0; known are 1, 2, 3"):
        evaluate_checkpoint(stars[0], file)
    assert evaluate_checkpoint(stars[0], file, drop_bad_rows=True).data["rows"] == 4


def test_a_softmax_checkpoint_and_its_signed_copy_have_equal_scores_and_no_negative_coefficients(stars, tmp_path):
    AutoTokenizer.from_pretrained(stars[0]).save_pretrained(tmp_path / "stock")
    classes = {"id2label": dict(enumerate("123")), "label2id": {"1": 0, "2": 1, "3": 2}}
    stock_model("bert", **classes).save_pretrained(tmp_path / "stock")
    stock = evaluate_checkpoint(tmp_path / "stock", stars[1])
    signed = evaluate_checkpoint(convert_checkpoint(tmp_path / "stock", tmp_path / "signed"), stars[1])
    assert stock.negative_share is signed.negative_share is stock.without_negatives is None
    assert stock.scores == signed.scores


def test_a_language_model_has_a_perplexity_also_without_negative_coefficients(tmp_path):
    (tmp_path / "texts.txt").write_text("This is one of the best films I have seen.\n" * 60)
    evaluation = evaluate_checkpoint(CARDS / "imdb-lm-tanhmax", str(tmp_path / "texts.txt"))
    assert (evaluation.split, evaluation.scores.keys()) == ("validation", {"perplexity"})
    assert evaluation.without_negatives > 1.1 * evaluation.scores["perplexity"]
    with pytest.raises(ValueError, match="got test"):
        evaluate_checkpoint(CARDS / "imdb-lm-tanhmax", str(tmp_path / "texts.txt"), split="test")


def test_predictions_are_a_row_per_usable_example_and_a_page_of_errors_that_escapes_texts(stars, tmp_path):
    bad = [*(('<b>a</b> film, "one"\nmore', label) for label in (1, 2, 3)), (None, 1), *ROWS[:7]]
    file, out = table(tmp_path / "bad.parquet", bad), tmp_path / "new/out.csv"
    told = evaluate(stars[0], "--data", file, "--drop-bad-rows", "--predictions", out)
    assert told.exit_code == 0, told.output
    rows = pd.read_csv(out)
    assert rows["index"].tolist() == [0, 1, 2, *range(4, 11)]
    assert rows["text"].tolist() == [bad[index][0] for index in rows["index"]]
    assert rows["label"].tolist() == [("low", "mid", "high")[bad[index][1] - 1] for index in rows["index"]]
    model, tokenizer = load_checkpoint(stars[0])
    with torch.no_grad():
        probabilities = [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0] for text in rows["text"]]
    assert rows["prediction"].tolist() == [model.config.id2label[int(each.argmax())] for each in probabilities]
    np.testing.assert_allclose(rows["probability"], [float(each.max()) for each in probabilities], atol=1e-5)
    assert (rows["correct"] == (rows["label"] == rows["prediction"])).all()
    wrong = rows[~rows["correct"]].sort_values("probability", ascending=False)
    page = out.with_suffix(".html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>Row (\d+)", page) == [str(index) for index in wrong["index"]]
    assert page.count('class="hf-bidir"') == len(wrong) > 0
    assert "<script" not in page
    assert ("<b>a" in page, "&lt;b&gt;a" in page) == (False, True)
    counts = confusion_matrix(rows["label"], rows["prediction"], labels=["low", "mid", "high"])
    printed = told.stdout.partition("label ")[2].splitlines()[1:4]
    assert [[int(word) for word in line.split()[1:]] for line in printed] == counts.tolist()
    assert {path.name for path in out.parent.iterdir()} == {"out.csv", "out.html"}


def test_images_have_the_names_of_their_files_and_errors_that_cannot_be_explained_are_listed(
    digits, tmp_path, monkeypatch
):
    for number, row in enumerate(read_digits()["test"].select(range(6))):
        wrong = tmp_path / "test" / str((row["label"] + 1) % 10)
        wrong.mkdir(parents=True, exist_ok=True)
        row["image"].save(wrong / f"{number}.png")
    monkeypatch.setitem(sys.modules, "hf_bidir.explain.api", None)
    told = evaluate(digits, "--data", tmp_path / "test", "--predictions", tmp_path / "out.csv")
    assert told.exit_code == 0, told.output
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    for path in pd.read_csv(tmp_path / "out.csv")["image"]:
        assert path in page
    assert "It is not explained: import of hf_bidir.explain.api halted" in page


def test_an_error_that_cannot_be_explained_leaves_the_explanations_of_the_others(stars, tmp_path):
    model, tokenizer = load_checkpoint(stars[0])
    examples = Dataset.from_dict({"text": ["a film", "", "b film"], ROW: [0, 1, 2]})
    wrong = PredictionOutput((np.array([0, 0, 0]), np.array([0.9, 0.8, 0.7])), np.array([1, 1, 1]), {})
    predictions = Predictions(examples, wrong, model, DataCollatorWithPadding(tokenizer))
    page = predictions.write(tmp_path / "out.csv").read_text(encoding="utf-8")
    explained = [part.count('class="hf-bidir"') for part in page.split("<h3>")[1:]]
    assert (explained, page.count("It is not explained: expected a text")) == ([1, 0, 1], 1)


def test_classes_of_one_name_are_counted_once_and_without_errors_none_are_listed():
    model = stock_model("bert", id2label={0: "crane", 1: "dog", 2: "crane"}, label2id={"dog": 1, "crane": 2})
    examples = Dataset.from_dict({"text": ["a", "b"], ROW: [0, 1]})
    right = PredictionOutput((np.array([0, 1]), np.array([0.9, 0.8])), np.array([0, 1]), {})
    predictions = Predictions(examples, right, model, None)
    assert predictions.confusion.to_numpy().tolist() == [[1, 0], [0, 1]]
    assert predictions.summary().endswith("No errors.")


def test_predictions_of_a_language_model_or_into_another_file_are_one_error(digits):
    for words, message in (
        ([CARDS / "imdb-lm-tanhmax", "--predictions", "out.csv"], "is a language model"),
        ([digits, "--predictions", "out.html"], "ends with .csv"),
    ):
        told = evaluate(*words)
        assert (told.exit_code, message in told.stderr) == (2, True), told.stderr


def test_what_cannot_be_evaluated_is_refused(stars, tmp_path):
    with pytest.raises(ValueError, match=r"test\.parquet.*--data"):
        evaluate_checkpoint(stars[0])
    with pytest.raises(ValueError, match=r"train, validation, test .*got tests"):
        evaluate_checkpoint(*stars, split="tests")
    names = {"id2label": {0: "crane", 1: "dog", 2: "crane"}, "label2id": {"dog": 1, "crane": 2}}
    stock_model("bert", **names).save_pretrained(tmp_path / "cranes")
    with pytest.raises(ValueError, match=r"'crane' \(0, 2\)"):
        evaluate_checkpoint(tmp_path / "cranes", stars[1])
    BertForMaskedLM(stock_model("bert").config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BertForMaskedLM"):
        evaluate_checkpoint(tmp_path, "digits")


def test_the_command_prints_the_recorded_number_beside_the_new_one_and_fails_when_they_differ(stars, tmp_path):
    folder, file = shutil.copytree(stars[0], tmp_path / "run"), stars[1]
    accuracy = results(folder)["test_accuracy"]
    told = evaluate(folder, "--data", file)
    assert (told.exit_code, f"{accuracy:.4f}     {accuracy:.4f}" in told.stdout) == (0, True), told.output
    assert "recall of low" in told.stdout
    for claimed, code in ((accuracy + 0.0005, 0), (accuracy - 0.002, 1)):
        (folder / "all_results.json").write_text(json.dumps(results(folder) | {"test_accuracy": claimed}))
        told = evaluate(folder, "--data", file)
        assert (told.exit_code, f" {claimed:.4f}" in told.stdout) == (code, True), told.output


def test_other_data_than_the_cards_is_no_difference_and_is_never_saved(stars, tmp_path):
    other = table(tmp_path / "other.parquet", ROWS[:3])
    told = evaluate(stars[0], "--data", other)
    assert (told.exit_code, "nothing was compared" in told.stdout) == (0, True), told.output
    told = evaluate(stars[0], "--data", other, "--save")
    assert (told.exit_code, "Nothing was saved" in told.stderr) == (2, True), told.output
    assert not (stars[0] / "evaluation.json").exists()


def test_a_folder_of_images_is_recognised_wherever_it_is(digits, tmp_path):
    for number, row in enumerate(read_digits()["test"].select(range(12))):
        (tmp_path / "test" / str(row["label"])).mkdir(parents=True, exist_ok=True)
        row["image"].save(tmp_path / "test" / str(row["label"]) / f"{number}.png")
    run = json.loads((digits / "run.json").read_text())
    run["data"]["test"] = source_of([tmp_path / "test"]) | {"rows": 12}
    (digits / "run.json").write_text(json.dumps(run))
    told = evaluate(digits, "--data", shutil.copytree(tmp_path / "test", tmp_path / "copy"))
    assert "recorded" in told.stdout, told.output


def test_a_saved_evaluation_makes_the_card_say_verified(stars):
    folder, file = stars
    assert "they were not verified" in build_model_card(folder).text
    told = evaluate(folder, "--data", file, "--save")
    assert told.exit_code == 0, told.output
    card = (folder / "README.md").read_text(encoding="utf-8")
    (folder / "evaluation.json").unlink()
    assert "Verified: `hf-bidir evaluate` measured the same numbers from the saved files." in card


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("scores", {"accuracy": 0.001}),
        ("scores", {"recall_3": 0.123}),
        ("files", {"model.safetensors": "others"}),
        ("data", {"rows": 2}),
        ("data", {"source": "other"}),
    ],
)
def test_an_evaluation_of_other_files_other_data_or_with_other_numbers_verifies_nothing(digits, part, change):
    assert "Verified: " in build_model_card(digits).text
    saved = json.loads((digits / "evaluation.json").read_text())
    saved[part] |= change
    (digits / "evaluation.json").write_text(json.dumps(saved))
    assert "they were not verified" in build_model_card(digits).text


def test_errors_of_the_command_name_options_that_it_understands(stars, tmp_path):
    renamed = table(tmp_path / "renamed.parquet", ROWS, "review")
    for words, message in (
        ([stars[0], "--data", renamed], "--text_column"),
        ([stars[0], "--revision", "v1"], "leave out the revision v1"),
        (["nobody/nothing-at-all", "--data", "x.parquet"], "nobody/nothing-at-all is neither"),
        (["nobody/nothing-at-all", "--save"], "--save needs a local folder"),
    ):
        told = evaluate(*words)
        assert (told.exit_code, message in told.stderr) == (2, True), told.stderr
    assert evaluate(stars[0], "--data", renamed, "--text_column", "review").exit_code == 0
