"""build_model_card: the card has exactly the facts in the files of the run."""

import json
from pathlib import Path

import pytest
from datasets import Dataset
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.hub import build_model_card, evaluate_checkpoint
from hf_bidir.hub.card import card_differences, merge_cards, write_card
from tests.tiny_models import WORDS, word_tokenizer

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
NAMED = {"base_model": "someone/bert"}
SIGNS = {"negative_share": 0.4, "accuracy_without_negatives": 0.5, "files": {}, "scores": {}}
SIGNS |= {"split": "test", "data": RUN["data"]["test"]}


def write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def bare(tmp_path):
    """A saved model without any run behind it."""
    shape = {"vocab_size": len(WORDS), "hidden_size": 8, "intermediate_size": 8}
    config = BidirBertConfig(**shape, num_hidden_layers=1, num_attention_heads=1)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path / "reviews-tanhmax")
    return tmp_path / "reviews-tanhmax"


@pytest.fixture
def finished(bare):
    write(bare, "run.json", RUN)
    write(bare, "all_results.json", RESULTS)
    return bare


def test_the_card_has_every_fact_of_the_run(finished):
    text = build_model_card(finished).text
    for fact in (
        "| accuracy | 0.8125 |",
        "| macro-F1 | 0.7936 |",
        "| recall of bad | 0.9000 |",
        r"| recall of good\|fine | 0.7250 |",
        "AutoModelForSequenceClassification.from_pretrained(source, trust_remote_code=True)",
        'source = "."  # the folder of this card',
        "sinh(s_i) / Σ_j cosh(s_j)",
        "| test | reviews.csv | reviews.csv (sha256 `0123456789ab…`) | 90 |",
        "| num_train_epochs | 3 |",
        "Forty rows were held out.",
        "bad (25.0 %), good|fine (75.0 %).",
        "12,345 parameters",
        "- seed: 7\n- hardware: A processor, 4 cores, 3 threads, A card\n- processes: 2\n- duration: 61.5 s\n"
        "- versions: torch 2.9.9\n",
        "The sign of a head is arbitrary",
        "Do not choose TanhMax for accuracy",
        "10.6339/24-JDS1134",
    ):
        assert fact in text
    assert "0.7000" not in text  # the validation split chose the checkpoint; its numbers are not the result
    assert "earlier run" not in text
    assert "loss_curve.png" not in text


def test_a_class_that_was_never_recognised_is_named(finished):
    assert "was recognised" not in build_model_card(finished).text
    write(finished, "all_results.json", RESULTS | {"test_recall_bad": 0.0})
    assert "No example of the class bad was recognised: the recall is 0." in build_model_card(finished).text


def test_the_card_has_the_command_of_a_script_and_its_defaults(finished):
    more = {"script": "text_classification.py", "defaults": {"learning_rate": 5e-4, "bf16": False}}
    options = {"train_file": ["path/to/my texts.csv"], "max_steps": 3, "overwrite_output_dir": True}
    options["optim_args"] = {"eps": 1}
    write(finished, "run.json", RUN | more | {"recipe": options})
    text = build_model_card(finished).text
    command = "python training/text_classification.py \\\n    --train_file 'path/to/my texts.csv' \\\n    --max_steps 3"
    assert f"""{command} \\\n    --optim_args '{{"eps": 1}}'\n""" in text
    assert "`path/to/` stands for a place on the machine of the run" in text
    assert "| learning_rate | 0.0005 |\n| bf16 | False |" in text
    assert "clone" not in text


@pytest.mark.parametrize(
    ("base", "earlier", "shown"),
    [({}, False, "path/to/bert"), (NAMED, False, "someone/bert"), (NAMED, True, "path/to/bert")],
    ids=["a folder", "a copy of a model on the Hub", "a run of that model"],
)
def test_the_command_names_a_model_that_can_be_loaded_or_a_place_to_fill_in(finished, base, earlier, shown):
    recipe = {"model_name_or_path": "path/to/bert"} | base
    write(finished, "run.json", RUN | {"script": "text_classification.py", "started_from": "folder", "recipe": recipe})
    if earlier:
        write(finished, "previous_run.json", RUN)
    assert f"--model_name_or_path {shown}\n" in build_model_card(finished).text


