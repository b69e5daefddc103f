"""training/recurrent_classification.py: train a recurrent model, and continue from its checkpoint."""

import shlex

import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from hf_bidir import BidirRnnForSequenceClassification
from tests.training.conftest import AT_THE_END, read
from training.recurrent_classification import main

RUN = shlex.split(
    "--embedding_size 16 --hidden_size 8 --dropout 0 --max_length 12 --num_train_epochs 15 --learning_rate 1e-2 "
    "--per_device_train_batch_size 8 --use_cpu --disable_tqdm true"
)
BRIEF = shlex.split("--max_length 12 --max_steps 1 --use_cpu --disable_tqdm true")


@pytest.mark.parametrize("options", ["", "--encoder lstm --bidirectional --attn_score feed_forward"])
def test_a_run_learns_and_its_folder_works_in_a_pipeline(texts, tmp_path, options):
    words = [*texts, *RUN, *AT_THE_END, *shlex.split(options)]
    assert main([*words, "--output_dir", str(tmp_path / "run")])["test_accuracy"] == 1.0
    model = pipeline("text-classification", model=str(tmp_path / "run")).model
    assert isinstance(model, BidirRnnForSequenceClassification)
    chosen = ("lstm", "feed_forward") if options else ("none", "per_token")
    assert (model.config.encoder, model.config.attn_score) == chosen


def test_a_softmax_checkpoint_is_trained_on_as_a_signed_one_of_the_same_shape(texts, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    brief = [*texts, *BRIEF, *AT_THE_END]
    main([*brief, "--attn_activation", "softmax", "--embedding_size", "16", "--output_dir", str(first)])
    onward = ["--model_name_or_path", str(first), "--attn_activation", "tanhmax", "--output_dir", str(second)]
    main([*brief, *onward])
    config = AutoModelForSequenceClassification.from_pretrained(second).config
    assert (config.embedding_size, config.attn_activation) == (16, "tanhmax")
    assert read(second / "previous_run.json") == read(first / "run.json")
