import json

import pytest

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import RunArguments
from hf_bidir.finetune.folder import RECORD, checkpoint_to_resume, clear_run, last_checkpoint

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
    return checkpoint_to_resume(args, INTERRUPTED, model)


def test_a_run_continues_from_its_last_numbered_checkpoint(folder):
    (folder / "checkpoint-11").touch()  # a file is no checkpoint
    assert resume(folder) == last_checkpoint(folder) == str(folder / "checkpoint-10")


def test_clearing_removes_the_run_and_leaves_what_is_not_of_it(folder):
    clear_run(folder)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-best"]


def test_overwriting_starts_at_the_first_step(folder):
    assert resume(folder, overwrite_output_dir=True) is None


def test_a_run_whose_record_cannot_be_read_may_be_overwritten_and_not_continued(folder):
    (folder / RECORD).write_text("{")
    assert resume(folder, overwrite_output_dir=True) is None
    with pytest.raises(InputError, match=r"run\.json cannot be read.*--overwrite_output_dir"):
        resume(folder)


def test_a_folder_without_a_run_is_not_overwritten(folder):
    (folder / RECORD).unlink()
    with pytest.raises(InputError, match=r"is not empty and holds no run \(run\.json is missing\)"):
        resume(folder, overwrite_output_dir=True)


@pytest.mark.parametrize("inside", [".", "checkpoint-10", "checkpoint-best"])
def test_a_folder_that_holds_the_model_to_start_from_is_not_overwritten(folder, inside):
    with pytest.raises(InputError, match=r"would remove .* which --model_name_or_path names"):
        resume(folder, model=str(folder / inside), overwrite_output_dir=True)


def test_a_folder_that_holds_the_checkpoint_to_resume_is_not_overwritten(folder):
    options = {"resume_from_checkpoint": str(folder / "checkpoint-9"), "overwrite_output_dir": True}
    with pytest.raises(InputError, match=r"would remove .* which --resume_from_checkpoint names"):
        resume(folder, **options)


def test_an_initial_model_in_another_folder_does_not_prevent_overwriting(folder, tmp_path):
    assert resume(folder, model=str(tmp_path), overwrite_output_dir=True) is None
