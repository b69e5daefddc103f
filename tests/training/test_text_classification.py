import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    pipeline,
)

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.cli.script import run_script
from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import WITHOUT_PADDING, checkpoint_of
from training.text_classification import main

SHAPE = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 "
    "--vocab_size 80 --max_length 12"
)
RUN = shlex.split(
    "--num_train_epochs 3 --per_device_train_batch_size 8 --logging_steps 1 --learning_rate 1e-2 "
    "--attn_implementation eager --use_cpu --disable_tqdm true"
)
LEARN = shlex.split("--num_train_epochs 12 --dropout 0")
SCRIPT = Path(__file__).parents[2] / "training/text_classification.py"


def losses(folder):
    """The logged training losses of a run, by step."""
    state = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])) / "trainer_state.json"
    return {entry["step"]: entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry}


def test_a_run_learns_and_leaves_a_checkpoint_with_its_numbers(texts, tmp_path):
    folder = tmp_path / "run"
    results = main([*texts, *SHAPE, *RUN, *LEARN, "--output_dir", str(folder)])
    record = json.loads((folder / "run.json").read_text())
    assert results["test_accuracy"] == 1.0
    assert json.loads((folder / "all_results.json").read_text()) == results
    assert {"eval_macro_f1", "test_recall_good", "test_recall_bad", "train_loss"} <= set(results)
    assert {"loss_curve.png", "README.md", "model.safetensors", "tokenizer.json"} <= {p.name for p in folder.iterdir()}
    assert record["status"] == "finished"
    assert {split: part["rows"] for split, part in record["data"].items()} == {
        "train": 48,
        "validation": 12,
        "test": 12,
    }
    assert record["class_shares"] == {"bad": pytest.approx(2 / 3), "good": pytest.approx(1 / 3)}


def test_neither_a_token_nor_a_local_path_is_published(texts, tmp_path):
    folder = tmp_path / "run"
    secret = ["--hub_token", "hf_secret", "--run_name", str(tmp_path / "name")]
    main([*texts, *SHAPE, *RUN, *secret, "--num_train_epochs", "1", "--output_dir", str(folder)])
    for name in ("run.json", "README.md"):
        text = (folder / name).read_text()
        assert "hf_secret" not in text
        assert str(tmp_path) not in text
    assert not list(folder.rglob("training_args.bin"))  # the Trainer's pickle of every option


def test_class_names_come_back_from_the_pipeline(texts, tmp_path):
    folder = tmp_path / "run"
    main([*texts, *SHAPE, *RUN, *LEARN, "--output_dir", str(folder)])
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert isinstance(model, BidirBertForSequenceClassification)
    assert model.config.id2label == {0: "bad", 1: "good"}
    classify = pipeline("text-classification", str(folder), device="cpu")
    assert [prediction["label"] for prediction in classify(["a good film", "a bad film"])] == ["good", "bad"]


def test_an_interrupted_run_continues_to_the_same_losses_and_numbers(texts, tmp_path, crash):
    whole, broken = ([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    crash(main, broken, after_steps=10)  # 6 steps an epoch: in the middle of the second
    (tmp_path / "broken" / "checkpoint-11").mkdir()  # as if saving had been cut short
    results = main(broken)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert results["test_loss"] == expected["test_loss"]
    assert results["train_loss"] == expected["train_loss"]
    assert json.loads((tmp_path / "broken/run.json").read_text())["resumed_from"] == "checkpoint-6"


def test_an_interrupted_run_is_not_continued_with_other_settings(texts, tmp_path, crash):
    argv = [*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / "run")]
    crash(main, argv, after_steps=7)
    with pytest.raises(InputError, match="interrupted run with other settings: seed was not given and is 5"):
        main([*argv, "--seed", "5"])


def test_a_finished_run_is_overwritten_only_when_asked(texts, tmp_path):
    argv = [*texts, *SHAPE, *RUN, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "run")]
    main(argv)
    before = (tmp_path / "run/run.json").read_bytes()
    with pytest.raises(InputError, match=r"holds a finished run.*--overwrite_output_dir"):
        main(argv)
    assert (tmp_path / "run/run.json").read_bytes() == before
    main([*argv, "--overwrite_output_dir", "--seed", "1"])
    assert json.loads((tmp_path / "run/run.json").read_text())["seed"] == 1


def test_a_folder_with_other_files_is_refused(texts, tmp_path):
    with pytest.raises(InputError, match="is not empty and holds no run"):
        main([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path)])


