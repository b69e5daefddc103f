"""The negative mass moves as asked, is saved with the weights that it trained, and resumes."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset
from transformers import TrainerState, TrainingArguments

from hf_bidir import BidirBertConfig, NegativeMassSchedule
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import ScheduleArguments
from hf_bidir.finetune.schedule import schedule_for
from hf_bidir.finetune.trainer import SignedTrainer
from tests.tiny_models import signed_model

STEPS = 41
MASSES = st.floats(1e-6, 1)


class Sentences(Dataset):
    """Twenty short sentences; the class is whether the first word is an odd number."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"input_ids": torch.arange(index, index + 6) % 30, "labels": torch.tensor(index % 2)}


def trained(folder, schedule, resume=None, **options):
    options = {"max_steps": 10, "save_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1} | options
    args = TrainingArguments(
        str(folder), save_strategy="steps", use_cpu=True, disable_tqdm=True, report_to="none", **options
    )
    trainer = SignedTrainer(
        model=signed_model("bert"), args=args, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[schedule]
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@given(MASSES, MASSES, st.floats(0, 1))
def test_the_shift_of_the_scores_moves_evenly_from_start_to_end(start, end, until):
    schedule = NegativeMassSchedule(start, end, until=until)
    masses = torch.tensor([schedule.value(step, STEPS) for step in range(STEPS)], dtype=torch.double)
    progress = torch.linspace(0, 1, STEPS, dtype=torch.double)
    share = (progress / until).clamp_max(1) if until > 0 else torch.ones_like(progress)
    low, high = math.log(start), math.log(end)
    torch.testing.assert_close(masses.log(), low + share * (high - low))


@pytest.mark.parametrize(("name", "value"), [("until", 1.5), ("start", 0.0), ("end", 0.0), ("end", 2.0)])
def test_an_impossible_schedule_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}|{value}"):
        NegativeMassSchedule(**{name: value})


def test_an_interrupted_run_resumes_to_the_same_weights_and_a_checkpoint_names_its_negative_mass(tmp_path):
    schedule = NegativeMassSchedule(0.01, 1.0, until=0.8)
    whole = trained(tmp_path / "whole", schedule)
    logged = [entry["negative_mass"] for entry in whole.state.log_history if "negative_mass" in entry]
    assert logged == pytest.approx([schedule.value(step, 10) for step in range(10)])
    for step in (4, 8):
        config = json.loads((tmp_path / f"whole/checkpoint-{step}/config.json").read_text())
        assert config["attn_negative_mass"] == schedule.value(step - 1, 10)
    resumed = trained(tmp_path / "resumed", schedule, resume=str(tmp_path / "whole/checkpoint-4"))
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def test_a_model_without_negative_mass_is_refused():
    model = SimpleNamespace(config=BidirBertConfig(attn_activation="softmax"))
    with pytest.raises(ValueError, match="'softmax'"):
        NegativeMassSchedule().on_train_begin(None, TrainerState(), None, model=model)


def test_only_checkpoints_at_the_end_value_can_be_the_best(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "metric_for_best_model": "loss"}
    # the loss of the first checkpoint is the best one: the learning rate is ruinous
    ruinous = {"learning_rate": 1.0, "load_best_model_at_end": True}
    run = trained(tmp_path, NegativeMassSchedule(until=0.6), **ruinous, **options)
    losses = {entry["step"]: entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry}
    assert min(losses, key=losses.get) < 7  # which without the schedule would be the best
    assert run.state.best_global_step >= 7
    assert run.model.config.attn_negative_mass == 1.0


@pytest.mark.parametrize(("options", "start"), [({}, math.exp(-12)), ({"negative_mass_start": 0.1}, 0.1)])
def test_a_schedule_starts_close_to_softmax_unless_an_option_or_the_model_says_otherwise(options, start):
    arguments = ScheduleArguments(negative_mass_until=0.5, **options)
    schedule = schedule_for(arguments, BidirBertConfig(attn_negative_mass=0.0))
    assert (schedule.start, schedule.end, schedule.until) == (start, 1.0, 0.5)
    schedule = schedule_for(arguments, BidirBertConfig(attn_negative_mass=0.7))
    assert schedule.start == options.get("negative_mass_start", 0.7)
    assert schedule_for(ScheduleArguments(), BidirBertConfig()) is None
    several = BidirBertConfig(attn_negative_mass=[0.5] * 12)
    if not options:
        with pytest.raises(InputError, match="give --negative_mass_start"):
            schedule_for(arguments, several)
