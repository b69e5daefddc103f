"""`hf-bidir models`: the project's checkpoints in a clone; tests/hub/test_push.py lists those on a Hub."""

import json
from pathlib import Path

import huggingface_hub
import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app, models

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "model_cards"


def read(name, file):
    return json.loads((CARDS / name / file).read_text(encoding="utf-8"))


@pytest.fixture
def listed():
    return {entry.name: entry for entry in models.local_models(CARDS)}


def test_in_a_clone_every_card_is_listed_with_its_score_and_its_weights():
    listed = {entry["name"]: entry for entry in json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)}
    assert listed.keys() == {file.parent.name for file in CARDS.glob("*/README.md")}
    digits, results = listed["digits-tanhmax"], read("digits-tanhmax", "all_results.json")
    assert (digits["metric"], digits["value"]) == ("accuracy", results["test_accuracy"])
    assert (digits["has_weights"], digits["megabytes"]) == (True, 0.6)
    assert listed["sst2-minilm-softmax"]["has_weights"] is False
    assert listed["sst2-minilm-softmax"]["megabytes"] == pytest.approx(2 * 22_713_986 / 1e6, abs=0.1)


def test_a_healed_checkpoint_has_the_task_of_its_teacher(listed):
    assert listed["sst2-minilm-tanhmax"].task == listed["sst2-minilm-softmax"].task == "text-classification"
    assert listed["imdb-lm-tanhmax"].score == "perplexity 70.0803"


def test_the_table_has_a_line_per_checkpoint_with_its_score():
    told = CliRunner().invoke(app, ["models"])
    line = next(line for line in told.stdout.splitlines() if line.startswith("digits-tanhmax"))
    for cell in ("image-classification", "accuracy 0.9861", "local", "scikit-learn digits"):
        assert cell in line


def test_the_listed_path_loads_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(Path(entry.source, "config.json").is_file() for entry in models.local_models(CARDS))


def test_a_folder_without_recorded_runs_is_not_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "__file__", str(tmp_path / "site-packages/hf_bidir/cli/models.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model_cards/mine").mkdir(parents=True)
    assert models.clone_folder() is None
    (tmp_path / "model_cards/mine/run.json").write_text("{}")
    assert models.clone_folder() == tmp_path / "model_cards"


def test_without_a_clone_and_without_the_hub_the_error_is_one_line(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(models, "clone_folder", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_models", refuse)
    told = CliRunner().invoke(app, ["models"])
    assert (told.exit_code, "did not list the models of hf-bidir (no route)" in told.stderr) == (2, True)


def test_the_page_of_checkpoints_names_the_account_of_the_setting():
    assert f"`{models.NAMESPACE}/NAME`" in (CARDS / "README.md").read_text(encoding="utf-8")
