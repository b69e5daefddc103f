"""build_model_card: the card has exactly the facts in the files of the run."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import BertTokenizer
from typer.testing import CliRunner

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.hub import build_model_card, evaluate_checkpoint
from hf_bidir.hub.known_data import FILES, IMDB, SST2
from hf_bidir.hub.model_card import card_differences, merge_cards, write_card

RESULTS = {
    "eval_accuracy": 0.7,
    "test_accuracy": 0.8125,
    "test_macro_f1": 0.7936,
    "test_recall_bad": 0.9,
    "test_recall_good|fine": 0.725,
    "test_runtime": 3.21,
}
RUN = {
    "started_from": "hub",
    "seed": 7,
    "best_checkpoint": "checkpoint-3",
    "recipe": {"dataset_name": "someone/reviews", "num_train_epochs": 3, "model_name_or_path": "someone/base"},
    "data": {
        "train": {"source": "someone/reviews", "rows": 900},
        "test": {"source": "reviews.csv", "rows": 90, "sha256": "0123456789abcdef"},
    },
    "notes": ["Forty rows were held out."],
    "class_shares": {"bad": 0.25, "good|fine": 0.75},
    "num_parameters": 12345,
    "world_size": 2,
    "versions": {"torch": "2.9.9"},
    "hardware": {"cpu": "A processor", "cores": 4, "threads": 3, "gpus": ["A card"]},
    "duration_seconds": 61.5,
}
SIGNS = {"negative_share": 0.4, "accuracy_without_negatives": 0.5, "files": {}, "scores": {}}
SIGNS |= {"split": "test", "data": RUN["data"]["test"]}


def write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def bare(tmp_path):
    """A saved model without any run behind it."""
    small = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 8)
    config = BidirBertConfig(**small, num_hidden_layers=1, num_attention_heads=1)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path / "reviews-tanhmax")
    return tmp_path / "reviews-tanhmax"


@pytest.fixture
def finished(bare):
    write(bare, "run.json", RUN)
    write(bare, "all_results.json", RESULTS)
    return bare


def test_the_results_table_has_the_test_numbers_and_the_recall_of_every_class(finished):
    text = build_model_card(finished).text
    for row in (
        "accuracy | 0.8125",
        "macro-F1 | 0.7936",
        "recall of bad | 0.9000",
        r"recall of good\|fine | 0.7250",
    ):
        assert f"| {row} |" in text
    assert "0.7000" not in text  # the validation split chose the checkpoint; its numbers are not the result


def test_without_test_numbers_the_card_shows_the_validation_split_and_its_role(finished):
    write(finished, "all_results.json", {"eval_accuracy": 0.7})
    card = build_model_card(finished)
    assert "| accuracy | 0.7000 |" in card.text
    assert "also chose the checkpoint" in card.text


@pytest.mark.parametrize("keep", [{}, {"keep_signs": False}], ids=["by default", "without penalties on signs"])
@pytest.mark.parametrize("generates", [False, True], ids=["a classifier", "a generator"])
def test_the_card_says_whether_healing_enforced_a_loss_without_negatives(finished, keep, generates):
    write(finished, "evaluation.json", SIGNS)
    if generates:
        write(finished, "generation_config.json", {})
    assert "enforces this fall" not in build_model_card(finished).text  # not healed
    write(finished, "run.json", RUN | {"task": "distillation", "recipe": keep})
    assert ("enforces this fall" in build_model_card(finished).text) == (not keep and not generates)


def test_the_card_says_that_signs_are_arbitrary_at_lambda_1_alone(finished):
    write(finished, "evaluation.json", SIGNS)
    for mass, arbitrary in ((1.0, True), (0.5, False)):
        BidirBertConfig.from_pretrained(finished, attn_negative_mass=mass).save_pretrained(finished)
        assert ("depend on the signs that were saved" in build_model_card(finished).text) == arbitrary


def test_a_run_that_kept_its_last_checkpoint_does_not_say_that_validation_chose_it(finished):
    write(finished, "all_results.json", {"eval_accuracy": 0.7})
    write(finished, "run.json", RUN | {"best_checkpoint": None})
    assert "also chose the checkpoint" not in build_model_card(finished).text


def test_the_card_of_a_healed_model_has_the_distance_to_its_teacher_and_the_perplexity_of_both(finished):
    perplexities = {"eval_perplexity": 81.25, "eval_teacher_perplexity": 74.5}
    write(finished, "all_results.json", {"eval_relative_error": 0.004} | perplexities)
    text = build_model_card(finished).text
    assert "is 81.25, and that of the softmax teacher 74.50." in text
    assert "| relative error | 0.0040 |" in text
    assert "0.01 is 1 %" in text


def test_a_healed_classifier_that_was_evaluated_has_its_test_numbers_in_the_card(finished):
    write(finished, "all_results.json", {"eval_relative_error": 0.004})
    write(finished, "run.json", RUN | {"data": {"train": RUN["data"]["train"]}})
    Dataset.from_dict({"text": ["a b", "b c"], "label": [0, 1]}).to_parquet(str(finished / "later.parquet"))
    (finished / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]))
    BertTokenizer(str(finished / "vocab.txt")).save_pretrained(finished)
    evaluation = evaluate_checkpoint(finished, str(finished / "later.parquet"))
    evaluation.save(finished)
    text = build_model_card(finished).text
    assert f"**Accuracy {evaluation.scores['accuracy']:.4f}**. Test data: later.parquet." in text
    assert "Measured by `hf-bidir evaluate` from the saved files" in text
    assert "Verified: " not in text
    assert "| test | later.parquet |" in text
    assert "Relative error 0.0040, validation data." in text


def test_a_model_that_was_healed_after_training_names_the_base_model_of_that_training(finished):
    write(finished, "run.json", RUN | {"started_from": "folder", "recipe": {"model_name_or_path": "mine"}})
    write(finished, "previous_run.json", RUN)
    assert build_model_card(finished).data.base_model == "someone/base"


def test_an_evaluation_of_other_weights_does_not_enter_the_card(finished):
    write(finished, "all_results.json", {"eval_relative_error": 0.004})
    other = {
        "split": "test",
        "scores": {"accuracy": 0.9},
        "data": {"source": "a.csv", "rows": 2},
        "negative_share": None,
    }
    write(finished, "evaluation.json", other | {"files": {"model.safetensors": "0" * 64}})
    assert "0.9000" not in build_model_card(finished).text


def test_the_model_index_has_task_data_split_metric_and_value(finished):
    results = build_model_card(finished).data.eval_results
    found = [(r.task_type, r.dataset_type, r.dataset_split, r.metric_type, r.metric_value) for r in results]
    assert found == [
        ("text-classification", "reviews.csv", "test", "accuracy", 0.8125),
        ("text-classification", "reviews.csv", "test", "f1", 0.7936),
    ]


def test_the_saved_card_is_valid_front_matter_for_the_hub_client(finished):
    card = build_model_card(finished)
    card.save(finished / "README.md")
    metadata = yaml.safe_load((finished / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert metadata["base_model"] == "someone/base"
    assert "license" not in metadata
    assert metadata["datasets"] == ["someone/reviews"]
    assert "tanhmax" in metadata["tags"]
    assert ModelCard.load(finished / "README.md").data.to_dict() == card.data.to_dict()


@pytest.mark.parametrize("kind", ["hub", "folder", "scratch"])
def test_a_card_has_only_a_given_licence_and_a_hint_where_to_add_one(finished, kind, caplog):
    write(finished, "run.json", RUN | {"started_from": kind})
    write_card(finished)
    assert not caplog.text
    write_card(finished, "someone/model")
    assert ModelCard.load(finished / "README.md").data.license is None
    assert "card of someone/model names no licence" in caplog.text
    write(finished, "run.json", RUN | {"started_from": kind, "recipe": {"license": "mit", "base_model": "some/one"}})
    data = build_model_card(finished).data
    assert (data.license, data.base_model) == ("mit", "some/one")


def test_the_licence_of_the_run_before_is_inherited(finished):
    write(finished, "previous_run.json", RUN | {"task": "distillation", "recipe": {"license": "mit"}})
    assert build_model_card(finished).data.license == "mit"


@pytest.mark.parametrize("kind", ["folder", "scratch"])
def test_only_a_model_on_the_hub_is_a_base_model(finished, kind):
    write(finished, "run.json", RUN | {"started_from": kind})
    assert build_model_card(finished).data.base_model is None


@pytest.mark.parametrize(
    "fact",
    [
        "AutoModelForSequenceClassification.from_pretrained(source, trust_remote_code=True)",
        'source = "."  # the folder of this card',
        "sinh(s_i) / Σ_j cosh(s_j)",
        "| test | reviews.csv | reviews.csv (sha256 `0123456789ab…`) | 90 |",
        "| num_train_epochs | 3 |",
        "Forty rows were held out.",
        "bad (25.0 %)",
        "12,345 parameters",
        "seed: 7",
        "A processor, 4 cores, 3 threads, A card",
        "duration: 61.5 s",
        "torch 2.9.9",
        "The sign of a head is arbitrary",
        "Do not choose TanhMax for accuracy",
        "10.6339/24-JDS1134",
    ],
)
def test_the_card_tells(finished, fact):
    assert fact in build_model_card(finished).text


def test_a_number_that_no_file_holds_is_left_out(bare):
    card = build_model_card(bare)
    assert card.data.eval_results is None
    for heading in ("## Results", "## Data", "## Recipe", "## Run", "parameters"):
        assert heading not in card.text
    assert "None" not in card.text


def test_a_known_file_is_named_by_its_data_set_and_another_one_by_its_own_name(finished):
    sst2, imdb = (next(digest for digest, (known, _) in FILES.items() if known is one) for one in (SST2, IMDB))
    train = {"source": "train.parquet, train.parquet", "sha256": f"{imdb}, {sst2}", "rows": 9}
    write(finished, "run.json", RUN | {"data": RUN["data"] | {"train": train}})
    card = build_model_card(finished)
    assert "| train | IMDB training split, 25,000 reviews and SST-2 training split" in card.text
    assert f"train.parquet (sha256 `{imdb[:12]}…`), train.parquet (sha256 `{sst2[:12]}…`)" in card.text
    assert (card.data.datasets, card.data.language) == (["stanfordnlp/imdb", "stanfordnlp/sst2"], "en")
    assert card.data.eval_results[0].dataset_type == "reviews.csv"


SEEDS = {
    "seeds": [0, 1, 2],
    "note": "The weather was another.",
    "this": {"name": "signed", "scores": {"accuracy": [0.8, 0.9, 1.0], "recall_good|fine": [0.5, 0.5, 0.5]}},
    "counterpart": {"name": "plain", "scores": {"accuracy": [0.7, 0.7, 0.7], "recall_good|fine": [0.25, 0.5, 0.75]}},
}


def test_the_headline_is_the_mean_over_seeds_with_the_checkpoint_and_its_counterpart_beside_it(finished):
    write(finished, "seeds.json", SEEDS)
    card = build_model_card(finished)
    assert "**Accuracy 0.9000 ± 0.1000** (mean ± standard deviation of 3 seeds)" in card.text
    assert "this checkpoint (seed 7): 0.8125." in card.text
    assert "The weather was another." in card.text
    assert "| metric | signed, 3 seeds | this checkpoint (seed 7) | plain, 3 seeds | difference | p | g |" in card.text
    assert "corrected over the table (Holm)" in card.text
    index = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert index["accuracy, mean of 3 seeds"] == pytest.approx(0.9)
    assert index["accuracy, this checkpoint (seed 7)"] == 0.8125


def test_on_the_hub_the_example_names_repository_and_revision_and_keeps_them_when_renewed(finished):
    assert "revision" not in build_model_card(finished).text.partition("```\n")[0]
    write_card(finished, "someone/reviews", "content-0123")
    for card in (ModelCard.load(finished / "README.md"), build_model_card(finished)):
        assert 'source, revision = "someone/reviews", "content-0123"' in card.text
        assert 'options = {"revision": revision, "trust_remote_code": True}' in card.text
    assert card_differences(finished) == []


def test_a_folder_without_weights_does_not_say_that_they_load_from_it(finished):
    (finished / "model.safetensors").unlink()
    text = build_model_card(finished).text
    assert "The weights are not in this folder, so this example does not run here." in text


def test_without_a_tokenizer_the_example_loads_none(finished):
    assert "AutoTokenizer" not in build_model_card(finished).text
    write(finished, "tokenizer_config.json", {})
    text = build_model_card(finished).text
    assert "from transformers import AutoModelForSequenceClassification, AutoTokenizer" in text


def test_the_run_that_the_weights_come_from_is_told_with_its_data(finished):
    assert "## Before that" not in build_model_card(finished).text
    write(finished, "previous_run.json", RUN | {"task": "distillation", "recipe": {"max_steps": 30}})
    text = build_model_card(finished).text
    before = text.partition("## Before that")[2].partition("## Limits")[0]
    assert "an earlier run (distillation)" in before
    assert "| max_steps | 30 |" in before
    assert "| train | someone/reviews |  | 900 |" in before


def test_a_renamed_folder_keeps_the_name_on_its_card(finished):
    write_card(finished)
    renamed = finished.rename(finished.with_name("another"))
    assert card_differences(renamed) == []


@pytest.mark.parametrize("change", [{"attn_activation": "softmax"}, {"attn_negative_mass": 0.0}], ids=str)
def test_the_card_of_a_model_that_computes_softmax_says_nothing_about_signs(finished, change):
    write(finished, "config.json", json.loads((finished / "config.json").read_text()) | change)
    card, silent = (
        build_model_card(finished),
        ("gauge", "subtract", "coefficients are signed", "can be negative", "## Tanh"),
    )
    text = card.text
    assert not [word for word in silent if word in text]
    assert "tanhmax" not in card.data.tags
    said = "is softmax, so no coefficient is negative; the weights come from `someone/base`" in text
    assert said == ("attn_negative_mass" in change)


def test_a_folder_of_unknown_origin_gets_no_licence_and_is_not_sent_to_a_script(bare, caplog):
    write_card(bare, "someone/model")
    assert ("names no licence" in caplog.text, "--license" in caplog.text) == (True, False)


def test_a_figure_is_shown_when_its_file_is_there(finished):
    assert "loss_curve.png" not in build_model_card(finished).text
    (finished / "loss_curve.png").touch()
    assert "(loss_curve.png)" in build_model_card(finished).text


def test_what_a_person_wrote_around_the_generated_part_stays_and_the_part_is_renewed(finished):
    readme = finished / "README.md"
    build_model_card(finished).save(readme)
    edited = readme.read_text(encoding="utf-8").replace("library_name:", "license: mit\nlanguage: en\nlibrary_name:")
    edited = edited.replace("<!-- hf_bidir: generated from", "A word before.\n\n<!-- hf_bidir: generated from")
    readme.write_text(edited + "\nA word after.\n", encoding="utf-8")
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})

    card = build_model_card(finished)
    assert (
        card.text.index("A word before.") < card.text.index("| accuracy | 0.5000 |") < card.text.index("A word after.")
    )
    assert "0.8125" not in str(card)
    assert (card.data.license, card.data.language) == ("mit", "en")
    assert card.data.eval_results[0].metric_value == 0.5


def test_a_card_without_markers_is_kept_whole_and_gets_the_generated_part_at_its_end(finished):
    (finished / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nAll by hand.\n", encoding="utf-8")
    text = build_model_card(finished).text
    assert text.startswith("# Mine\n\nAll by hand.\n")
    assert "| accuracy | 0.8125 |" in text


def test_building_twice_changes_nothing(finished):
    readme = finished / "README.md"
    build_model_card(finished).save(readme)
    once = readme.read_text(encoding="utf-8")
    build_model_card(finished).save(readme)
    assert readme.read_text(encoding="utf-8") == once


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        build_model_card(tmp_path)


def test_the_card_names_the_sha256_of_every_file_of_code(finished):
    card = str(build_model_card(finished))
    for file in finished.glob("*.py"):
        assert f"- `{file.name}` `{hashlib.sha256(file.read_bytes()).hexdigest()}`" in card


def test_a_written_card_agrees_with_its_run_and_a_changed_number_does_not(finished):
    write_card(finished)
    assert card_differences(finished) == []
    readme = finished / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace("0.8125", "0.9125"), encoding="utf-8")
    differences = card_differences(finished)
    assert any(line.startswith("-") and "0.9125" in line for line in differences)
    assert any(line.startswith("+") and "0.8125" in line for line in differences)


def test_what_a_person_wrote_around_the_card_is_no_difference(finished):
    write_card(finished)
    with (finished / "README.md").open("a", encoding="utf-8") as readme:
        readme.write("\nRead our paper.\n")
    assert card_differences(finished) == []


def test_a_card_that_both_sides_wrote_around_is_merged_without_doubling_anything(finished):
    write_card(finished)
    readme = finished / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8") + "\nRead our paper.\n", encoding="utf-8")
    merged = merge_cards(ModelCard.load(readme), ModelCard.load(readme))
    assert merged.text.count("Read our paper.") == merged.text.count("## Results") == 1


def test_the_command_checks_and_saves_cards(finished):
    missing = CliRunner().invoke(app, ["card", str(finished), "--check"])
    assert (missing.exit_code, "no README.md to check" in missing.output) == (2, True)
    assert CliRunner().invoke(app, ["card", str(finished)]).exit_code == 0
    assert CliRunner().invoke(app, ["card", str(finished), "--check"]).exit_code == 0
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})
    assert CliRunner().invoke(app, ["card", str(finished), "--check"]).exit_code == 1