def test_the_labels_of_the_test_split_change_no_weight(texts, tmp_path):
    main([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / "true")])
    file = texts[texts.index("--test_file") + 1]
    table = Dataset.from_parquet(file, cache_dir=str(tmp_path / "cache"))
    shuffled = table.remove_columns("label").add_column("label", table["label"][::-1])
    shuffled.to_parquet(file)
    main([*texts, *SHAPE, *RUN, "--output_dir", str(tmp_path / "shuffled")])
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("true", "shuffled"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_early_stopping_ends_a_run_that_no_longer_improves(texts, tmp_path):
    options = ["--early_stopping_patience", "2", "--num_train_epochs", "30", "--learning_rate", "0"]
    results = main([*texts, *SHAPE, *RUN, *options, "--output_dir", str(tmp_path / "run")])
    assert results["epoch"] == 3.0


def test_a_stock_softmax_checkpoint_starts_unchanged(texts, tmp_path):
    main([*texts, *SHAPE, *RUN, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "first")])
    vocabulary = BidirBertForSequenceClassification.from_pretrained(tmp_path / "first").config.vocab_size
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    stock = BertForSequenceClassification(BertConfig(vocab_size=vocabulary, **shape))
    stock.save_pretrained(tmp_path / "stock")
    for file in (tmp_path / "first").glob("tokenizer*"):
        (tmp_path / "stock" / file.name).write_bytes(file.read_bytes())
    start = ["--model_name_or_path", str(tmp_path / "stock"), "--max_length", "12", "--learning_rate", "0"]
    main([*texts, *RUN, *start, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "second")])
    model = BidirBertForSequenceClassification.from_pretrained(tmp_path / "second")
    assert model.config.attn_negative_mass == 0.0
    ids = torch.arange(5, 13)[None]
    torch.testing.assert_close(model(ids).logits, stock.eval()(ids).logits)


def test_a_bidir_checkpoint_keeps_its_attention(texts, tmp_path):
    first = [
        "--attn_negative_mass",
        "0.5",
        "--num_train_epochs",
        "1",
        "--output_dir",
        str(tmp_path / "first"),
    ]
    main([*texts, *SHAPE, *RUN, *first])
    second = [
        "--model_name_or_path",
        str(tmp_path / "first"),
        "--max_length",
        "12",
        "--num_train_epochs",
        "1",
    ]
    main([*texts, *RUN, *second, "--output_dir", str(tmp_path / "second")])
    assert BidirBertForSequenceClassification.from_pretrained(tmp_path / "second").config.attn_negative_mass == 0.5


@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "Electra", "ModernBert", "GPT2", "Llama"])
def test_any_checkpoint_of_texts_is_fine_tuned(family, texts, tmp_path, caplog):
    start = ["--model_name_or_path", checkpoint_of(family, tmp_path / "stock"), "--max_length", "12"]
    brief = ["--max_steps", "2", "--save_steps", "1", "--attn_negative_mass", "1"]
    results = main([*texts, *RUN, *start, *brief, "--output_dir", str(tmp_path / "run")])
    assert results["test_accuracy"] is not None
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert type(model).__name__ == f"Bidir{family}ForSequenceClassification"
    assert (model.config.id2label, model.config.attn_negative_mass) == ({0: "bad", 1: "good"}, 1.0)
    classify = pipeline("text-classification", str(tmp_path / "run"), device="cpu")
    assert len(classify(["a good film", "bad"], padding=True, batch_size=2)) == 2
    said = " ".join(record.getMessage() for record in caplog.records)
    assert ("has no padding token; texts are padded with its [SEP]" in said) == (family in WITHOUT_PADDING)
    assert ("Training starts without centring" in said) == (family in ("Llama", "ModernBert"))  # which have no biases
    assert "is not supported for text-classification" not in said


def test_texts_longer_than_the_positions_behind_the_padding_are_refused(texts, tmp_path):
    source = checkpoint_of("Roberta", tmp_path / "stock", max_position_embeddings=16, pad_token_id=1)
    start = ["--model_name_or_path", source, "--max_length"]
    with pytest.raises(InputError, match="above 2 and at most 14, the positions"):
        main([*texts, *RUN, *start, "15", "--output_dir", str(tmp_path / "run")])
    main([*texts, *RUN, *start, "14", "--max_steps", "1", "--output_dir", str(tmp_path / "run")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attn_activation", "tanmax"], "tanmax"),
        (["--attn_negative_mass", "1.5"], "1.5"),
        (["--num_attention_heads", "3"], "3 does not divide 16"),
        (["--initializer_range", "0"], "expected initializer_range above 0"),
        (["--attn_implementation", "flash_attention_9"], "flash_attention_9"),
        (["--early_stopping_patience", "2", "--load_best_model_at_end", "false"], "expected load_best_model_at_end"),
        (["--max_train_samples", "0"], "expected max_train_samples of at least 1"),
        (["--model_name_or_path", "{tmp}"], "shape a model from scratch"),
        (["--resume_from_checkpoint", "{tmp}"], "expected auto, never or the folder of a Trainer checkpoint"),
    ],
)
def test_a_bad_option_is_one_clear_error_and_leaves_no_folder(texts, tmp_path, options, message):
    options = [option.format(tmp=tmp_path) for option in options]
    with pytest.raises(InputError, match=message):
        main([*texts, *SHAPE, *RUN, *options, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "has no config.json, so it is not a checkpoint folder"),
        ('{"model_type": "gpt_2"}', r"has the model type 'gpt_2', which .* does not know\. Did you mean \"gpt2\""),
        ('{"model_type": "vit"}', "is 'vit', which has no AutoModelForSequenceClassification; it has AutoModel"),
    ],
)
def test_a_folder_that_is_no_classifier_of_texts_is_one_clear_error(texts, tmp_path, config, message):
    (tmp_path / "other").mkdir()
    if config:
        (tmp_path / "other/config.json").write_text(config)
    with pytest.raises(InputError, match=message):
        main(
            [
                *texts,
                *RUN,
                "--model_name_or_path",
                str(tmp_path / "other"),
                "--output_dir",
                str(tmp_path / "run"),
            ]
        )


