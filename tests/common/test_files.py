import json

import pytest

from hf_bidir.common.files import check_place, replacing, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"accuracy": 1})

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half of it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert json.loads(path.read_text()) == {"accuracy": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """A working folder with runs/sst2-minilm, a checkpoint, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "runs/sst2-minilm/config.json", {})
    (tmp_path / "google").mkdir()


@pytest.mark.parametrize("source", ["gpt2", "google/vit", "runs/sst2-minilm", "./runs/sst2-minilm"])
def test_a_checkpoint_folder_and_a_name_that_may_be_on_the_hub_pass(checkpoints, source):
    assert check_place(source) is None  # and raises nothing


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("runs/sst2-minlm", 'Did you mean "sst2-minilm"?'),
        ("./runs/sst2-minlm", 'Did you mean "sst2-minilm"?'),
        ("runs/else/minlm", "check the path."),
        ("~/minilm", "check the path."),
        ("google", "check the path."),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused_without_the_hub(checkpoints, source, end):
    with pytest.raises(FileNotFoundError, match=f"found none at {source}; .*") as refused:
        check_place(source)
    assert str(refused.value).endswith(end)
