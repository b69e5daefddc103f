"""python -m research.paper end to end: finished cells are reused, one report, clear errors."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import Trainer

from benchmarks.runs import read_runs
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, write_json
from research.paper import run
from research.paper.cells import Cell, failures
from research.paper.experiments import Experiment, Settings, read_experiments
from research.paper.report import write_report
from research.paper.run import best_rate, beyond, check, run_paper
from research.synthetic import SETS
from research.tests.paper.conftest import AMOUNT, RECIPE, TINY


@pytest.fixture(scope="module")
def finished(experiment, tmp_path_factory):
    """A whole run of three variants: its experiment, settings and report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "tiny", TINY)
        patch.setattr(Settings, "amount", AMOUNT)
        settings = Settings(tmp_path_factory.mktemp("run"), seeds=1, jobs=1)
        three = dataclasses.replace(experiment, variants=["softmax", "tanhmax", "mean"])
        yield three, settings, run_paper([three], settings).read_text()


@pytest.fixture
def copied(finished, tmp_path):
    """The same in a folder that a test may change."""
    experiment, settings, report = finished
    return experiment, dataclasses.replace(settings, root=shutil.copytree(settings.root, tmp_path / "run")), report


def test_the_report_has_every_variant_in_every_table_its_command_and_its_pictures(finished):
    experiment, settings, report = finished
    (row,) = re.findall(r"^\| Tiny \| 240 / 40 / 120 \| 1 \| 98.0 \|.*$", report, re.MULTILINE)
    assert len(re.findall(r"\d+\.\d", row)) == 1 + 3 + 1  # the paper's, three variants, TanhMax minus softmax
    assert "`python -m research.paper tiny --seeds 1`" in report
    assert re.search(r"^\| Tiny \| 0.01 \| 0.01 of 1 \|", report, re.MULTILINE)  # no star: the end of nothing
    shown = re.findall(r"\]\((.*\.png)\)", report)
    assert len(shown) == 3
    assert all((settings.root / name).is_file() for name in shown)
    recalls = re.findall(r"\| negative (\d+\.\d), positive (\d+\.\d) \|", report)
    assert len(recalls) == 3
    for variant in [*experiment.variants, "TanhMax − softmax"]:
        assert report.count(f"| Tiny | {variant} |") == (3 if "−" in variant else 5)


def test_the_numbers_of_every_cell_are_in_a_table(finished):
    experiment, settings, report = finished
    rows = read_runs(settings.root / "cells.csv")
    assert list(rows["variant"]) == experiment.variants
    assert f"| {' | '.join(f'{100 * accuracy:.1f}' for accuracy in rows['test_accuracy'])} |" in report
    assert rows["versions"].str.startswith("torch ").all()
    assert (rows["data_version"].str.len() > 20).all()


def test_rows_of_other_experiments_in_the_folder_stay(copied, monkeypatch):
    experiment, settings, _ = copied
    cells = read_runs(settings.root / "cells.csv")
    other = dataclasses.replace(experiment, name="other", title="Other")
    cells.assign(data="other").to_csv(settings.root / "cells.csv", index=False)
    facts = read_json(settings.root / "settings.json")
    both = {"other": facts["experiments"]["tiny"], **facts["experiments"]}
    write_json(settings.root / "settings.json", {**facts, "experiments": both})
    monkeypatch.setattr(run, "write_report", lambda root, experiments: write_report(root, [experiment, other]))
    text = run_paper([experiment], settings, resume=True).read_text()
    assert text.count("| Tiny |") == text.count("| Other |") > 0


def test_other_amounts_are_refused_in_a_folder_with_results(finished):
    experiment, settings, _ = finished
    with pytest.raises(InputError, match="has results with quick False; got True"):
        run_paper([experiment], dataclasses.replace(settings, quick=True), resume=True)


def test_a_run_goes_on_where_it_was_and_ends_in_the_same_report(copied, monkeypatch):
    experiment, settings, report = copied
    lost = next(settings.root.rglob("measures.json"))
    assert json.loads(lost.read_text())["words"]
    lost.unlink()
    (settings.root / "cells.csv").unlink()
    monkeypatch.setattr(Trainer, "train", lambda *a, **k: pytest.fail("it was trained again"))
    assert run_paper([experiment], settings, resume=True).read_text() == report
    shutil.rmtree(settings.root / experiment.name)  # rows that are there need their runs no more
    assert run_paper([experiment], settings, resume=True).read_text() == report


def test_a_learning_rate_that_failed_and_was_not_chosen_is_named_in_the_report(copied):
    experiment, settings, _ = copied
    diverged = settings.root / "tiny/softmax/lr1e+30-seed0/failure.txt"
    diverged.parent.mkdir()
    diverged.write_text("InputError: the training loss became nan\n\nTraceback")
    (settings.root / "cells.csv").unlink()
    report = run_paper([experiment], settings, resume=True).read_text()
    assert "- `tiny/softmax/lr1e+30-seed0`: InputError: the training loss became nan\n" in report


