"""The record of a run, the loss curve, and which folder a run may use."""

import json
import os

import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import save_file

from hf_bidir import signed
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import DataArguments, RunArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.record import (
    RECORD,
    begin_record,
    checkpoint_to_resume,
    clear_run,
    last_checkpoint,
    locked,
    publishable,
    save_loss_curve,
)
from tests.processes import locking
from tests.tiny_models import stock_model

INTERRUPTED = {"status": "running", "recipe": {}, "data": {}, "examples_per_step": 32}
LOSSES = [{"epoch": 0.5, "loss": 2.0}, {"epoch": 1.0, "loss": 1.0}, {"epoch": 1.0, "eval_loss": 1.2}]


@pytest.mark.parametrize("name", ["hub_token", "push_to_hub_token", "token"])
def test_a_secret_is_not_published(name):
    assert publishable({name: "hf_secret", "seed": 3}) == {"seed": 3}


@pytest.mark.parametrize(
    ("option", "value", "published"),
    [
        ("resume_from_checkpoint", "/home/anna/runs/one/checkpoint-7", "path/to/checkpoint-7"),
        ("resume_from_checkpoint", "runs/one", "runs/one"),
        ("fsdp_config", {"file": "/home/anna/fsdp.json", "size": 3}, {"file": "path/to/fsdp.json", "size": 3}),
        ("resume_from_checkpoint", None, None),
        ("train_file", "secret_project/train.csv", "path/to/train.csv"),
        ("train_file", ["/home/anna/a", "b/c"], ["path/to/a", "path/to/c"]),
        ("model_name_or_path", "runs/base", "path/to/base"),  # a folder here
        ("model_name_or_path", "someone/base", "someone/base"),
        ("dataset_name", "runs/photos", "runs/photos"),  # no folder here
    ],
)
def test_of_files_and_folders_only_the_last_part_is_published(option, value, published, tmp_path, monkeypatch):
    (tmp_path / "runs/base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert publishable({option: value}) == {option: published}


@pytest.mark.parametrize(("source", "kind"), [(None, "scratch"), (".", "folder"), ("someone/model", "hub")], ids=str)
def test_the_record_has_the_kind_of_origin_of_the_weights(source, kind):
    split = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    model = signed(stock_model("bert"))
    data, splits = DataArguments(dataset_name="/data/reviews"), Splits(split, split, None, ["no", "yes"], [])
    args = RunArguments(output_dir="unused", use_cpu=True)
    args.typed = {"model_name_or_path": source}
    record = begin_record("text-classification", data, splits, model, args)
    assert record["started_from"] == kind
    assert record["data"]["train"]["source"] == "reviews"


def test_a_run_without_accuracy_has_no_empty_panel(tmp_path):
    save_loss_curve(LOSSES, tmp_path / "losses.png")
    save_loss_curve([*LOSSES, {"epoch": 1.0, "eval_accuracy": 0.5}], tmp_path / "both.png")
    widths = [Image.open(tmp_path / name).width for name in ("losses.png", "both.png")]
    assert 2 * widths[0] == widths[1]


@pytest.fixture
def folder(tmp_path):
    """A run that was interrupted after its tenth step, with a folder of the user's own beside its checkpoints."""
    run = tmp_path / "run"
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-best"):
        (run / name).mkdir(parents=True)
        (run / name / "trainer_state.json").write_text("{}")
    (run / RECORD).write_text(json.dumps(INTERRUPTED))
    return run


def resume(folder, model=None, **options):
    args = RunArguments(output_dir=str(folder), use_cpu=True, **options)
    args.typed = {"model_name_or_path": model}
    return checkpoint_to_resume(args, INTERRUPTED)


def test_a_run_continues_from_its_last_complete_numbered_checkpoint(folder):
    (folder / "checkpoint-11").touch()  # a file is no checkpoint
    (folder / "checkpoint-12").mkdir()  # as if saving had been cut short
    assert resume(folder) == last_checkpoint(folder) == str(folder / "checkpoint-10")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "config.json"])
def test_a_checkpoint_with_a_file_that_was_cut_off_is_named_and_the_one_before_it_is_used(folder, name, caplog):
    weights, newest = {"weight": torch.ones(20)}, folder / "checkpoint-12"
    newest.mkdir()
    for file in ("trainer_state.json", "config.json"):
        (newest / file).write_text('{"a": 1}')
    for file in ("optimizer.pt", "rng_state.pth"):
        torch.save(weights, newest / file)
    save_file(weights, newest / "model.safetensors")
    assert resume(folder) == str(newest)
    os.truncate(newest / name, (newest / name).stat().st_size // 2)
    assert resume(folder) == str(folder / "checkpoint-10")
    assert f"{newest} is left out: its {name}" in caplog.text
    with pytest.raises(InputError, match=f"in {newest} {name} is missing or cut off"):
        resume(folder, resume_from_checkpoint=str(newest))


def test_a_folder_in_which_another_process_trains_is_refused_until_that_process_is_killed(tmp_path):
    folder = tmp_path / "run"
    with locking(folder) as other, pytest.raises(InputError, match=rf"run is in use by process {other.pid} on"):
        locked(folder).__enter__()
    with locked(folder):
        assert resume(folder) is None  # the lock is no file of somebody else
    assert not folder.exists()


def test_an_output_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot use the output folder: .*file"), locked(tmp_path / "file/run"):
        pass


def test_clearing_removes_the_run_and_leaves_what_is_not_of_it(folder):
    clear_run(folder)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-best"]


def test_overwriting_starts_at_the_first_step_even_where_the_record_cannot_be_read(folder, tmp_path):
    assert resume(folder, overwrite_output_dir=True) is None
    assert resume(folder, model=str(tmp_path), overwrite_output_dir=True) is None
    (folder / RECORD).write_text("{")
    assert resume(folder, overwrite_output_dir=True) is None
    with pytest.raises(InputError, match=r"run\.json cannot be read.*--overwrite_output_dir"):
        resume(folder)


def test_a_folder_without_a_run_is_not_overwritten(folder):
    (folder / RECORD).unlink()
    with pytest.raises(InputError, match=r"is not empty and holds no run \(run\.json is missing\)"):
        resume(folder, overwrite_output_dir=True)


@pytest.mark.parametrize("option", ["model_name_or_path", "resume_from_checkpoint"])
def test_a_folder_that_holds_what_the_run_starts_from_is_not_overwritten(folder, option):
    inside = str(folder / "checkpoint-9")
    options = {"model": inside} if option == "model_name_or_path" else {option: inside}
    with pytest.raises(InputError, match=rf"would remove .* which --{option} names"):
        resume(folder, overwrite_output_dir=True, **options)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"recipe": {"seed": 5}}, "interrupted run with other settings: seed was not given and is 5"),
        ({"data": {"train": {"sha256": "1"}}}, "the data files differ"),
        ({"examples_per_step": 4}, r"a step had 32 examples, and now 4 \(processes x per_device"),
        ({"adapter": {"base": {}}}, "the weights or the attention of the base model differ"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(folder, now, message):
    args = RunArguments(output_dir=str(folder), use_cpu=True)
    with pytest.raises(InputError, match=message):
        checkpoint_to_resume(args, INTERRUPTED | now)
