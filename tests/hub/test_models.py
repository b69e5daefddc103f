"""`hf-bidir models`: the project's checkpoints, in a clone and on the Hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_bidir.cli import app
from hf_bidir.hub import published
from hf_bidir.hub.published import NAMESPACE, local_models
from hf_bidir.hub.snippet import CARDS
from tests.hub_server import Account, File, Hub, Repository

ROOT = Path(__file__).parents[2]
LISTED = """
from hf_bidir.cli import app
app(["models", "--hub", "--json"])
"""


def read(name: str, file: str) -> dict:
    return json.loads((ROOT / CARDS / name / file).read_text(encoding="utf-8"))


def test_in_a_clone_every_card_is_listed_with_its_score_over_seeds_and_its_weights():
    listed = {one["name"]: one for one in json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)}
    assert listed.keys() == {file.parent.name for file in (ROOT / CARDS).glob("*/README.md")}
    digits, scores = listed["digits-tanhmax"], read("digits-tanhmax", "seeds.json")["this"]["scores"]["accuracy"]
    assert digits["mean"] == pytest.approx(sum(scores) / len(scores))
    assert (digits["seeds"], digits["metric"]) == (len(scores), "accuracy")
    assert digits["checkpoint"] == read("digits-tanhmax", "all_results.json")["test_accuracy"]
    assert (digits["has_weights"], digits["megabytes"], digits["source"]) == (True, 0.6, "model_cards/digits-tanhmax")
    assert listed["sst2-minilm-softmax"]["has_weights"] is False
    assert listed["sst2-minilm-softmax"]["megabytes"] == pytest.approx(2 * 22_713_986 / 1e6, abs=0.1)


def test_a_healed_checkpoint_is_listed_with_its_teachers_task_and_with_the_data_of_its_later_evaluation():
    listed = {one.name: one for one in local_models(ROOT / CARDS)}
    healed, teacher = listed["sst2-minilm-tanhmax"], listed["sst2-minilm-softmax"]
    assert read(healed.name, "run.json")["task"] == "distillation"
    assert (healed.task, healed.data) == (teacher.task, teacher.data)


def test_the_table_has_a_line_per_checkpoint_with_mean_and_deviation():
    told = CliRunner().invoke(app, ["models"])
    assert told.exit_code == 0
    line = next(line for line in told.stdout.splitlines() if line.startswith("digits-tanhmax"))
    for cell in ("image-classification", "accuracy 0.9700 ± 0.0112 (5)", "local", "scikit-learn digits"):
        assert cell in line


def test_the_listed_path_loads_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = next(one for one in local_models(ROOT / CARDS) if one.name == "digits-tanhmax")
    assert Path(model.source, "config.json").is_file()


def test_one_seed_has_no_deviation():
    model = next(one for one in local_models(ROOT / CARDS) if one.name == "imdb-lm-tanhmax")
    assert (model.seeds, model.deviation) == (1, None)
    assert "±" not in model.score


def test_outside_a_clone_the_list_comes_from_the_hub(tmp_path):
    with Hub({"hf_owner": Account(NAMESPACE)}) as hub:
        for name in (f"{NAMESPACE}/digits-tanhmax", "someone/other"):
            repository = hub.repositories[name] = Repository(name, private=False)
            texts = {
                file.name: File(file.read_bytes(), lfs=False)
                for file in (ROOT / CARDS / "digits-tanhmax").glob("*.json")
            }
            repository.add("first", texts | {"model.safetensors": File(b"x" * 2_000_000, lfs=True)}, "main", None)
        environment = os.environ | {
            "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": "", "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        told = subprocess.run(
            [sys.executable, "-c", LISTED], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert told.returncode == 0, told.stderr
    (digits,) = json.loads(told.stdout)
    assert (digits["name"], digits["source"]) == ("digits-tanhmax", f"{NAMESPACE}/digits-tanhmax")
    assert (digits["megabytes"], digits["has_weights"], digits["seeds"]) == (2.0, False, 5)


def test_a_folder_without_recorded_runs_is_not_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_bidir.__file__", str(tmp_path / "site-packages/hf_bidir/__init__.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / CARDS / "mine").mkdir(parents=True)
    assert published.clone_folder() is None
    (tmp_path / CARDS / "mine/run.json").write_text("{}")
    assert published.clone_folder() == tmp_path / CARDS


def test_without_a_clone_and_without_the_hub_the_error_is_one_line(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(published, "clone_folder", lambda: None)
    monkeypatch.setattr(published.HfApi, "list_models", refuse)
    told = CliRunner().invoke(app, ["models"])
    assert (told.exit_code, "did not list the models of" in told.stderr) == (2, True)


def test_the_page_of_checkpoints_names_the_account_of_the_setting():
    assert f"`{NAMESPACE}/NAME`" in (ROOT / CARDS / "README.md").read_text(encoding="utf-8")
