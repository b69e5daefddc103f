"""evaluate_checkpoint: the card's numbers reproduced from the files alone."""

import json
import shutil

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)
from typer.testing import CliRunner

from hf_bidir import BidirViTForImageClassification
from hf_bidir.checkpoints.convert import convert_checkpoint
from hf_bidir.checkpoints.layer_hooks import without_negatives
from hf_bidir.cli import app
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.image_files import folder_digest, read_digits
from hf_bidir.hub import build_model_card, evaluate_checkpoint
from hf_bidir.hub.evaluation import claimed_scores, is_of_the_cards_data
from tests.training.checkpoints_of_others import checkpoint_of
from training.checkpoints import CARDS
from training.image_classification import main as train_on_images
from training.text_classification import main as train_on_texts

ROWS = [(f"{word} film number {number}", label) for number in range(12) for word, label in (("good", 1), ("bad", 0))]
SMALL = ["--hidden_size", "8", "--num_hidden_layers", "1", "--num_attention_heads", "2", "--intermediate_size", "8"]
BRIEF = ["--max_steps", "3", "--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"]


def table(path, rows=ROWS, **names):
    texts, labels = zip(*rows, strict=True)
    named = [names.get(f"label_{label}", label) for label in labels]
    Dataset.from_dict({"text": texts, "label": named}).to_parquet(str(path))
    return str(path)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A finished run on texts, and its test file."""
    place = tmp_path_factory.mktemp("texts")
    train, test = table(place / "train.parquet"), table(place / "test.parquet", ROWS[:7])
    files = ["--train_file", train, "--validation_file", test, "--test_file", test, "--class_names", "bad", "good"]
    train_on_texts([*files, *SMALL, *BRIEF, "--vocab_size", "60", "--output_dir", str(place / "run")])
    return place / "run", test


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "run"
    train_on_images(["--dataset_name", "digits", *SMALL, *BRIEF, "--patch_size", "4", "--output_dir", str(folder)])
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A finished run on folders of images, and its test folder."""
    place, pixels = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for number in range(24):
        for name in ("train", "test"):
            folder = place / name / ("day", "night")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.integers(0, 256, (8, 8), np.uint8)).save(folder / f"test-{number}.png")
    files = ["--train_file", str(place / "train"), "--test_file", str(place / "test")]
    train_on_images([*files, *SMALL, *BRIEF, "--patch_size", "4", "--output_dir", str(place / "run")])
    return place / "run", place / "test"


def results(folder):
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


def test_texts_are_measured_as_the_run_measured_them(texts):
    folder, test = texts
    evaluation = evaluate_checkpoint(folder, test)
    assert evaluation.scores == {name: results(folder)[f"test_{name}"] for name in evaluation.scores}
    assert {"accuracy", "macro_f1", "recall_bad", "recall_good"} == evaluation.scores.keys()
    assert is_of_the_cards_data(folder, evaluation)


def test_images_are_measured_on_the_data_set_that_the_run_names(digits):
    evaluation = evaluate_checkpoint(digits)
    assert evaluation.scores["accuracy"] == results(digits)["test_accuracy"]
    assert evaluation.data == {"source": "digits", "rows": 360}


def test_no_number_depends_on_the_batch_size(digits):
    assert evaluate_checkpoint(digits, batch_size=7).scores == evaluate_checkpoint(digits, batch_size=100).scores


def test_the_accuracy_without_negative_coefficients_is_that_of_the_model_without_them():
    folder, rows = CARDS / "digits-tanhmax", read_digits()["test"]
    model = BidirViTForImageClassification.from_pretrained(folder).eval()
    pixels = ImageCollator(AutoImageProcessor.from_pretrained(folder))(rows)["pixel_values"]
    with torch.no_grad(), without_negatives(model):
        predictions = model(pixels).logits.argmax(-1).numpy()
    evaluation = evaluate_checkpoint(folder)
    assert evaluation.accuracy_without_negatives == pytest.approx(np.mean(predictions == np.array(rows["label"])))
    assert evaluation.accuracy_without_negatives < evaluation.scores["accuracy"] - 0.1
    assert 0 < evaluation.negative_share < 1


def test_labels_may_be_the_names_of_the_classes(texts, tmp_path):
    folder, test = texts
    named = table(
        tmp_path / "named.parquet", ROWS[:7], label_0="bad", label_1="good"
    )  # of one class more than the other
    assert evaluate_checkpoint(folder, named).scores == evaluate_checkpoint(folder, test).scores


