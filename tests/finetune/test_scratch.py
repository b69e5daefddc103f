import pytest

from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.scratch import set_scratch_duration


@pytest.fixture
def args(tmp_path):
    return RunArguments(output_dir=str(tmp_path), use_cpu=True)


def test_a_new_model_trains_until_validation_stops_improving(args):
    note = set_scratch_duration(args, "image-classification", ["train_file"], 10_000)
    assert "10 epochs without a better validation accuracy" in note
    assert (args.num_train_epochs, args.early_stopping_patience) == (100, 10)
    assert args.lr_scheduler_type == "constant_with_warmup"


@pytest.mark.parametrize(
    "option",
    ["num_train_epochs", "max_steps", "early_stopping_patience", "load_best_model_at_end", "model_name_or_path"],
)
def test_an_option_about_the_duration_and_a_checkpoint_keep_the_plain_defaults(args, option):
    before = args.to_dict()
    assert set_scratch_duration(args, "image-classification", [option], 10_000) is None
    assert args.to_dict() == before


def test_the_users_schedule_of_the_learning_rate_is_kept(args):
    set_scratch_duration(args, "text-classification", ["lr_scheduler_type", "warmup_ratio", "logging_steps"], 9_999)
    assert (args.lr_scheduler_type, args.warmup_steps, args.logging_steps) == ("linear", 0.1, 0.02)


def test_a_small_data_set_is_evaluated_after_twenty_steps_instead_of_an_epoch(args):
    note = set_scratch_duration(args, "image-classification", ["train_file"], 54)
    assert "10 evaluations, one every 20 steps, without a better validation accuracy" in note
    assert (args.eval_strategy, args.eval_steps, args.save_steps) == ("steps", 20, 20)
    assert args.num_train_epochs == 100 * 20 / 2