def test_everything_that_the_example_loads_may_run_the_code_of_the_folder(finished):
    word_tokenizer().save_pretrained(finished)
    example = build_model_card(finished).text.partition("```python")[2].partition("```")[0]
    calls = [line for line in example.splitlines() if "from_pretrained(" in line]
    assert len(calls) == 2
    assert all("trust_remote_code=True" in line for line in calls)


def test_a_number_that_no_file_holds_is_left_out(bare):
    card = build_model_card(bare)
    assert card.data.eval_results is None
    for heading in ("## Results", "## Training", "parameters", "None"):
        assert heading not in card.text


def test_without_test_numbers_the_card_shows_those_of_the_validation_split_and_whether_it_chose(finished):
    write(finished, "all_results.json", {"eval_accuracy": 0.7})
    for chosen in ("checkpoint-3", None):
        write(finished, "run.json", RUN | {"best_checkpoint": chosen})
        text = build_model_card(finished).text
        assert "| accuracy | 0.7000 |" in text
        assert ("also chose the checkpoint" in text) == (chosen is not None)


def test_the_saved_card_is_valid_front_matter_with_the_numbers_in_its_index(finished):
    card = build_model_card(finished)
    card.save(finished / "README.md")
    saved = ModelCard.load(finished / "README.md").data
    assert saved.to_dict() == card.data.to_dict()
    assert (saved.base_model, saved.datasets, saved.license) == ("someone/base", ["someone/reviews"], None)
    assert "tanhmax" in saved.tags
    index = [(r.task_type, r.dataset_type, r.dataset_split, r.metric_type, r.metric_value) for r in saved.eval_results]
    assert index == [
        ("text-classification", "reviews.csv", "test", "accuracy", 0.8125),
        ("text-classification", "reviews.csv", "test", "f1", 0.7936),
    ]


def test_the_card_says_how_the_model_comes_from_its_base_unless_a_person_says_otherwise(finished):
    card = build_model_card(finished)
    assert card.data["base_model_relation"] == "finetune"
    card.data["base_model_relation"] = "merge"
    card.save(finished / "README.md")
    assert build_model_card(finished).data["base_model_relation"] == "merge"


def test_the_card_links_the_papers_of_what_the_model_uses_beside_tanhmax(finished):
    assert "](https://doi.org" not in build_model_card(finished).text  # that of TanhMax is in the citation
    config = json.loads((finished / "config.json").read_text())
    write(finished, "config.json", config | {"decoder_style": "luong"})
    assert "[Luong, Pham, Manning 2015](https://arxiv.org/abs/1508.04025)" in build_model_card(finished).text


def test_title_data_set_and_language_of_a_file_are_those_in_its_record(finished):
    train = {"source": "train.parquet", "sha256": "ab", "rows": 9, "title": "Reviews, first half"}
    train |= {"hub_name": "someone/others", "language": "en"}
    write(finished, "run.json", RUN | {"data": RUN["data"] | {"train": train}})
    card = build_model_card(finished)
    assert "| train | Reviews, first half | train.parquet (sha256 `ab…`) | 9 |" in card.text
    assert (card.data.datasets, card.data.language) == (["someone/others"], "en")


def test_a_card_has_only_a_given_licence_or_that_of_the_run_before_and_a_hint_where_to_add_one(finished, caplog):
    write_card(finished)
    assert not caplog.text
    write_card(finished, "someone/model")
    assert "card of someone/model names no licence" in caplog.text
    assert "--license" in caplog.text
    write(finished, "previous_run.json", {"task": "distillation", "recipe": {"license": "mit"}})
    assert build_model_card(finished).data.license == "mit"
    write(finished, "run.json", RUN | {"recipe": {"license": "bsd", "base_model": "some/one"}})
    data = build_model_card(finished).data
    assert (data.license, data.base_model) == ("bsd", "some/one")


