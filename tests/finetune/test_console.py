import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from hf_bidir.finetune import console
from hf_bidir.finetune.console import QuietProgress, evaluation_line, summary

SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


def test_a_line_has_losses_metrics_rate_and_negative_mass():
    logs = {"loss": 0.5, "eval_loss": 0.25, "eval_accuracy": 0.75, "eval_recall_bad": 1.0}
    line = evaluation_line(2.0, logs | {"learning_rate": 1e-3, "negative_mass": 0.1})
    assert line == (
        "epoch 2: train loss 0.5, validation loss 0.25, validation accuracy 0.75, learning rate 0.001, λ 0.1"
    )


def test_the_summary_prefers_test_metrics_and_names_the_next_command():
    model = SimpleNamespace(main_input_name="pixel_values")
    text = summary(Path("runs/a"), {"eval_loss": 1.0, "test_loss": 2.0}, "image-classification", model)
    assert "Checkpoint: runs/a" in text
    assert "Test: loss 2.0000" in text
    assert "Next: hf-bidir explain runs/a IMAGE" in text


@pytest.mark.parametrize(
    ("model", "what", "measure"),
    [
        (BertForSequenceClassification(BertConfig(**SHAPE)), '"a text of your own"', "accuracy"),
        (ViTForImageClassification(ViTConfig(**SHAPE)), "IMAGE", "accuracy"),
        (GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1)), '"the beginning of a text"', "perplexity"),
    ],
)
def test_the_next_commands_after_healing_a_model_with_a_head_explain_its_input_and_evaluate_it(model, what, measure):
    text = summary(Path("runs/a"), {"eval_loss": 1.0}, "distillation", model)
    explain, evaluate = text.splitlines()[-2:]
    assert explain == f"Next: hf-bidir explain runs/a {what}"
    assert re.match(rf" +hf-bidir evaluate runs/a --data FILE +# {measure}, and the same without", evaluate)


def test_the_next_command_after_healing_images_trains_on_images():
    model = SimpleNamespace(main_input_name="pixel_values")
    assert "image_classification.py" in summary(Path("runs/a"), {"eval_loss": 1.0}, "distillation", model)


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, True), (60.0, False)])
def test_the_bar_of_an_evaluation_appears_after_some_time_however_few_batches_it_has(
    seconds, shown, monkeypatch, capsys
):
    monkeypatch.setattr(console, "LONG_EVALUATION", seconds)
    progress, state = QuietProgress(), SimpleNamespace(is_world_process_zero=True)
    for _ in range(2):
        progress.on_prediction_step(None, state, None, eval_dataloader=[1, 2])
    progress.on_evaluate(None, state, None)
    assert ("evaluation" in capsys.readouterr().err) == shown
