"""build_model_card: the card has exactly the facts in the files of the run."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.hub import build_model_card
from hf_bidir.hub.card import write_card
from hf_bidir.hub.files import digests
from hf_bidir.hub.results import agree, scores_of
from tests.tiny_models import WORDS, signed_model, word_tokenizer

RESULTS = {
    "eval_accuracy": 0.7,
    "test_accuracy": 0.8125,
    "test_macro_f1": 0.7936,
    "test_recall_bad": 0.9,
    "test_recall_good|fine": 0.725,
    "test_runtime": 3.21,
}
RUN = {
    "seed": 7,
    "best_checkpoint": "checkpoint-3",
    "recipe": {"dataset_name": "someone/reviews", "num_train_epochs": 3, "model_name_or_path": "someone/base"},
    "data": {
        "train": {"source": "someone/reviews", "rows": 900},
        "test": {"source": "mine/reviews.csv", "rows": 90, "sha256": "0123456789abcdef"},
    },
    "notes": ["Forty rows were held out."],
    "comparison": "Accuracy of 3 seeds: 0.9 ± 0.1.",
    "class_shares": {"bad": 0.25, "good|fine": 0.75},
    "num_parameters": 12345,
    "world_size": 2,
    "versions": {"torch": "2.9.9"},
    "hardware": {"cpu": "A processor", "cores": 4, "threads": 3, "gpus": ["A card"]},
    "duration_seconds": 61.5,
}
NAMED = {"base_model": "someone/bert"}


def write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def bare(tmp_path):
    """A saved model without any run behind it."""
    torch.manual_seed(0)
    shape = {"vocab_size": len(WORDS), "hidden_size": 8, "intermediate_size": 8, "initializer_range": 0.5}
    config = BidirBertConfig(**shape, num_hidden_layers=1, num_attention_heads=1)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path / "reviews-tanhmax")
    return tmp_path / "reviews-tanhmax"


@pytest.fixture
def finished(bare):
    write(bare, "run.json", RUN)
    write(bare, "all_results.json", RESULTS)
    return bare


def recipe_of(text: str) -> dict:
    return yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])


def test_a_card_answers_in_the_order_of_a_users_questions_and_folds_the_rest(finished):
    word_tokenizer().save_pretrained(finished)
    text = build_model_card(finished).text
    asked = ("**Classifies texts", "AutoTokenizer.from_pretrained", "print(explain(model", "Accuracy of 3 seeds: 0.9")
    answers = (*asked, "## Training", "## Limits", "## Licence of the data", "<details>")
    places = [text.index(answer) for answer in answers]
    assert places == sorted(places)
    for fact in ("| accuracy | 0.8125 |", "| test | mine/reviews.csv | 90 |", "- seed: 7", "10.6339/24-JDS1134"):
        assert text.index(fact) > places[-1]
    assert text.count("<details>") == text.count("</details>")


def test_the_card_has_every_fact_of_the_run(finished):
    text = build_model_card(finished).text
    for fact in (
        *("into 2 classes.** Trained on someone/reviews.", "Test data: mine/reviews.csv (90 rows)."),
        *("| accuracy | 0.8125 |", "| macro-F1 | 0.7936 |", "Accuracy of 3 seeds: 0.9 ± 0.1."),
        *("| recall of bad | 0.9000 |", r"| recall of good\|fine | 0.7250 |"),
        *("sinh(s_i) / Σ_j cosh(s_j)", "The sign of a head is arbitrary", "10.6339/24-JDS1134"),
        *("| test | mine/reviews.csv | 90 |", "- someone/reviews: not on record"),
        *("Forty rows were held out.", "bad (25.0 %), good|fine (75.0 %).", "12,345 parameters"),
        "- seed: 7\n- hardware: A processor, 4 cores, 3 threads, A card\n- processes: 2\n- duration: 61.5 s\n"
        "- versions: torch 2.9.9\n",
    ):
        assert fact in text
    assert recipe_of(text) == RUN["recipe"]
    for other in ("0.7000", "earlier run", "explanation.png"):
        assert other not in text  # the validation split chose the checkpoint; its numbers are not the result


def test_without_a_comparison_the_number_has_its_interval_over_the_examples(finished):
    licensed = {"train": RUN["data"]["train"] | {"license": "CC0"}, "test": {"source": "mine.csv", "rows": 16}}
    write(finished, "run.json", RUN | {"comparison": None, "data": licensed, "command": "make mine"})
    text = build_model_card(finished).text
    # scipy.stats.binomtest(13, 16).proportion_ci(method="wilson")
    assert "**Accuracy 0.8125**, 95 % interval [0.5699, 0.9341] over examples." in text
    assert "Test data: mine.csv (16 rows, too few to rely on)." in text
    assert "- someone/reviews: CC0" in text
    assert "```bash\nmake mine\n```" in text
    write(finished, "all_results.json", {"test_perplexity": 3.0})
    assert "**Perplexity 3.0000**; no interval is on record." in build_model_card(finished).text


def test_the_agreement_of_tokens_has_no_interval_over_blocks(tmp_path):
    signed_model("gpt2").save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    data = {"train": RUN["data"]["train"], "validation": {"source": "mine.txt", "rows": 16}}
    write(tmp_path, "run.json", {"task": "distillation", "data": data})
    write(tmp_path, "all_results.json", {"eval_agreement": 0.75})
    text = build_model_card(tmp_path).text
    assert (
        "**Agreement 0.7500**; no interval is on record. Validation data: mine.txt (16 blocks, too few to rely on)."
        in text
    )


def test_each_of_several_data_sets_has_its_licence(finished):
    joined = {"train": {"source": "a.csv, b.csv", "rows": 9, "licenses": {"posts": "MIT", "news": None}}}
    write(finished, "run.json", RUN | {"data": joined})
    assert "- posts: MIT\n- news: not on record" in build_model_card(finished).text


def test_the_command_trains_again_from_the_record_which_says_what_is_a_place_of_the_machine(finished):
    options = {"train_file": ["path/to/my texts.csv"], "max_steps": 3, "optim_args": {"eps": 1}, "learning_rate": 5e-5}
    unshown = {"overwrite_output_dir": True, "lora_rank": None}
    write(finished, "run.json", RUN | {"script": "text_classification.py", "recipe": options | unshown})
    text = build_model_card(finished).text
    assert recipe_of(text) == options
    assert "python training/text_classification.py run.json --output_dir runs/reviews-tanhmax" in text
    assert "`path/to/` for a place on the machine of the run" in text


@pytest.mark.parametrize(
    ("base", "earlier", "shown"),
    [({}, False, "path/to/bert"), (NAMED, False, "someone/bert"), (NAMED, True, "path/to/bert")],
    ids=["a folder", "a copy of a model on the Hub", "a run of that model"],
)
def test_the_recipe_names_a_model_that_can_be_loaded_or_a_place_to_fill_in(finished, base, earlier, shown):
    recipe = {"model_name_or_path": "path/to/bert"} | base
    write(finished, "run.json", RUN | {"recipe": recipe})
    if earlier:
        write(finished, "previous_run.json", RUN)
    assert recipe_of(build_model_card(finished).text) == {"model_name_or_path": shown}


def test_a_number_that_no_file_holds_is_left_out(bare):
    (bare / "model.safetensors").unlink()
    card = build_model_card(bare)
    assert card.data.eval_results is None
    for heading in ("## Results", "## Training", "## Licence", "parameters", "None"):
        assert heading not in card.text
    assert "It has no weights" in card.text


@pytest.mark.parametrize("chosen", ["checkpoint-3", None])
def test_without_test_numbers_the_card_shows_those_of_the_validation_split_and_whether_it_chose(finished, chosen):
    write(finished, "all_results.json", {"eval_accuracy": 0.7})
    write(finished, "run.json", RUN | {"best_checkpoint": chosen})
    text = build_model_card(finished).text
    assert "| accuracy | 0.7000 |" in text
    assert ("also chose the checkpoint" in text) == (chosen is not None)


def test_the_saved_card_is_valid_front_matter_with_the_numbers_in_its_index(finished):
    train = {"source": "train.parquet", "sha256": "ab", "hub_name": "someone/others", "language": "en", "rows": 9}
    write(finished, "run.json", RUN | {"data": RUN["data"] | {"train": train | {"title": "Reviews, first half"}}})
    card = build_model_card(finished)
    assert "| train | Reviews, first half | 9 |" in card.text
    card.save(finished / "README.md")
    saved = ModelCard.load(finished / "README.md").data
    assert saved.to_dict() == card.data.to_dict()
    assert (saved.base_model, saved["base_model_relation"], saved.license) == ("someone/base", "finetune", None)
    assert (saved.datasets, saved.language, saved.pipeline_tag) == (["someone/others"], "en", "text-classification")
    assert saved.tags == ["tanhmax", "signed-attention", "hf_bidir"]
    index = [(r.task_type, r.dataset_type, r.dataset_split, r.metric_type, r.metric_value) for r in saved.eval_results]
    assert index == [
        ("text-classification", "mine/reviews.csv", "test", "accuracy", 0.8125),
        ("text-classification", "mine/reviews.csv", "test", "f1", 0.7936),
    ]


def test_licence_and_base_are_those_of_this_run_or_of_the_run_before(finished):
    for source in ("path/to/base", "timm:vit_tiny_patch16_224"):
        write(finished, "run.json", RUN | {"recipe": {"model_name_or_path": source}})
        assert build_model_card(finished).data.base_model is None  # it is no model on the Hub
    earlier = RUN["recipe"] | {"use_cpu": True, "license": "mit"}
    write(finished, "previous_run.json", RUN | {"task": "distillation", "recipe": earlier})
    card = build_model_card(finished)
    assert (card.data.license, card.data.base_model) == ("mit", "someone/base")
    assert "come from an earlier run: distillation, trained on someone/reviews." in card.text
    assert "use_cpu" not in card.text  # an option of the earlier run, which is not this one's to show
    write(finished, "run.json", RUN | {"recipe": {"license": "bsd", "base_model": "some/one"}})
    config = json.loads((finished / "config.json").read_text())
    write(finished, "config.json", config | {"quantization_config": {"quant_method": "torchao"}})
    data = build_model_card(finished).data
    assert (data.license, data.base_model, data["base_model_relation"]) == ("bsd", "some/one", "quantized")


def test_a_healed_classifier_has_the_test_numbers_of_a_later_evaluation_of_its_own_weights(finished):
    write(finished, "all_results.json", {"eval_relative_error": 0.004, "eval_agreement": 0.975})
    data = {"train": RUN["data"]["train"], "validation": {"source": "some.txt", "rows": 3}}
    healing = RUN | {"task": "distillation", "data": data, "comparison": None}
    write(finished, "run.json", healing | {"recipe": {"keep_signs": True}})
    measured = {"split": "test", "data": {"source": "later.parquet", "rows": 2}, "scores": {"accuracy": 0.5}}
    signs = {"negative_share": 0.25, "without_negatives": 0.125}
    write(finished, "evaluation.json", measured | signs | {"files": digests(finished)})
    text = build_model_card(finished).text
    for fact in (
        "**Agreement 0.9750** with the softmax original on validation data (3 rows, too few to rely on).",
        *(
            "**Accuracy 0.5000**, 95 % interval [0.0945, 0.9055] over",
            "Test data: later.parquet (2 rows, too few to rely on).",
        ),
        "Measured by `hf-bidir evaluate` from the saved files",
        "| test | later.parquet | 2 |",
        "on validation data, 0.0040, is the squared distance",
        "25.0 % are negative (this checkpoint, test data)",
        "its accuracy is 0.1250.",
        "A penalty in the healing loss enforces this fall",
    ):
        assert fact in text
    write(finished, "run.json", healing | {"recipe": {"keep_signs": False}})
    assert "A penalty" not in build_model_card(finished).text
    (finished / "model.safetensors").write_bytes(b"others")
    text = build_model_card(finished).text
    assert "## Results\n\n**Agreement 0.9750**" in text
    assert "% are negative" not in text
    write(finished, "previous_run.json", RUN)
    assert "Trained on someone/reviews. Then healed: distilled from its softmax" in build_model_card(finished).text


@pytest.mark.parametrize("change", [{"attn_activation": "softmax"}, {"attn_negative_mass": 0.0}], ids=str)
def test_the_card_of_a_model_that_computes_softmax_says_nothing_about_signs(finished, change):
    write(finished, "config.json", json.loads((finished / "config.json").read_text()) | change)
    card = build_model_card(finished)
    signs = ("subtract", "coefficients are signed", "can be negative", "TanhMax")
    assert not [word for word in signs if word in card.text]
    assert card.data.tags == ["hf_bidir"]
    assert ("is softmax, so no coefficient is negative" in card.text) == ("attn_negative_mass" in change)


@pytest.mark.parametrize(
    ("measured", "claimed", "equal"),
    [(0.50004, 0.5, True), (0.5001, 0.5, False), (0.4999, 0.5, False), (100.004, 100, True), (100.006, 100, False)],
)
def test_scores_agree_up_to_the_last_digit_that_is_printed(measured, claimed, equal):
    assert agree({"score": measured, "more": 1.0}, {"score": claimed}) is equal
    assert not agree({}, {"score": claimed})


def test_the_example_runs_the_code_of_the_folder_and_on_the_hub_that_of_the_revision(finished):
    word_tokenizer().save_pretrained(finished)
    text = build_model_card(finished).text
    assert text.count("from_pretrained(") == text.count('(".", trust_remote_code=True)') == 2
    write_card(finished, "someone/reviews", "content-0123")
    text = ModelCard.load(finished / "README.md").text
    place = '("someone/reviews", revision="content-0123", trust_remote_code=True)'
    assert text.count("from_pretrained(") == text.count(place) == 2


def test_what_a_person_wrote_stays_and_the_generated_part_is_renewed(finished):
    readme = finished / "README.md"
    write_card(finished)
    edited = readme.read_text(encoding="utf-8").replace("library_name:", "license: mit\nlanguage: en\nlibrary_name:")
    edited = edited.replace("base_model_relation: finetune", "base_model_relation: merge")
    edited = edited.replace("<!-- hf_bidir: generated from", "A word before.\n\n<!-- hf_bidir: generated from")
    readme.write_text(edited + "\nA word after.\n", encoding="utf-8")
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})
    card = build_model_card(finished)
    places = [card.text.index(part) for part in ("A word before.", "| accuracy | 0.5000 |", "A word after.")]
    assert places == sorted(places)
    assert card.text.count("## Results") == 1
    assert "0.8125" not in str(card)
    assert (card.data.license, card.data.language, card.data["base_model_relation"]) == ("mit", "en", "merge")


def test_a_card_without_markers_is_kept_whole_and_gets_the_generated_part_at_its_end(finished):
    (finished / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nAll by hand.\n", encoding="utf-8")
    text = build_model_card(finished).text
    assert text.startswith("# Mine\n\nAll by hand.\n")
    assert "| accuracy | 0.8125 |" in text


def test_the_command_saves_a_card_and_prints_what_in_it_does_not_agree_with_the_run(finished):
    def run(*words):
        return CliRunner().invoke(app, ["card", str(finished), *words])

    missing = run("--check")
    assert (missing.exit_code, "README.md" in missing.output) == (2, True)
    assert (run().exit_code, run("--check").exit_code) == (0, 0)
    write(finished, "all_results.json", RESULTS | {"test_accuracy": 0.5})
    told = run("--check")
    assert told.exit_code == 1
    assert {"-| accuracy | 0.8125 |", "+| accuracy | 0.5000 |"} <= set(told.stderr.splitlines())


def test_an_infinite_metric_which_a_run_saves_as_null_is_no_score():
    assert scores_of({"eval_perplexity": None, "eval_accuracy": 0.0, "test_accuracy": 1.0}, "eval_") == {
        "accuracy": 0.0
    }