def test_only_a_model_on_the_hub_is_a_base_model_also_that_of_the_run_before(finished):
    write(finished, "run.json", RUN | {"started_from": "folder"})
    assert build_model_card(finished).data.base_model is None
    earlier = RUN["recipe"] | {"use_cpu": True}
    write(finished, "previous_run.json", RUN | {"task": "distillation", "recipe": earlier})
    card = build_model_card(finished)
    assert card.data.base_model == "someone/base"
    assert "come from an earlier run: distillation, trained on someone/reviews." in card.text
    assert "use_cpu" not in card.text  # an option of the earlier run, which is not this one's to show


def test_a_figure_is_shown_when_its_file_is_there_and_missing_weights_are_named(finished):
    (finished / "loss_curve.png").touch()
    (finished / "model.safetensors").unlink()
    text = build_model_card(finished).text
    assert "(loss_curve.png)" in text
    assert "The weights are not in this folder, so this example does not run here." in text


def test_the_card_says_whether_healing_enforced_a_loss_without_negatives(finished):
    def enforces():
        return "enforces this fall" in build_model_card(finished).text

    write(finished, "evaluation.json", SIGNS)
    assert not enforces()  # not healed
    write(finished, "run.json", RUN | {"task": "distillation", "recipe": {"keep_signs": False}})
    assert not enforces()
    write(finished, "run.json", RUN | {"task": "distillation", "recipe": {}})
    assert enforces()
    write(finished, "generation_config.json", {})  # a generator, which is healed without penalties on signs
    assert not enforces()


def test_the_card_says_that_signs_are_arbitrary_at_lambda_1_alone(finished):
    write(finished, "evaluation.json", SIGNS)
    for mass, arbitrary in ((1.0, True), (0.5, False)):
        BidirBertConfig.from_pretrained(finished, attn_negative_mass=mass).save_pretrained(finished)
        assert ("depend on the signs that were saved" in build_model_card(finished).text) == arbitrary


@pytest.mark.parametrize("change", [{"attn_activation": "softmax"}, {"attn_negative_mass": 0.0}], ids=str)
def test_the_card_of_a_model_that_computes_softmax_says_nothing_about_signs(finished, change):
    write(finished, "config.json", json.loads((finished / "config.json").read_text()) | change)
    card = build_model_card(finished)
    assert not [
        word for word in ("subtract", "coefficients are signed", "can be negative", "TanhMax") if word in card.text
    ]
    assert "tanhmax" not in card.data.tags
    said = "is softmax, so no coefficient is negative; the weights come from `someone/base`" in card.text
    assert said == ("attn_negative_mass" in change)


def test_a_healed_language_model_has_the_distance_to_its_teacher_and_the_perplexity_of_both(finished):
    perplexities = {"eval_perplexity": 81.25, "eval_teacher_perplexity": 74.5}
    write(finished, "all_results.json", {"eval_relative_error": 0.004} | perplexities)
    text = build_model_card(finished).text
    for fact in ("is 81.25, and that of the softmax teacher 74.50.", "| relative error | 0.0040 |", "0.01 is 1 %"):
        assert fact in text


def test_a_healed_classifier_has_the_test_numbers_of_a_later_evaluation_of_its_own_weights(finished):
    write(finished, "all_results.json", {"eval_relative_error": 0.004})
    write(finished, "run.json", RUN | {"data": {"train": RUN["data"]["train"]}})
    Dataset.from_dict({"text": ["a film", "bad"], "label": [0, 1]}).to_parquet(str(finished / "later.parquet"))
    word_tokenizer().save_pretrained(finished)
    evaluation = evaluate_checkpoint(finished, str(finished / "later.parquet"))
    evaluation.save(finished)
    text = build_model_card(finished).text
    assert f"**Accuracy {evaluation.scores['accuracy']:.4f}**. Test data: later.parquet." in text
    assert "Measured by `hf-bidir evaluate` from the saved files" in text
    assert "Verified: " not in text
    assert "| test | later.parquet |" in text
    assert "Relative error 0.0040, validation data." in text
    (finished / "model.safetensors").write_bytes(b"others")
    assert "**Accuracy" not in build_model_card(finished).text


