"""Which folder a run may use, and where it continues."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.output_folder import checkpoint_to_resume, clear_run, last_checkpoint, locked
from hf_bidir.finetune.record import RECORD
from tests.processes import locking

INTERRUPTED = {"status": "running", "recipe": {}, "data": {}, "examples_per_step": 32}


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
    for name in (
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("adapter_config.json", "adapter_model.safetensors"),  # of a run of another kind, which would load them
    ):
        (folder / name).touch()
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


def test_a_folder_that_holds_what_the_run_starts_from_is_not_overwritten(folder):
    with pytest.raises(InputError, match=r"would remove .*checkpoint-9, which --model_name_or_path names"):
        resume(folder, model=str(folder / "checkpoint-9"), overwrite_output_dir=True)


def test_a_finished_run_is_left_alone(folder):
    (folder / RECORD).write_text(json.dumps(INTERRUPTED | {"status": "finished"}))
    with pytest.raises(InputError, match="holds a finished run"):
        resume(folder)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"recipe": {"seed": 5}}, "interrupted run with other settings: seed was not given and is 5"),
        ({"data": {"train": {"sha256": "1"}}}, "data was .* and is .*'1'"),
        ({"examples_per_step": 4}, r"examples per step \(.*\) was 32 and is 4"),
        ({"adapter": {"base": {"sha256": "2"}}}, "base of the adapter was .* and is .*'2'"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(folder, now, message):
    args = RunArguments(output_dir=str(folder), use_cpu=True)
    with pytest.raises(InputError, match=message):
        checkpoint_to_resume(args, INTERRUPTED | now)
