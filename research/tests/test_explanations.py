"""The studies of explanations: agreement with labels, the default that follows, causal language models."""

import numpy as np
import pandas as pd
import pytest
import torch

import hf_bidir
from benchmarks.runs import read_runs
from hf_bidir.explain import token_scores
from hf_bidir.explain.registry import DEFAULTS
from research.explanations import causal, patches, report, run, words
from tests.explain.conftest import bert, tokenizer
from tests.tiny_models import stock_model


def test_a_score_of_zero_or_of_the_other_sign_disagrees_with_a_polar_word():
    pairs = [(np.array([2, -1, 0]), np.array([0.1, 0.2, -3.0])), (np.array([-2, 1]), np.array([-5.0, 0.0]))]
    assert run.human_sign(pairs)["human_sign"] == 0.5


def test_a_sentence_whose_scores_are_all_equal_has_a_tau_of_0():
    pairs = [(np.array([1, -1]), np.array([1.0, -1.0])), (np.array([1, -1]), np.array([0.0, 0.0]))]
    assert run.mean_tau(pairs) == pytest.approx(0.5)
    assert run.mean_tau(pairs[1:]) == 0
    assert run.mean_tau([(np.array([1, 1]), np.array([1.0, -1.0]))]) is None


def measured(**methods):
    """Rows of one model of SST-2, with human sign and deletion by method, on the half that chooses."""
    return pd.DataFrame(
        {
            "task": "sst2", "model": "softmax", "seed": 0, "half": "choice", "method": name, "human_sign": sign,
            "deletion": deletion,
        }
        for name, (sign, deletion) in methods.items()
    )  # fmt: skip


def test_the_order_counts_high_agreement_and_low_deletion_alike():
    runs = measured(**{"contributions": (0.7, 0.2), "chefer": (0.4, 0.6), "integrated-gradients": (0.8, 0.3)})
    found = report.ranks(runs, ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0.25, "chefer": 1, "integrated-gradients": 0.25}


def test_only_methods_that_were_measured_everywhere_are_ranked():
    runs = measured(**{"contributions": (0.7, 0.2), "chefer": (0.4, 0.6), "erasure": (0.9, 0.1)})
    others = measured(**{"contributions": (0.7, 0.2), "chefer": (0.4, 0.6)}).assign(model="tanhmax")
    found = report.ranks(pd.concat([runs, others]), ("sst2",), "choice", list(runs["method"]))
    assert found.loc[0].to_dict() == {"contributions": 0, "chefer": 1}


@pytest.mark.parametrize(("method", "ties"), [("attnlrp", True), ("contributions", True), ("chefer", False)])
def test_a_method_ties_with_the_first_inside_its_interval(method, ties):
    """The first one is ahead of the second in two seeds of three, and the last one is behind in all."""
    scores = [{"attnlrp": (0.9, 0.1), "contributions": (0.8, 0.2), "chefer": (0.1, 0.9)}] * 2
    scores.append({"attnlrp": (0.8, 0.2), "contributions": (0.9, 0.1), "chefer": (0.1, 0.9)})
    rows = [measured(**own).assign(seed=seed, task=task) for seed, own in enumerate(scores) for task in report.TEXTS]
    assert report.ties_with_first(pd.concat(rows), report.TEXTS, method) == ties


def test_both_default_methods_of_texts_tie_with_the_best_one():
    assert all(report.ties_with_first(read_runs(run.FILE), report.TEXTS, method) for method in DEFAULTS["text"])


def test_the_default_method_of_images_leads_on_the_half_that_chooses():
    runs = read_runs(patches.FILE)
    assert DEFAULTS["image"][0] == runs[runs["half"] == "choice"].groupby("method")["lead"].mean().idxmax()