def test_a_finished_report_is_not_overwritten_unless_asked(experiment, tmp_path):
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(InputError, match="has a finished report; pass --resume"):
        check([experiment], Settings(tmp_path), resume=False)
    check([experiment], Settings(tmp_path), resume=True)


def test_a_grid_grows_until_its_best_rate_is_inside(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "best_rate", lambda grid, *_: max(cell.learning_rate for cell in grid))
    wide = dataclasses.replace(experiment, variants=["softmax"], learning_rates=[1e-3, 3e-3])
    grid, best = run.select_rates([wide], Settings(tmp_path), lambda *_: None)
    assert sorted({cell.learning_rate for cell in grid}) == [1e-3, 3e-3, 9e-3, 2.7e-2]
    assert {cell.seed for cell in grid} == {0, 1, 2}
    assert best == {("tiny", "softmax"): 2.7e-2}
    assert beyond([1e-3, 3e-3, 1e-2], 3e-3) is None
    assert beyond([1e-2], 1e-2) is None
    assert beyond([1e-3, 3e-3, 1e-2], 1e-3) == 3.3e-4


def test_a_folder_made_in_another_way_is_refused(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "tiny", TINY)
    run.files_of(experiment, Settings(tmp_path))
    run.files_of(experiment, Settings(tmp_path, data_dir=tmp_path))  # texts that are made need no folder
    longer = dataclasses.replace(experiment, recipe=RECIPE | {"num_train_epochs": 9})
    other = dataclasses.replace(experiment, validation_share=0.3)
    for changed, quick, message in (
        (experiment, True, "quick False; got True"),
        (longer, False, "recipe "),
        (other, False, r"validation_share 0.1; got 0.3"),
    ):
        with pytest.raises(InputError, match=f"created with {message}"):
            run.files_of(changed, Settings(tmp_path, quick=quick))


FILES = {"train": "train.parquet", "test": "test.parquet"}
STORED = Experiment("e", "E", {}, [1.0], folder=".", files=FILES, class_names=["no", "yes"])


def test_data_may_move_but_not_change(tmp_path):
    def folder(name, first):
        (tmp_path / name).mkdir()
        for split, file in FILES.items():
            rows = {"text": [f"{split} {text}" for text in (first, *range(19))], "label": [0, 1] * 10}
            Dataset.from_dict(rows).to_parquet(str(tmp_path / name / file))
        return Settings(tmp_path / "out", tmp_path / name)

    run.files_of(STORED, folder("here", "a text"))
    run.files_of(STORED, folder("elsewhere", "a text"))
    with pytest.raises(InputError, match="created with data "):
        run.files_of(STORED, folder("changed", "another text"))


def test_a_file_without_labels_is_one_error(tmp_path):
    for file in FILES.values():
        Dataset.from_dict({"text": ["a"]}).to_parquet(str(tmp_path / file))
    with pytest.raises(InputError, match=r"expected a column label in .*train.parquet; it has text"):
        run.files_of(STORED, Settings(tmp_path / "out", tmp_path))


def test_what_is_not_on_the_hub_is_named_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="not on the Hub: 20news; pass a folder with the data as --data-dir"):
        check(read_experiments(["20news"]), Settings(tmp_path), resume=False)
    (tmp_path / "20news_sports").mkdir()
    for name in ("paper_train", "paper_test"):
        (tmp_path / f"20news_sports/{name}.parquet").touch()
    check(read_experiments(["20news"]), Settings(tmp_path, tmp_path), resume=False)
    with pytest.raises(InputError, match=r"lacks: .*sst2/train.parquet"):  # whose vocabulary is needed
        check(read_experiments(["20news"]), Settings(tmp_path, tmp_path, as_published=True), resume=False)


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({1: [0.8], 2: [0.9], 3: [0.7]}, 2),
        ({1: [None], 2: [0.1], 3: [None]}, 2),  # failed cells
        ({1: [0.8, 0.8], 2: [0.9, 0.6]}, 1),  # the mean over seeds
        ({1: [0.8, 0.8], 2: [0.9, None]}, 1),
        ({3: [0.9], 1: [0.9], 2: [0.9], 4: [0.8]}, 2),  # the middle one of equally good ones
        ({1: [0.9], 2: [0.9]}, 1),
    ],
)
def test_the_learning_rate_is_chosen_by_mean_validation_accuracy(accuracies, best):
    cells = [
        SimpleNamespace(
            experiment="e", variant="v", learning_rate=rate, results={} if one is None else {"eval_accuracy": one}
        )
        for rate, seeds in accuracies.items() for one in seeds
    ]  # fmt: skip
    assert best_rate(cells, "e", "v") == best


def test_a_failed_cell_records_its_error_and_raises_nothing(experiment, files, tmp_path):
    cell = Cell(experiment, "softmax", 1e30, 0, tmp_path)
    cell.train(files, Settings(tmp_path))
    assert not cell.trained
    assert re.match(r"InputError: the training loss became (nan|inf)", failures(cell.experiment, cell.root)[0][1])
