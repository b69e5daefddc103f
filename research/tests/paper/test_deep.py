"""Deep models in the report: from images and texts to curves; rows and seeds by machine; groups of experiments."""

import io
import re

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image

from hf_bidir.finetune.data.image_data import new_image_processor
from hf_bidir.finetune.data.sources import read_table
from research.paper.experiments import GROUPS, Amount, Experiment, Settings, experiment_names, read_experiments
from research.paper.figures import curves
from research.paper.measures import RANKINGS, SHARES, measure_deep, special_tokens, taus_with
from research.paper.run import files_of, main, run_paper
from tests.explain.conftest import bert, tokenizer, vit

AMOUNT = Amount(images=6, deep_texts=4, deep_draws=2)
SMALL = {
    **{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8},
    **{"num_train_epochs": 2, "per_device_train_batch_size": 8, "use_cpu": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with images/ and texts/, two classes each."""
    root = tmp_path_factory.mktemp("data")
    generator, labels = np.random.default_rng(0), np.arange(40) % 2
    for name in ("images", "texts"):
        (root / name).mkdir()
    for split in ("train", "test"):
        images = []
        for label in labels:
            pixels = generator.integers(0, 80, (8, 8, 3), dtype=np.uint8)
            pixels[:, 4 * label : 4 * label + 4] += 150  # bright on the left or on the right
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            images.append(stream.getvalue())
        Dataset.from_dict({"image": images, "label": labels}).to_parquet(str(root / f"images/{split}.parquet"))
        texts = [f"a {('bad', 'good')[label]} film number {row} of {split}" for row, label in enumerate(labels)]
        Dataset.from_dict({"text": texts, "label": labels}).to_parquet(str(root / f"texts/{split}.parquet"))
    return root


def experiment(kind, **options):
    folder, names, recipe = {
        "images": (
            "images",
            ["left", "right"],
            {"image_size": 8, "patch_size": 4, "augment": "rand-m3-n1", "flip": False},
        ),
        "bert": ("texts", ["negative", "positive"], {"vocab_size": 80, "max_length": 10, "masked_lm_weight": 0.1}),
    }[kind]
    files = {"train": "train.parquet", "test": "test.parquet"}
    common = {"variants": ["softmax", "tanhmax"], "folder": folder, "files": files, "class_names": names}
    return Experiment(f"tiny-{kind}", f"Tiny {kind}", SMALL | recipe, [1e-2], kind=kind, **common | options)


@pytest.mark.parametrize(("kind", "pictures"), [("images", ["curves", "overlays"]), ("bert", ["curves"])])
def test_a_deep_experiment_goes_from_files_to_the_report(kind, pictures, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Settings, "amount", AMOUNT)
    one = experiment(kind)
    report = run_paper([one], Settings(tmp_path, folder, seeds=1, jobs=1)).read_text()
    assert "## Failed" not in report
    row = rf"^\| Tiny {kind} \| 36 / 4 / 40 \| (0 / 0 \| )?1 \| \d+\.\d \| \d+\.\d \| [+-]?\d+\.\d \|$"
    assert re.search(row, report, re.MULTILINE)
    assert "## Deep models" in report
    assert "## Does attention rank" not in report
    for variant in one.variants:
        assert len(re.findall(rf"^\| Tiny {kind} \| {variant} \| \d+\.\d{{3}} \|.*$", report, re.MULTILINE)) >= 2
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == [f"tiny-{kind}-{name}" for name in pictures]


def test_curves_and_their_areas_are_of_every_ranking(folder):
    model = vit()
    test = read_table(str(folder / "images/test.parquet"))
    images = [Image.open(io.BytesIO(content)) for content in test["image"]]
    test = Dataset.from_dict({"image": images, "label": test["label"]})
    found = measure_deep(model, new_image_processor(model.config.image_size), test, AMOUNT, None)
    for how in ("deletion", "insertion"):
        for name in RANKINGS:
            curve, areas = torch.tensor(found["curves"][f"{how} {name}"]), found[f"{how}_{name}"]
            assert len(areas) == 6
            expected = torch.trapezoid(curve, torch.tensor(SHARES)) / SHARES[-1]
            assert np.mean(areas) == pytest.approx(expected.item(), abs=1e-5)
    whole = [found["curves"][f"deletion {name}"][0] for name in RANKINGS]
    assert max(whole) == pytest.approx(min(whole))  # nothing is deleted yet


def test_texts_are_not_ranked_by_grad_cam_and_have_no_curve_of_it():
    test = Dataset.from_dict({"text": ["a good film", "a bad film !"]})
    found = measure_deep(bert(), tokenizer(), test, AMOUNT, 10)
    of_texts = [name for name in RANKINGS if name != "grad-cam"]
    assert set(found["curves"]) == {f"{how} {name}" for how in ("deletion", "insertion") for name in of_texts}
    panel = curves("Texts", {"tanhmax": found}).axes[0]
    assert [line.get_label() for line in panel.lines] == of_texts


def test_the_ends_of_a_text_and_the_class_token_are_neither_words_nor_patches():
    inputs = {"input_ids": torch.zeros(2, 5), "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
    assert special_tokens(None, inputs, 5).tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 0]]
    model = vit()
    side = model.config.image_size
    patches = (side // model.config.patch_size) ** 2
    pixels = torch.zeros(2, model.config.num_channels, side, side)
    special = special_tokens(model, {"pixel_values": pixels}, patches + 1)
    assert special.tolist() == [[True] + [False] * patches] * 2


def test_a_sample_of_the_rows_is_the_same_every_time_and_all_are_used_on_request(folder, tmp_path):
    one = experiment("bert", rows={"train": 20, "test": 10})
    for name, all_rows in (("a", False), ("b", False), ("c", True)):
        files_of(one, Settings(tmp_path / name, folder, all_rows=all_rows))
    rows = {name: read_table(str(tmp_path / name / "data/tiny-bert/train.parquet"))["text"][:] for name in "abc"}
    assert rows["a"] == rows["b"]
    assert (len(rows["a"]), len(rows["c"])) == (20, 36)
    assert len(read_table(str(tmp_path / "a/data/tiny-bert/test.parquet"))) == 10


def test_names_of_groups_stand_for_their_experiments():
    assert experiment_names(["sst", "vit", "sst"]) == ["sst", *GROUPS["vit"]]
    assert set(experiment_names(["all"])) == {one.name for one in read_experiments(list(GROUPS["all"]))}


def test_without_a_data_folder_a_group_runs_without_what_is_not_on_the_hub(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr("research.paper.run.run_paper", lambda experiments, *rest: ran.extend(experiments) or tmp_path)
    main(["texts"])
    assert "Left out: 20news" in capsys.readouterr().err
    assert [one.name for one in ran] == [name for name in GROUPS["texts"] if not name.startswith("20news")]
    main(["20news", "--output", str(tmp_path)])
    assert "Left out" not in capsys.readouterr().err


def test_opposite_scores_rank_magnitudes_alike_and_signed_effects_in_reverse():
    effect, keep = torch.tensor([[0.1, -0.4, 0.3, 0.0]]), torch.tensor([[True, True, True, False]])
    taus = taus_with(effect, {"contributions": -2 * effect, "gradient": effect, "attention": effect.abs()}, keep)
    assert taus["tau_contributions"] == [-1]
    assert taus["tau_|contributions|"] == [1]
    assert taus["tau_gradient"] == taus["tau_|attention|"] == [1]
    assert "tau_attention" not in taus  # it has no sign to compare
