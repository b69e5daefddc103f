"""Which folder a run may use, and where it continues."""

import json

import pytest

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.output_folder import checkpoint_to_resume, clear_run
from hf_bidir.finetune.record import RECORD

INTERRUPTED = {"status": "running", "recipe": {}, "data": {}, "examples_per_step": 32}


@pytest.fixture
def folder(tmp_path):
    """A run that was interrupted while it saved its twelfth step, with a folder of the user's own."""
    run = tmp_path / "run"
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-12", "checkpoint-best"):
        (run / name).mkdir(parents=True)
        (run / name / "trainer_state.json").touch()
    (run / "checkpoint-12/trainer_state.json").unlink()
    (run / RECORD).write_text(json.dumps(INTERRUPTED))
    return run


def resume(folder, model=None, record=INTERRUPTED, **options):
    args = RunArguments(output_dir=str(folder), use_cpu=True, **options)
    args.typed = {"model_name_or_path": model}
    return checkpoint_to_resume(args, record)


@pytest.mark.parametrize("recipe", [{}, {"run_name": "again"}, {"per_device_train_batch_size": 4}])
def test_a_run_continues_from_its_last_complete_numbered_checkpoint(folder, recipe):
    assert resume(folder, record=INTERRUPTED | {"recipe": recipe}) == str(folder / "checkpoint-10")


def test_a_new_or_empty_folder_is_used(tmp_path):
    for folder in (tmp_path, tmp_path / "new"):
        assert resume(folder) is None


def test_clearing_removes_the_run_and_leaves_what_is_not_of_it(folder):
    for name in (
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("adapter_config.json", "adapter_model.safetensors"),  # of a run of another kind, which would load them
    ):
        (folder / name).touch()
    clear_run(folder)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-best"]


def test_overwriting_starts_at_the_first_step(folder, tmp_path):
    for model in (None, str(tmp_path)):
        assert resume(folder, model, overwrite_output_dir=True) is None


def test_neither_the_source_of_the_run_nor_a_folder_without_a_run_is_overwritten(folder):
    with pytest.raises(InputError, match=r"checkpoint-9, which --model_name_or_path names"):
        resume(folder, model=str(folder / "checkpoint-9"), overwrite_output_dir=True)
    (folder / RECORD).unlink()
    with pytest.raises(InputError, match=r"run\.json is missing"):
        resume(folder, overwrite_output_dir=True)


def test_a_finished_run_is_left_alone(folder):
    (folder / RECORD).write_text(json.dumps(INTERRUPTED | {"status": "finished"}))
    with pytest.raises(InputError, match="finished run"):
        resume(folder)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"recipe": {"seed": 5}}, "other settings: seed was not given and is 5"),
        ({"data": {"train": {"sha256": "1"}}}, "data was .* and is .*'1'"),
        ({"examples_per_step": 4}, r"examples per step \(.*\) was 32 and is 4"),
        ({"adapter": {"base": {"sha256": "2"}}}, "base of the adapter was .* and is .*'2'"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(folder, now, message):
    with pytest.raises(InputError, match=message):
        resume(folder, record=INTERRUPTED | now)