def test_a_label_that_the_model_does_not_know_is_refused(texts, tmp_path):
    with pytest.raises(ValueError, match=r"row 4 \(from 0\): labels that the model lacks: '7' \(1\); it has '0', '1'"):
        evaluate_checkpoint(texts[0], table(tmp_path / "other.parquet", [*ROWS[:4], ("odd", 7)]))
    rows = [("a good film", "good"), ("an odd film", "odd")]
    with pytest.raises(ValueError, match=r"row 1 \(from 0\): .* lacks: 'odd' \(1\); it has 'bad', 'good'"):
        evaluate_checkpoint(texts[0], table(tmp_path / "names.parquet", rows))


@pytest.fixture(scope="module")
def stars(tmp_path_factory):
    """A finished run whose labels 1, 2 and 3 have other names, and its test file."""
    place = tmp_path_factory.mktemp("stars")
    file = table(place / "train.parquet", [(f"{'abc'[row % 3]} film {row}", row % 3 + 1) for row in range(30)])
    options = [
        "--train_file",
        file,
        "--validation_file",
        file,
        "--test_file",
        file,
        "--class_names",
        "low",
        "mid",
        "high",
    ]
    train_on_texts([*options, *SMALL, *BRIEF, "--vocab_size", "60", "--output_dir", str(place / "run")])
    return place / "run", file


def test_labels_mean_what_they_meant_in_training_whatever_the_names_of_the_classes_are(stars, tmp_path):
    folder, file = stars
    assert evaluate_checkpoint(folder, file).scores["accuracy"] == results(folder)["test_accuracy"]
    part = table(tmp_path / "part.parquet", [(f"{'abc'[row % 3]} film {row}", row % 3 + 1) for row in (1, 2, 4, 5)])
    recall = evaluate_checkpoint(folder, file).scores
    assert evaluate_checkpoint(folder, part).scores["accuracy"] == (recall["recall_mid"] + recall["recall_high"]) / 2


def test_an_index_is_no_label_where_the_record_says_what_the_labels_are(stars, tmp_path):
    with pytest.raises(ValueError, match=r"labels that the model lacks: '0' \(1\); it has '1', '2', '3'"):
        evaluate_checkpoint(stars[0], table(tmp_path / "indices.parquet", [("a film", 0)]))


def test_rows_of_unknown_classes_are_left_out_on_request(stars, tmp_path):
    file = table(tmp_path / "more.parquet", [("a film", 1), ("a film", 4)])
    assert evaluate_checkpoint(stars[0], file, drop_bad_rows=True).data["rows"] == 1


def test_a_folder_without_weights_is_refused():
    with pytest.raises(FileNotFoundError, match="has no weights"):
        evaluate_checkpoint(CARDS / "sst2-minilm-softmax", "x.csv")


def test_only_the_data_of_the_card_may_be_saved_beside_it(texts, tmp_path):
    other = table(tmp_path / "other.parquet", ROWS[:3])
    told = CliRunner().invoke(app, ["evaluate", str(texts[0]), "--data", other, "--save"])
    assert (told.exit_code, "Nothing was saved" in told.stderr) == (2, True), told.output
    assert not (texts[0] / "evaluation.json").exists()


def test_a_run_on_files_asks_for_the_file(texts):
    with pytest.raises(ValueError, match=r"name the data with --data; the run read test\.parquet"):
        evaluate_checkpoint(texts[0])


def test_a_softmax_checkpoint_has_no_negative_coefficients(texts, tmp_path):
    config = BertConfig(
        vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "stock")
    AutoTokenizer.from_pretrained(texts[0]).save_pretrained(tmp_path / "stock")
    stock = evaluate_checkpoint(tmp_path / "stock", texts[1])
    signed = evaluate_checkpoint(convert_checkpoint(tmp_path / "stock", tmp_path / "signed"), texts[1])
    assert stock.scores == signed.scores
    assert stock.negative_share is signed.negative_share is None


@pytest.mark.parametrize("family", ["Roberta", "GPT2"])
def test_any_text_classifier_is_measured_like_its_stock_model(family, texts, tmp_path):
    source = checkpoint_of(family, tmp_path / "stock", "ForSequenceClassification", num_labels=2)
    stock = evaluate_checkpoint(source, texts[1])
    signed = evaluate_checkpoint(convert_checkpoint(source, tmp_path / "signed", negative_mass=0.0), texts[1])
    assert stock.scores == signed.scores
    full = evaluate_checkpoint(convert_checkpoint(source, tmp_path / "full", negative_mass=1.0), texts[1])
    assert 0 < full.negative_share < 1


def test_a_model_that_is_no_classifier_is_refused(tmp_path):
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="is a BertForMaskedLM; only classifiers and causal language models are evaluated"
    ):
        evaluate_checkpoint(tmp_path, "digits")


