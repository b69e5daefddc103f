"""training/recurrent_classification.py: train a recurrent model, and continue from its checkpoint."""

import json
import shlex

import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from hf_bidir import BidirRnnForSequenceClassification
from hf_bidir.common.errors import InputError
from training.recurrent_classification import main

RUN = shlex.split(
    "--embedding_size 16 --hidden_size 8 --dropout 0 --max_length 12 --num_train_epochs 15 --learning_rate 1e-2 "
    "--per_device_train_batch_size 8 --use_cpu --disable_tqdm true"
)
BRIEF = shlex.split("--max_length 12 --max_steps 1 --use_cpu --disable_tqdm true")


@pytest.mark.parametrize("options", ["", "--encoder lstm --bidirectional --attn_score feed_forward"])
def test_a_run_learns_and_its_folder_works_in_a_pipeline(texts, tmp_path, options):
    results = main([*texts, *RUN, *shlex.split(options), "--output_dir", str(tmp_path / "run")])
    assert results["test_accuracy"] == 1.0
    classify = pipeline("text-classification", model=str(tmp_path / "run"))
    assert isinstance(classify.model, BidirRnnForSequenceClassification)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["encoder"], config["attn_score"]) == (("lstm", "feed_forward") if options else ("none", "per_token"))


def test_a_softmax_checkpoint_is_trained_on_as_a_signed_one_of_the_same_shape(texts, tmp_path):
    first = ["--attn_activation", "softmax", "--embedding_size", "16", "--output_dir", str(tmp_path / "first")]
    main([*texts, *BRIEF, *first])
    onward = ["--model_name_or_path", str(tmp_path / "first"), "--attn_activation", "tanhmax"]
    main([*texts, *BRIEF, *onward, "--output_dir", str(tmp_path / "second")])
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second").config
    assert (config.embedding_size, config.attn_activation) == (16, "tanhmax")
    earlier = json.loads((tmp_path / "first" / "run.json").read_text())
    assert json.loads((tmp_path / "second" / "previous_run.json").read_text()) == earlier


def test_a_nan_loss_stops_the_run_with_an_error(texts, tmp_path):
    absurd = ["--learning_rate", "1e30", "--max_grad_norm", "1e30", "--logging_steps", "1"]
    with pytest.raises(InputError, match=r"the training loss became (nan|inf) before step .*--learning_rate"):
        main([*texts, *RUN, *absurd, "--output_dir", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