def test_the_script_prints_one_line_for_bad_input():
    done = subprocess.run([sys.executable, SCRIPT, "--train_file", "nowhere.csv"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: expected a data file at nowhere.csv; there is no such file or folder"
    assert "Traceback" not in done.stderr


def test_an_interrupted_script_prints_one_line_on_how_to_resume(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        run_script(interrupted)
    assert (
        capsys.readouterr().err
        == "interrupted; run the same command again to continue from the last checkpoint, or else from the start\n"
    )


def test_help_teaches_with_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "python training/text_classification.py --train_file train.csv --test_file test.csv" in text
    assert "--attn_negative_mass" in text


def test_a_new_model_can_look_through_a_window(texts, tmp_path):
    window = ["--attn_scope", "window", "--attn_window", "2", "--max_steps", "1"]
    main([*texts, *SHAPE, *RUN, *window, "--output_dir", str(tmp_path / "run")])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run", attn_implementation="eager")
    coefficients = model(torch.arange(5, 12)[None], output_attentions=True).attentions[0][0]
    positions = torch.arange(7)
    far = (positions - positions[:, None]).abs() > 2
    assert (coefficients[:, far] == 0).all()
    assert (coefficients[:, ~far] != 0).all()
    with pytest.raises(InputError, match=r'expected an attn_window of at least 1 for attn_scope="window"'):
        main([*texts, *SHAPE, *RUN, "--attn_scope", "window", "--output_dir", str(tmp_path / "other")])


def test_new_weights_spread_as_asked(texts, tmp_path):
    still = ["--initializer_range", "0.3", "--max_steps", "1", "--learning_rate", "0"]
    main([*texts, *SHAPE, *RUN, *still, "--output_dir", str(tmp_path / "run")])
    weights = load_file(tmp_path / "run/model.safetensors")
    assert weights["classifier.weight"].std() == pytest.approx(0.3, rel=0.2)


def test_guessing_masked_words_too_adds_to_the_loss_and_no_weights(texts, tmp_path):
    plain, joint = tmp_path / "plain", tmp_path / "joint"
    once = ["--num_train_epochs", "1"]
    main([*texts, *SHAPE, *RUN, *once, "--output_dir", str(plain)])
    main([*texts, *SHAPE, *RUN, *once, "--masked_lm_weight", "0.5", "--output_dir", str(joint)])
    shapes = [{k: v.shape for k, v in load_file(folder / "model.safetensors").items()} for folder in (plain, joint)]
    assert shapes[0] == shapes[1]
    assert losses(joint)[1] > losses(plain)[1] + 1


def test_a_negative_weight_of_masked_words_is_refused(texts, tmp_path):
    with pytest.raises(InputError, match="masked_lm_weight of at least 0; got -1"):
        main([*texts, *SHAPE, "--masked_lm_weight", "-1", "--output_dir", str(tmp_path)])


def test_a_new_model_without_further_options_stops_early_and_prints_a_line_per_epoch(texts, tmp_path, capsys):
    options = shlex.split("--learning_rate 0 --use_cpu --disable_tqdm true --per_device_train_batch_size 2")
    results = main([*texts, *SHAPE, *options, "--output_dir", str(tmp_path / "run")])
    assert results["epoch"] == 6.0  # the first one, and the patience of 5
    output = capsys.readouterr().out
    assert sum(line.startswith("epoch ") for line in output.splitlines()) == 6
    assert "{" not in output


def test_early_stopping_waits_for_the_end_of_a_schedule(texts, tmp_path):
    options = ["--learning_rate", "0", "--use_cpu", "--disable_tqdm", "true", "--negative_mass_until", "0.5"]
    results = main([*texts, *SHAPE, *options, "--num_train_epochs", "14", "--output_dir", str(tmp_path / "run")])
    assert results["epoch"] > 7.0  # half of the epochs, rather than the first one and the patience of 5
