"""training/text_classification.py: learn, record, resume, refuse, and start from any checkpoint."""

import shlex

import pytest
from transformers import pipeline

from hf_bidir import BidirLlamaForSequenceClassification
from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END, losses, read, tables
from training.text_classification import main

SHAPE = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 "
    "--vocab_size 80 --max_length 12"
)
RUN = shlex.split(
    "--num_train_epochs 2 --per_device_train_batch_size 8 --logging_steps 1 --learning_rate 1e-2 --use_cpu "
    "--disable_tqdm true"
)
BRIEF = ["--max_steps", "1", *AT_THE_END]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a run that learned its texts, started with a secret and an absolute path, and its numbers."""
    folder = tmp_path_factory.mktemp("learned")
    learn = shlex.split("--num_train_epochs 12 --dropout 0 --hub_token hf_secret --run_name")
    words = [*tables(folder), *SHAPE, *RUN, *AT_THE_END, *learn, str(folder / "name")]
    return folder / "run", main([*words, "--output_dir", str(folder / "run")])


def test_a_run_learns_and_leaves_a_checkpoint_with_its_numbers(learned):
    folder, results = learned
    record = read(folder / "run.json")
    assert results["test_accuracy"] == 1.0
    assert read(folder / "all_results.json") == results
    assert {"eval_macro_f1", "test_recall_good", "test_recall_bad"} <= set(results)
    files = {path.name for path in folder.iterdir()}
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= files
    assert record["status"] == "finished"
    assert [record["data"][split]["rows"] for split in ("train", "validation", "test")] == [48, 12, 12]


def test_neither_a_token_nor_a_local_path_is_published(learned):
    for name in ("run.json", "README.md"):
        text = (learned[0] / name).read_text()
        assert "hf_secret" not in text
        assert str(learned[0].parent) not in text
    assert not list(learned[0].rglob("training_args.bin"))  # the Trainer's pickle of every option


def test_an_interrupted_run_continues_to_the_same_numbers_and_is_then_overwritten_only_when_asked(
    texts, tmp_path, crash
):
    whole, broken = ([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    crash(main, broken, after_steps=9)  # 6 steps an epoch: in the middle of the second
    with pytest.raises(InputError, match="interrupted run with other settings: seed was not given and is 5"):
        main([*broken, "--seed", "5"])
    results = main(broken)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert results["test_loss"] == expected["test_loss"]
    record = tmp_path / "broken/run.json"
    before = record.read_bytes()
    assert read(record)["resumed_from"] == "checkpoint-6"
    with pytest.raises(InputError, match=r"holds a finished run.*--overwrite_output_dir"):
        main(broken)
    assert record.read_bytes() == before
    main([*broken, *BRIEF, "--overwrite_output_dir", "--seed", "1"])
    assert read(record)["seed"] == 1


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
        ("--num_attention_heads 3", "16.*3"),
        ("--attn_implementation flash_attention_9", "flash_attention_9"),
    ],
)
def test_a_bad_option_is_one_clear_error_and_leaves_no_folder(texts, tmp_path, options, message):
    words = [*texts, *SHAPE, *RUN, *shlex.split(options)]
    with pytest.raises(InputError, match=message):
        main([*words, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_run_stops_early_but_not_before_its_schedule_has_ended(texts, tmp_path):
    patient = shlex.split(
        "--negative_mass_until 0.5 --negative_mass_start 0.1 --num_train_epochs 5 --early_stopping_patience 1 "
        "--learning_rate 0"
    )
    results = main([*texts, *SHAPE, *RUN, *patient, "--output_dir", str(tmp_path / "run")])
    assert results["epoch"] == 4  # the schedule ends in the third epoch, which is the best