def test_a_paragraph_in_the_record_about_other_runs_stands_among_the_results(finished):
    write(finished, "run.json", RUN | {"comparison": "Accuracy of 3 seeds: 0.9 ± 0.1."})
    results = build_model_card(finished).text.partition("## Results")[2].partition("##")[0]
    assert "**Accuracy 0.8125**" in results
    assert "Accuracy of 3 seeds: 0.9 ± 0.1." in results


def test_on_the_hub_the_example_names_repository_and_revision_and_keeps_them_when_renewed(finished):
    assert "revision" not in build_model_card(finished).text.partition("```\n")[0]
    write_card(finished, "someone/reviews", "content-0123")
    for card in (ModelCard.load(finished / "README.md"), build_model_card(finished)):
        assert 'source, revision = "someone/reviews", "content-0123"' in card.text
        assert 'options = {"revision": revision, "trust_remote_code": True}' in card.text
    assert card_differences(finished) == []
    assert card_differences(finished.rename(finished.with_name("another"))) == []


def test_what_a_person_wrote_around_the_generated_part_stays_and_the_part_is_renewed(finished):
    readme = finished / "README.md"
    write_card(finished)
    edited = readme.read_text(encoding="utf-8").replace("library_name:", "license: mit\nlanguage: en\nlibrary_name:")
    edited = edited.replace("<!-- hf_bidir: generated from", "A word before.\n\n<!-- hf_bidir: generated from")
    readme.write_text(edited + "\nA word after.\n", encoding="utf-8")
    merged = merge_cards(ModelCard.load(readme), ModelCard.load(readme))
    assert merged.text.count("A word after.") == merged.text.count("## Results") == 1
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})
    card = build_model_card(finished)
    places = [card.text.index(part) for part in ("A word before.", "| accuracy | 0.5000 |", "A word after.")]
    assert places == sorted(places)
    assert "0.8125" not in str(card)
    assert (card.data.license, card.data.language) == ("mit", "en")


def test_a_card_without_markers_is_kept_whole_and_gets_the_generated_part_at_its_end(finished):
    (finished / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nAll by hand.\n", encoding="utf-8")
    text = build_model_card(finished).text
    assert text.startswith("# Mine\n\nAll by hand.\n")
    assert "| accuracy | 0.8125 |" in text


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        build_model_card(tmp_path)


def test_the_command_saves_a_card_and_prints_what_in_it_does_not_agree_with_the_run(finished):
    def run(*words):
        return CliRunner().invoke(app, ["card", str(finished), *words])

    missing = run("--check")
    assert (missing.exit_code, "no README.md to check" in missing.output) == (2, True)
    assert (run().exit_code, run("--check").exit_code) == (0, 0)
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})
    told = run("--check")
    assert (told.exit_code, "-| accuracy | 0.8125 |" in told.stderr, "+| accuracy | 0.5000 |" in told.stderr) == (
        1,
        1,
        1,
    )


@pytest.mark.parametrize("command", [["card"], ["card", "--check"], ["push", "--dry-run", "me/mine"], ["evaluate"]])
def test_commands_say_in_one_line_that_a_readme_cannot_be_read(bare, command):
    (bare / "README.md").write_text("---\nlicense: [mit\n---\n", encoding="utf-8")
    name, *options = command
    told = CliRunner().invoke(app, [name, str(bare), *reversed(options)])
    assert (told.exit_code, len(told.stderr.splitlines())) == (2, 1), told.output
    assert "the header of reviews-tanhmax/README.md is not that of a model card" in told.stderr
