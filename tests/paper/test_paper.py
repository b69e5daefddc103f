"""hf-bidir paper: cells that are trained once, failures that stop nothing else, a report of all, clear refusals."""

import copy
import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Trainer
from typer.testing import CliRunner

from hf_bidir.cli import app
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.errors import InputError
from hf_bidir.finetune.files import write_json
from hf_bidir.finetune.synthetic import SETS, SyntheticTexts, write_splits
from hf_bidir.paper import run
from hf_bidir.paper.cells import MEASURES, Cell, train
from hf_bidir.paper.data import data_files
from hf_bidir.paper.experiments import GROUPS, TEXTS, VARIANTS, Experiment, mean_pooling, read_experiments
from hf_bidir.paper.measures import Amount, measure, orientation, scores_of
from hf_bidir.paper.report import _by_example, _range, interval, polar_separation, write_report
from hf_bidir.paper.run import best_rate, check, run_paper
from hf_bidir.paper.settings import Settings

TINY = SyntheticTexts(texts=400, vocabulary=40, polar=10)
RECIPE = {
    **{"embedding_size": 16, "hidden_size": 8, "vocab_size": 60, "max_length": 12, "num_train_epochs": 8},
    **{"per_device_train_batch_size": 16, "use_cpu": True},
}
AMOUNT = Amount(texts=12, draws=4, attacked=2, training_texts=24)


