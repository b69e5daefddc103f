"""How long a new model trains, with how many threads, and what a run prints."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import NOT_SUPPORTED, RunArguments
from hf_bidir.finetune.run import (
    SMALL_MODEL,
    evaluation_line,
    recent_loss,
    set_scratch_duration,
    suitable_threads,
    summary,
)
from tests.tiny_models import stock_model


def scratch(task, examples, *typed):
    """Arguments after a duration was chosen where these options were typed, and the note about it."""
    args = RunArguments(output_dir="unused", use_cpu=True)
    args.typed = dict.fromkeys(typed, True)
    return args, set_scratch_duration(args, task, examples)


def test_a_new_model_trains_until_validation_stops_improving():
    args, note = scratch("image-classification", 10_000, "train_file")
    assert "10 epochs without a better validation accuracy" in note
    assert (args.num_train_epochs, args.early_stopping_patience) == (100, 10)
    assert args.lr_scheduler_type == "constant_with_warmup"


@pytest.mark.parametrize("option", ["num_train_epochs", "load_best_model_at_end", "model_name_or_path"])
def test_an_option_about_the_duration_and_a_checkpoint_keep_the_plain_defaults(option):
    args, note = scratch("image-classification", 10_000, option)
    assert note is None
    assert args.to_dict() == RunArguments(output_dir="unused", use_cpu=True).to_dict()


def test_the_users_schedule_of_the_learning_rate_is_kept():
    args, _ = scratch("text-classification", 9_999, "lr_scheduler_type", "warmup_ratio", "logging_steps")
    assert (args.lr_scheduler_type, args.warmup_steps, args.logging_steps) == ("linear", 0.1, 0.02)


def test_a_small_data_set_is_evaluated_after_twenty_steps_instead_of_an_epoch():
    args, note = scratch("image-classification", 54)
    assert "10 evaluations, one every 20 steps, without a better validation accuracy" in note
    assert (args.eval_strategy, args.eval_steps, args.save_steps) == ("steps", 20, 20)
    assert args.num_train_epochs == 100 * 20 / 2


@pytest.mark.parametrize(
    ("before", "parameters", "device", "chosen_by_user", "expected"),
    [
        (3, SMALL_MODEL - 1, "cpu", False, 2),
        (1, SMALL_MODEL - 1, "cpu", False, 1),
        (3, SMALL_MODEL, "cpu", False, 3),
        (3, 1000, "meta", False, 3),
        (3, 1000, "cpu", True, 3),
    ],
    ids=["small", "one thread", "large", "no CPU", "OMP_NUM_THREADS"],
)
def test_a_small_model_on_a_cpu_gets_two_threads_for_the_duration_of_its_run(
    before, parameters, device, chosen_by_user, expected, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    usual = torch.get_num_threads()
    torch.set_num_threads(before)
    try:
        model = SimpleNamespace(num_parameters=lambda: parameters)
        with suitable_threads(model, SimpleNamespace(device=torch.device(device))):
            within = torch.get_num_threads()
        assert (within, torch.get_num_threads()) == (expected, before)
    finally:
        torch.set_num_threads(usual)


OTHER_VALUES = {"eval_do_concat_batches": False, "label_names": ["label"], "past_index": 0}


@pytest.mark.parametrize("option", NOT_SUPPORTED)
def test_an_option_that_would_change_what_an_evaluation_sees_is_refused_by_its_name(option):
    if option not in RunArguments.__dataclass_fields__:
        pytest.skip("this version of transformers does not have it")
    with pytest.raises(InputError, match=f"--{option}"):
        RunArguments(output_dir="unused", use_cpu=True, **{option: OTHER_VALUES.get(option, True)})


def test_the_recent_loss_is_the_mean_of_the_steps_since_an_evaluation_and_of_at_most_one_epoch():
    every = [{"step": step, "epoch": step / 10, "loss": float(step)} for step in (4, 8, 10, 14, 18, 20)]
    assert recent_loss([]) is None
    assert recent_loss(every) == (14 * 4 + 18 * 4 + 20 * 2) / 10
    assert recent_loss([*every, {"step": 18, "epoch": 1.8, "eval_loss": 1.0}]) == 20.0


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
    ("family", "what", "measure"),
    [("bert", '"a text of your own"', "accuracy"), ("gpt2", '"the beginning of a text"', "perplexity")],
)
def test_the_next_commands_after_healing_a_model_with_a_head_explain_its_input_and_evaluate_it(family, what, measure):
    model = stock_model(family)
    text = summary(Path("runs/a"), {"eval_loss": 1.0}, "distillation", model)
    explain, evaluate = text.splitlines()[-2:]
    assert explain == f"Next: hf-bidir explain runs/a {what}"
    assert re.match(rf" +hf-bidir evaluate runs/a --data FILE +# {measure}, and the same without", evaluate)