def test_the_words_of_a_method_are_judged_by_their_removal_from_the_text():
    model, reader = bert(), tokenizer()
    of_methods = words.removed(model, reader, "a good film")

    def y(text):
        with torch.no_grad():
            logits = model(**reader(text, return_tensors="pt")).logits[0]
        return (logits[label] - logits[1 - label]).item()

    with torch.no_grad():
        label = int(model(**reader("a good film", return_tensors="pt")).logits.argmax())
    falls = [y("a good film") - y(text) for text in ("good film", "a film", "a good")]
    removal = of_methods["deletion"]
    assert (removal["falls"], removal["rises"]) == pytest.approx((max(falls), -min(falls)), abs=1e-5)
    scores = token_scores(model, reader("a good film", return_tensors="pt"), "erasure", label, instead_of=1 - label)
    strongest = scores[0, 1:-1].argmax()
    assert falls[strongest] < removal["falls"]  # another word than that of deletion
    assert of_methods["erasure"]["falls"] == pytest.approx(falls[strongest], abs=1e-5)
    assert of_methods["shuffled"]["opposite"] == of_methods["erasure"]["opposite"]  # the same scores
    assert of_methods["shuffled"]["correlation"] != of_methods["erasure"]["correlation"]


@pytest.fixture
def prompt():
    model = hf_bidir.signed(stock_model("llama"), negative_mass=0.0)
    return causal.Prompt(model, torch.tensor([[4, 5, 6, 7, 8, 9]]), list(range(10, 30)), 0)


def y_of(prompt, ids):
    with torch.no_grad():
        row = prompt.model(input_ids=torch.tensor([ids])).logits[0, -1]
    return (row[prompt.target] - row.mean()).item()


def test_y_falls_by_its_difference_without_the_removed_tokens(prompt):
    removed = torch.tensor([[False, True, False, True, False, False]])
    falls = prompt.falls(removed)
    assert falls["deleted"].item() == pytest.approx(prompt.y - y_of(prompt, [4, 6, 8, 9]), abs=1e-5)
    filled = [[4, new[1], 6, new[3], 8, 9] for new in prompt.replacements.tolist()]
    mean = sum(y_of(prompt, ids) for ids in filled) / len(filled)
    assert falls["replaced"].item() == pytest.approx(prompt.y - mean, abs=1e-5)


def test_a_row_per_method_and_seed_has_the_fall_without_the_best_quarter(prompt):
    rows = {(row["method"], row["seed"]): row for row in causal.measured(prompt)}
    effects = token_scores(prompt.model, prompt.inputs, "erasure", prompt.target, position=prompt.position)
    best = effects[0, :5].topk(2).indices  # a quarter of five, rounded up; y is read from the sixth
    removed = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, best, True)
    assert rows["erasure", 0]["deleted"] == pytest.approx(prompt.falls(removed)["deleted"].item(), abs=1e-3)
    assert rows["integrated-gradients", 0]["first"] == 0  # the first token is in its baseline
    assert ("random", 9) in rows


def test_y_falls_by_its_difference_once_the_strongest_patches_are_those_of_other_images():
    model = hf_bidir.signed(stock_model("vit"), negative_mass=0.0).requires_grad_(False)
    image, other = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    target, foil = model(pixel_values=image[None]).logits[0].topk(2).indices.tolist()
    choice = {"target": target, "instead_of": foil}
    scores = token_scores(model, {"pixel_values": image[None]}, "erasure", **choice)[0, 1:]  # of 4 x 4 patches
    mixed = image.clone()
    for patch in scores.topk(2).indices.tolist():  # a tenth of 16, rounded
        row, column = 2 * (patch // 4), 2 * (patch % 4)
        mixed[:, row : row + 2, column : column + 2] = other[:, row : row + 2, column : column + 2]
    rows = model(pixel_values=torch.stack([image, mixed])).logits
    y = rows[:, target] - rows[:, foil]
    found = patches.effects(model, torch.stack([image, *[other] * patches.OTHERS]), "erasure")
    assert found["falls_other"] == pytest.approx((y[0] - y[1]).item(), abs=1e-4)
    assert found["opposite"] == (scores.sum() < 0)


def test_a_blurred_pixel_is_the_mean_of_those_around_it_inside_the_image():
    image = torch.randn(1, 3, 28, 28)
    assert torch.allclose(patches.blurred(image)[0, :, 0, 20], image[0, :, :7, 14:27].mean((1, 2)), atol=1e-5)