def test_a_saved_evaluation_makes_the_card_say_verified_and_another_number_does_not(digits):
    assert "nobody has verified them" in build_model_card(digits).text
    evaluation = evaluate_checkpoint(digits)
    evaluation.save(digits)
    card = build_model_card(digits)
    assert "Verified: `hf-bidir evaluate` measured the same numbers from the saved files." in card.text
    assert f"{100 * evaluation.negative_share:.1f} % are negative" in card.text


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["scores"].update(accuracy=0.001),
        lambda saved: saved["scores"].update(recall_3=0.123),
        lambda saved: saved["files"].update({"model.safetensors": "others"}),
        lambda saved: saved["files"].update({"config.json": "another"}),
        lambda saved: saved["data"].update(rows=2),
        lambda saved: saved["data"].update(source="other"),
    ],
)
def test_an_evaluation_of_other_files_other_data_or_with_other_numbers_verifies_nothing(digits, change):
    evaluate_checkpoint(digits).save(digits)
    saved = json.loads((digits / "evaluation.json").read_text())
    change(saved)
    (digits / "evaluation.json").write_text(json.dumps(saved))
    assert "nobody has verified them" in build_model_card(digits).text


def test_numbers_of_another_split_are_not_compared_with_the_cards(digits):
    told = CliRunner().invoke(app, ["evaluate", str(digits), "--split", "validation"])
    assert (told.exit_code, "nothing was compared" in told.stdout) == (0, True), told.output


def test_a_revision_of_a_folder_is_refused(digits):
    told = CliRunner().invoke(app, ["evaluate", str(digits), "--revision", "v1"])
    assert (told.exit_code, "is a folder and has no revisions" in told.stderr) == (2, True), told.output


def test_the_command_prints_the_cards_number_beside_the_fresh_one_and_fails_when_they_differ(texts):
    folder, test = texts
    accuracy = claimed_scores(folder)["accuracy"]
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", test])
    assert (told.exit_code, f"{accuracy:.4f}     {accuracy:.4f}" in told.stdout) == (0, True), told.output
    assert "–" not in told.stdout, told.output  # the table of the card has the recall of each class
    readme = folder / "README.md"
    card = readme.read_text(encoding="utf-8")
    readme.write_text(card.replace(f"value: {accuracy}", "value: 0.987"), encoding="utf-8")
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", test])
    readme.write_text(card, encoding="utf-8")
    assert (told.exit_code, "0.9870" in told.stdout) == (1, True)


def test_other_data_than_the_cards_is_no_difference_and_is_named(texts, tmp_path):
    folder, _ = texts
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", table(tmp_path / "other.parquet", ROWS[:3])])
    first = told.stdout.splitlines()[0]
    assert (told.exit_code, "measured on other data; nothing is compared" in first) == (0, True), told.output
    assert "difference" not in told.stdout


def test_errors_of_the_command_name_its_own_options(texts, photographs, tmp_path):
    unnamed = table(tmp_path / "reviews.parquet")
    renamed = str(tmp_path / "renamed.parquet")
    Dataset.from_parquet(unnamed, cache_dir=str(tmp_path)).rename_column("text", "review").to_parquet(renamed)
    told = CliRunner().invoke(app, ["evaluate", str(texts[0]), "--data", renamed])
    assert (told.exit_code, "Choose one with --column." in told.stderr) == (2, True), told.output
    folder, test = photographs
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(test.parent)])
    assert (told.exit_code, f"such as --data {test}" in told.stderr) == (2, True), told.output


def test_a_name_that_nobody_has_is_one_line():
    told = CliRunner().invoke(app, ["evaluate", "nobody/nothing-at-all", "--data", "x.parquet"])
    assert (told.exit_code, len(told.stderr.strip().splitlines())) == (2, 1), told.stderr
    assert "neither a checkpoint folder nor a model" in told.stderr


def test_a_folder_of_images_is_known_again_wherever_it_is_and_another_is_not(photographs, tmp_path):
    folder, test = photographs
    copied = shutil.copytree(test, tmp_path / "copy")
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(copied)])
    assert (told.exit_code, "other data" in told.stdout) == (0, False), told.output
    readme = folder / "README.md"
    card = readme.read_text(encoding="utf-8")
    accuracy = claimed_scores(folder)["accuracy"]
    readme.write_text(card.replace(f"value: {accuracy}", "value: 0.987"), encoding="utf-8")
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(copied)])
    assert (told.exit_code, "0.9870" in told.stdout) == (1, True), told.output
    (copied / "day/test-0.png").rename(copied / "night/test-0.png")
    told = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(copied)])
    readme.write_text(card, encoding="utf-8")
    assert (told.exit_code, "measured on other data; nothing" in told.stdout) == (0, True), told.output


def test_the_record_and_the_card_have_the_digest_of_a_folder(photographs):
    folder, test = photographs
    recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))["data"]["test"]
    assert recorded == {"source": f"{test.parent.name}/test", "sha256": folder_digest(test), "rows": 24}
    assert f"{recorded['source']} (sha256 `{recorded['sha256'][:12]}…`)" in build_model_card(folder).text
