"""training/text_classification.py: learn, record, resume, refuse, and start from any checkpoint."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, pipeline

from hf_bidir import BidirLlamaForSequenceClassification
from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import tables
from training.text_classification import main

SHAPE = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 "
    "--vocab_size 80 --max_length 12"
)
RUN = shlex.split(
    "--num_train_epochs 3 --per_device_train_batch_size 8 --logging_steps 1 --learning_rate 1e-2 --use_cpu "
    "--disable_tqdm true"
)
BRIEF = ["--max_steps", "1", "--save_steps", "1"]
SCRIPT = Path(__file__).parents[2] / "training/text_classification.py"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a run that learned its texts, started with a secret and an absolute path, and its numbers."""
    folder = tmp_path_factory.mktemp("learned")
    learn = [*shlex.split("--num_train_epochs 12 --dropout 0 --hub_token hf_secret --run_name"), str(folder / "name")]
    return folder / "run", main([*tables(folder), *SHAPE, *RUN, *learn, "--output_dir", str(folder / "run")])


def test_a_run_learns_and_leaves_a_checkpoint_with_its_numbers(learned):
    folder, results = learned
    record = json.loads((folder / "run.json").read_text())
    assert results["test_accuracy"] == 1.0
    assert json.loads((folder / "all_results.json").read_text()) == results
    assert {"eval_macro_f1", "test_recall_good", "test_recall_bad"} <= set(results)
    files = {path.name for path in folder.iterdir()}
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= files
    assert record["status"] == "finished"
    rows = {split: part["rows"] for split, part in record["data"].items()}
    assert rows == {"train": 48, "validation": 12, "test": 12}
    assert record["class_shares"] == {"bad": pytest.approx(2 / 3), "good": pytest.approx(1 / 3)}


def test_neither_a_token_nor_a_local_path_is_published(learned):
    for name in ("run.json", "README.md"):
        text = (learned[0] / name).read_text()
        assert "hf_secret" not in text
        assert str(learned[0].parent) not in text
    assert not list(learned[0].rglob("training_args.bin"))  # the Trainer's pickle of every option


def losses(folder):
    """The logged training losses of a run, by step."""
    state = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])) / "trainer_state.json"
    return {entry["step"]: entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry}


def test_an_interrupted_run_continues_to_the_same_numbers_and_is_then_overwritten_only_when_asked(
    texts, tmp_path, crash
):
    whole, broken = ([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    crash(main, broken, after_steps=10)  # 6 steps an epoch: in the middle of the second
    with pytest.raises(InputError, match="interrupted run with other settings: seed was not given and is 5"):
        main([*broken, "--seed", "5"])
    results = main(broken)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert results["test_loss"] == expected["test_loss"]
    assert json.loads((tmp_path / "broken/run.json").read_text())["resumed_from"] == "checkpoint-6"
    before = (tmp_path / "broken/run.json").read_bytes()
    with pytest.raises(InputError, match=r"holds a finished run.*--overwrite_output_dir"):
        main(broken)
    assert (tmp_path / "broken/run.json").read_bytes() == before
    main([*broken, *BRIEF, "--overwrite_output_dir", "--seed", "1"])
    assert json.loads((tmp_path / "broken/run.json").read_text())["seed"] == 1


def test_a_stock_checkpoint_that_stays_softmax_is_saved_as_one(texts, tmp_path):
    still = ["--max_length", "12", "--learning_rate", "0", *BRIEF, "--warmup_ratio", "0"]
    source = checkpoint_of("Roberta", tmp_path / "stock", "ForSequenceClassification")
    first = ["--model_name_or_path", source, "--output_dir", str(tmp_path / "first")]
    main([*texts, *RUN, *still, *first])
    stock = AutoModelForSequenceClassification.from_pretrained(source).eval()
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "first").eval()
    assert type(model) is type(stock)
    assert "attn_negative_mass" not in (tmp_path / "first/config.json").read_text()
    assert not list((tmp_path / "first").glob("*.py"))
    ids = torch.arange(5, 13)[None]
    torch.testing.assert_close(model(ids).logits, stock(ids).logits)


def test_a_decoder_is_fine_tuned_as_a_classifier(texts, tmp_path, caplog):
    start = ["--model_name_or_path", checkpoint_of("Llama", tmp_path / "stock"), "--max_length", "12"]
    main([*texts, *RUN, *start, *BRIEF, "--attn_negative_mass", "1", "--output_dir", str(tmp_path / "run")])
    classify = pipeline("text-classification", str(tmp_path / "run"), device="cpu")
    assert isinstance(classify.model, BidirLlamaForSequenceClassification)
    config = classify.model.config
    assert (config.id2label, config.attn_negative_mass) == ({0: "bad", 1: "good"}, 1.0)
    assert len(classify(["a good film", "bad"], padding=True, batch_size=2)) == 2
    assert "has no padding token; texts are padded with its [SEP]" in caplog.text
    assert "Training starts without centring" in caplog.text  # because there are no biases


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attn_activation", "tanmax"], "tanmax"),
        (["--attn_negative_mass", "1.5"], "1.5"),
        (["--num_attention_heads", "3"], "16.*3"),
        (["--attn_implementation", "flash_attention_9"], "flash_attention_9"),
        (["--model_name_or_path", "{tmp}"], "shape a model from scratch"),
        (["--train_file", "nowhere.csv"], "expected a data file at nowhere.csv"),
    ],
)
def test_a_bad_option_is_one_clear_error_and_leaves_no_folder(texts, tmp_path, options, message):
    options = [option.format(tmp=tmp_path) for option in options]
    with pytest.raises(InputError, match=message):
        main([*texts, *SHAPE, *RUN, *options, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_run_stops_early_but_not_before_its_schedule_has_ended(texts, tmp_path):
    patient = [
        "--negative_mass_until",
        "0.5",
        "--negative_mass_start",
        "0.1",
        "--num_train_epochs",
        "9",
        "--early_stopping_patience",
        "2",
    ]
    results = main([*texts, *SHAPE, *RUN, *patient, "--learning_rate", "0", "--output_dir", str(tmp_path / "run")])
    assert 4.5 < results["epoch"] < 9  # half of the epochs, rather than the first one and the patience