@pytest.fixture(scope="module")
def experiment():
    return Experiment("tiny", "Tiny", RECIPE, [1e-2], synthetic="tiny", published={"softmax": {"accuracy": 98.0}})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_splits(TINY.split(), tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(experiment, files, tmp_path_factory):
    """A trained cell of TanhMax, with its model and tokenizer."""
    cell = Cell(experiment, "tanhmax", 1e-2, 0, tmp_path_factory.mktemp("paper"))
    train(cell, files)
    return cell, *load_checkpoint(cell.run)


def test_a_label_changes_no_logit(trained, files):
    _, model, tokenizer = trained
    inputs = tokenizer(Dataset.from_parquet(str(files["test"]))["text"][:20], return_tensors="pt")
    labels = torch.arange(20) % 2
    without = model(**inputs).logits
    for shuffled in (labels, labels.flip(0), 1 - labels):
        assert model(**inputs, labels=shuffled).logits.equal(without)


def test_a_finished_cell_is_not_trained_again(trained, files, monkeypatch):
    cell, _, _ = trained
    monkeypatch.setattr(Trainer, "train", lambda *a, **k: pytest.fail("it was trained again"))
    train(cell, files)
    assert cell.results["test_accuracy"] > 0.9
    assert cell.failure is None


def test_a_cell_that_fails_says_why_and_raises_nothing(experiment, files, tmp_path):
    cell = Cell(experiment, "softmax", 1e30, 0, tmp_path)
    train(cell, files)
    assert not cell.trained
    assert re.match(r"InputError: the training loss became (nan|inf)", cell.failure)


def test_words_are_decoded_as_they_stand_in_the_text(trained, files):
    _, _, tokenizer = trained
    text = Dataset.from_parquet(str(files["test"]))["text"][0]
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == text.split()


def test_slopes_are_those_of_the_margin_between_the_classes(trained, files):
    _, model, tokenizer = trained
    inputs = dict(tokenizer(Dataset.from_parquet(str(files["test"]))["text"][:3], return_tensors="pt"))
    found = scores_of(model, inputs)
    difference = model.classifier.weight[1] - model.classifier.weight[0]
    values = model.rnn.attention.value(model.rnn.embeddings(inputs["input_ids"]))
    torch.testing.assert_close(found.slopes, (values @ difference).detach(), rtol=1e-4, atol=1e-5)
    logits = model(**inputs).logits
    bias = model.classifier.bias[1] - model.classifier.bias[0]
    torch.testing.assert_close(
        found.contributions.sum(1) + bias, logits[:, 1] - logits[:, 0], rtol=1e-4, atol=1e-4
    )  # a single layer with a linear readout: contributions add up to the margin


def test_oriented_coefficients_are_positive_for_positive_words_and_negative_for_negative_ones(trained, files):
    _, model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    sign, share = orientation(model, tokenizer, texts, 12)
    inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    coefficients = sign * scores_of(model, inputs).coefficients
    words = [tokenizer.convert_ids_to_tokens(row) for row in inputs["input_ids"]]
    means = {
        kind: np.mean([a for row, values in zip(words, coefficients.tolist(), strict=True)
                       for word, a in zip(row, values, strict=True) if word.startswith(kind)])
        for kind in ("pos", "neg")
    }  # fmt: skip
    assert means["pos"] > 0 > means["neg"]
    assert 0.5 <= share <= 1


def test_the_orientation_turns_with_the_gauge(trained, files):
    _, model, tokenizer = trained
    texts = Dataset.from_parquet(str(files["train"]))["text"][:40]
    sign, share = orientation(model, tokenizer, texts, 12)
    turned = copy.deepcopy(model)
    with torch.no_grad():  # the same function from coefficients of the other sign
        for layer in (turned.rnn.attention.score.key, turned.rnn.attention.value):
            layer.weight.neg_()
            layer.bias.neg_()
    assert orientation(turned, tokenizer, texts, 12) == (-sign, pytest.approx(share))


def test_everything_is_measured_with_a_number_per_text(trained, files):
    cell, _, _ = trained
    model, tokenizer = load_checkpoint(cell.run)
    splits = {name: Dataset.from_parquet(str(file)) for name, file in files.items()}
    human = Dataset.from_dict({"tokens": [["pos0", "word3", "neg1"]], "token_labels": [[4, 2, 0]]})
    found = measure(model.requires_grad_(False), tokenizer, splits, human, AMOUNT, 12, polar_words=True)
    per_text = {key: values for key, values in found.items() if isinstance(values, list)}
    assert {len(values) for key, values in per_text.items() if not key.startswith(("human", "adversary"))} == {12}
    assert len(per_text["adversary"]) == 2
    assert len(per_text["human_sign_au"]) == 1
    assert found["human_positive"] == [0.5]
    assert found["human_sign_au"] == [1.0]


def test_the_mean_variant_is_the_mean_over_words():
    scores, keep = torch.randn(2, 1, 1, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()[:, None, None]
    assert mean_pooling(scores, keep)[:, 0, 0].tolist() == [[0.25] * 4, [0.5, 0.5, 0, 0]]


def test_polar_words_apart_from_neutral_ones_are_counted_in_standard_errors():
    def entry(values):
        return [len(values), 0.0, sum(values), sum(v * v for v in values)]

    generator = np.random.default_rng(0)
    kinds = {"pos0": 0.5, "neg0": -0.3, "word0": 0.1}
    words = {word: entry(generator.normal(mean, 0.1, 100)) for word, mean in kinds.items()}
    error = (2 * 0.1**2 / 100) ** 0.5
    assert polar_separation(words) == pytest.approx({"pos": 0.4 / error, "neg": -0.4 / error}, rel=0.2)
    assert np.isnan(polar_separation({"pos0": words["pos0"]})["neg"])


def test_every_experiment_of_the_repository_can_be_read():
    for experiment in read_experiments(list(GROUPS["all"])):
        assert experiment.learning_rates
        assert experiment.synthetic or experiment.files
        assert set(experiment.variants) <= set(VARIANTS)
        if experiment.name in TEXTS:
            assert experiment.published["tanhmax"]["accuracy"] > 80


def test_an_experiment_that_there_is_not_is_one_error():
    with pytest.raises(InputError, match=r"there is no experiment 'sts'; choose among .*Did you mean"):
        read_experiments(["sts"])


def test_files_that_are_missing_are_all_named(tmp_path):
    result = CliRunner().invoke(
        app, ["paper", "sst", "20news", "--data-dir", str(tmp_path), "--output", str(tmp_path / "r")]
    )
    assert result.exit_code == 2
    for file in ("sst2/train.parquet", "sst2/test.parquet", "20news_sports/paper_train.parquet"):
        assert file in result.output


def test_a_finished_report_is_not_overwritten_unless_asked(experiment, tmp_path):
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(InputError, match="holds a finished report; give --resume"):
        check([experiment], Settings(tmp_path), resume=False)
    check([experiment], Settings(tmp_path), resume=True)


def test_the_whole_run_ends_in_a_report_of_every_variant_and_goes_on_where_it_was(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "tiny", TINY)
    monkeypatch.setattr(Settings, "amount", AMOUNT)
    settings = Settings(tmp_path, seeds=1, jobs=1)
    experiment = dataclasses.replace(experiment, variants=["softmax", "tanhmax", "mean"])
    report = run_paper([experiment], settings).read_text()
    (row,) = re.findall(r"^\| Tiny \| 240 / 40 / 120 \| 1 \| 98.0 \|.*$", report, re.MULTILINE)
    assert len(re.findall(r"\d+\.\d", row)) == 1 + 3
    recalls = re.findall(r"\| negative (\d+\.\d), positive (\d+\.\d) \|", report)
    assert len(recalls) == 3
    for variant in experiment.variants:
        assert report.count(f"| Tiny | {variant} |") == 5
    assert re.search(r"^\| Tiny \| 0.01 \| 0.01 \|", report, re.MULTILINE)  # no star: it is not the end of anything
    assert "`hf-bidir paper tiny --seeds 1`" in report
    assert all((tmp_path / name).is_file() for name in re.findall(r"\]\((.*\.png)\)", report))
    assert len(re.findall(r"\.png", report)) == 3
    measured = json.loads(next(tmp_path.rglob("measures.json")).read_text())
    assert measured["words"]
    next(tmp_path.rglob("measures.json")).unlink()
    monkeypatch.setattr(Trainer, "train", lambda *a, **k: pytest.fail("it was trained again"))
    assert run_paper([experiment], settings, resume=True).read_text() == report
    diverged = tmp_path / "tiny/softmax/lr1e+30-seed0/failure.txt"  # of a rate that is not chosen
    diverged.parent.mkdir()
    diverged.write_text("InputError: the training loss became nan\n\nTraceback")
    again = run_paper([experiment], settings, resume=True).read_text()
    assert "- `tiny/softmax/lr1e+30-seed0`: InputError: the training loss became nan\n" in again


def fake(rate, accuracy=None, **fields):
    results = {} if accuracy is None else {"eval_accuracy": accuracy, "test_accuracy": 1 - accuracy}
    return SimpleNamespace(experiment="e", variant="v", learning_rate=rate, results=results, **fields)


def test_the_learning_rate_is_chosen_by_validation_accuracy_and_never_by_a_failed_cell():
    assert best_rate([fake(1, 0.8), fake(2, 0.9), fake(3, 0.7)], "e", "v") == 2
    assert best_rate([fake(1), fake(2, 0.1), fake(3)], "e", "v") == 2


def test_of_equally_good_learning_rates_the_middle_one_is_chosen():
    assert best_rate([fake(3, 0.9), fake(1, 0.9), fake(2, 0.9), fake(4, 0.8)], "e", "v") == 2
    assert best_rate([fake(1, 0.9), fake(2, 0.9)], "e", "v") == 1


def test_an_interval_holds_the_spread_of_texts_and_of_seeds():
    def cells(*rows):
        return [{"tau": list(row)} for row in rows]

    assert interval(cells([0.25, 0.25], [0.25, 0.25]), "tau") == "0.250 [0.250, 0.250]"
    assert interval(cells([0, 0], [1, 1]), "tau") == "0.500 [0.000, 1.000]"  # seeds differ
    assert interval(cells([0, 1], [0, 1]), "tau") == "0.500 [0.000, 1.000]"  # texts differ
    assert interval(cells([0.5, None], [0.5, None]), "tau") == "0.500 [0.500, 0.500]"
    assert interval(cells([None, None]), "tau") == "not defined"
    assert interval(cells([0.5]), "another") == ""


def test_shares_of_signs_show_how_far_seeds_differ():
    assert _range([0.5, 1.0, None]) == "0.750 (0.50 to 1.00)"
    assert _range([None]) == ""


def test_the_papers_numbers_stand_above_ours():
    one = Experiment("e", "E", {}, [1.0], published={"softmax": {"gradient_tau": 0.84, "accuracy": 98.0}})
    cell = SimpleNamespace(measures={"tau_a_gradient": [0.5, 0.5]})
    table = _by_example([one], {"e": {"softmax": [cell]}}, {"tau_a_gradient": "a, gradient"})
    assert table.splitlines()[2:] == ["| E | softmax, paper | 0.840 |", "| E | softmax | 0.500 [0.500, 0.500] |"]


def test_labels_that_are_kept_get_new_numbers_in_their_order(tmp_path):
    (tmp_path / "news").mkdir()
    rows = Dataset.from_dict({"text": [f"text {row}" for row in range(40)], "label": [row % 4 for row in range(40)]})
    for split in ("train", "test"):
        rows.to_parquet(str(tmp_path / f"news/{split}.parquet"))
    files = {"train": "train.parquet", "test": "test.parquet"}
    one = Experiment("n", "N", {}, [1.0], folder="news", files=files, keep_labels=[2, 0], class_names=["two", "zero"])
    test = Dataset.from_parquet(str(data_files(one, tmp_path, tmp_path / "made")["test"]))
    assert {(text, label) for text, label in zip(test["text"], test["label"], strict=True)} == {
        (f"text {row}", 0 if row % 4 == 2 else 1) for row in range(40) if row % 2 == 0
    }


def test_a_folder_made_in_another_way_is_refused(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "tiny", TINY)
    run.files_of(experiment, Settings(tmp_path))
    run.files_of(experiment, Settings(tmp_path, data_dir=tmp_path))  # texts that are made need no folder
    with pytest.raises(InputError, match="made with another quick: False, now it is True"):
        run.files_of(experiment, Settings(tmp_path, quick=True))
    longer = dataclasses.replace(experiment, recipe=RECIPE | {"num_train_epochs": 9})
    with pytest.raises(InputError, match="made with another recipe"):
        run.files_of(longer, Settings(tmp_path))
    other = dataclasses.replace(experiment, validation_share=0.3)
    with pytest.raises(InputError, match=r"made with another validation_share: 0.1, now it is 0.3"):
        run.files_of(other, Settings(tmp_path))


def test_what_is_not_on_the_hub_is_named_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="not on the Hub: 20news; give --data-dir"):
        check(read_experiments(["20news"]), Settings(tmp_path), resume=False)
    (tmp_path / "20news_sports").mkdir()
    for name in ("paper_train", "paper_test"):
        (tmp_path / f"20news_sports/{name}.parquet").touch()
    check(read_experiments(["20news"]), Settings(tmp_path, tmp_path), resume=False)
    with pytest.raises(InputError, match=r"lacks: .*sst2/train.parquet"):  # whose vocabulary is needed
        check(read_experiments(["20news"]), Settings(tmp_path, tmp_path, as_published=True), resume=False)


def test_a_file_that_is_missing_is_named_once(tmp_path):
    with pytest.raises(InputError) as caught:
        check(read_experiments(["sst"]), Settings(tmp_path, tmp_path, as_published=True), resume=False)
    assert str(caught.value).count("sst2/train.parquet") == 1


def test_models_of_one_layer_and_of_many_stand_in_their_own_tables(tmp_path):
    flat = Experiment("flat", "Flat", {}, [1.0])
    deep = Experiment("deep", "Deep", {}, [1.0], kind="images")
    chosen = {one.name: {"tanhmax": [Cell(one, "tanhmax", 1.0, 0, tmp_path)]} for one in (flat, deep)}
    for one, key in ((flat, "permutation"), (deep, "permutation")):
        folder = chosen[one.name]["tanhmax"][0].folder
        folder.mkdir(parents=True)
        write_json(folder / MEASURES, {key: [0.5]})
    report = write_report([flat, deep], chosen, Settings(tmp_path)).read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## )", report, re.MULTILINE | re.DOTALL))
    for title, own, other in (
        ("Does the answer change with the coefficients?", "| Flat |", "| Deep |"),
        ("Deep models", "| Deep |", "| Flat |"),
    ):
        assert own in sections[title]
        assert other not in sections[title]
