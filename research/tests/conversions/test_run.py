"""Conversions: variants, samples of data, the table, and models without a part of their coefficients."""

import pandas as pd
import torch
from datasets import Dataset
from transformers import BertTokenizer, Trainer

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, without_negatives
from hf_bidir.cli.script import parse
from hf_bidir.explain.orient import flip_heads
from hf_bidir.explain.signs import negative_variance_share
from research.conversions.measures import signs, without_as_much_positive, without_weaker_sign
from research.conversions.report import table
from research.conversions.run import TASKS, VARIANTS
from research.runs import TRAINING
from tests.explain.test_signs import batch_of, model_of

WORDS = [f"w{index}" for index in range(20)]


def run(variant, accuracy, without, seed=0, healing=0, versions="torch 2.14"):
    facts = {
        "task": "sst2",
        "variant": variant,
        "split": "test",
        "seed": seed,
        "healing": healing,
        "versions": versions,
    }
    costs = {f"accuracy_without_{part}": without for part in ("negatives", "weaker_sign")}
    numbers = {"accuracy": accuracy, "negative_share": 0.25, "relative_error": 0.1, "healing_minutes": 1.0}
    return facts | costs | numbers | {"accuracy_without_positive_mass": accuracy - 0.01}


def cells(runs, variant, seeds):
    """The cells of a row of the table of some runs, by heading."""
    text = table(pd.DataFrame(runs), "sst2", "test", seeds)
    header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    row = next(line for line in lines if line[0].startswith(variant))
    return dict(zip(header, row, strict=True))


def test_every_variant_names_options_that_the_tasks_know():
    for variant in VARIANTS.values():
        assert issubclass(variant.healer, Trainer)
        parse(TRAINING["distill"].OPTIONS, {"output_dir": "unused"} | (variant.heal or {}))
        last = {"eval_strategy": "no", "load_best_model_at_end": False}
        parse(TRAINING["bert"].OPTIONS, {"output_dir": "unused"} | last | (variant.tune or {}))


def test_the_table_pairs_accuracies_by_seed_and_averages_over_healings():
    softmax = [run("softmax", 0.90, 0.90, seed) for seed in range(2)]
    pairs = enumerate([(0.88, 0.90), (0.89, 0.91)])
    student = [run("tanhmax-30", one, 0.8, seed, healing) for seed, pair in pairs for healing, one in enumerate(pair)]
    row = cells([*softmax, *student], "TanhMax, healed for 30 steps", 2)
    # differences of -1 and 0 points: the t interval of two values is their mean ± 12.706 * 0.5
    assert (row["runs"], row["accuracy"], row["difference"]) == ("4", "89.5 ± 1.3", "-0.5 [-6.9, +5.9]")
    assert (row["cost of negatives"], row["cost of positive mass"], row["worth"]) == (
        "9.5 ± 1.3",
        "1.0 ± 0.0",
        "8.5 ± 1.3",
    )


def test_students_of_one_softmax_checkpoint_are_compared_over_healings():
    student = [run("after-tanhmax", 0.88, 0.8, healing=0), run("after-tanhmax", 0.90, 0.8, healing=1)]
    seeds = {"softmax": 1, "after-tanhmax": 2}
    row = cells([run("softmax", 0.9, 0.9), *student], "afterwards: TanhMax", seeds)
    assert row["difference"] == "-1.0 [-13.7, +11.7]"


def test_samples_for_training_and_validation_share_no_row(tmp_path):
    data = TASKS["imdb"]
    (tmp_path / "imdb").mkdir()
    Dataset.from_dict({"text": list(map(str, range(6000)))}).to_parquet(str(tmp_path / "imdb/train.parquet"))
    train, validation = (data.read(name, tmp_path, tmp_path / "runs")["text"] for name in ("train", "validation"))
    assert (len(train), len(validation)) == (4000, 1000)
    assert not set(train) & set(validation)


def test_removing_a_part_of_the_coefficients_changes_the_loss(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BidirBertConfig(**shape, vocab_size=25, initializer_range=1.0)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = [" ".join(WORDS[index : index + 5]) for index in range(12)]
    rows = Dataset.from_dict({"text": texts, "label": [0, 1] * 6})
    numbers = signs(tmp_path, rows, 64)
    assert 0 < numbers["negative_share"] < 1
    assert 0 < numbers["negative_variance"] < 1
    parts = ("", "_without_negatives", "_without_weaker_sign", "_without_positive_mass")
    assert all(0 <= numbers[f"accuracy{part}"] <= 1 for part in parts)
    assert len({numbers[f"loss{part}"] for part in parts}) == len(parts)


def test_the_control_removes_as_much_positive_mass_as_there_is_negative_mass():
    model, batch = model_of(1.0), batch_of()
    seen = []

    def record(coefficients):
        seen.append(coefficients)
        return coefficients

    with edited_coefficients(model, record), without_as_much_positive(model), edited_coefficients(model, record):
        model(**batch)
    for whole, reduced in zip(seen[::2], seen[1::2], strict=True):
        positive, negative = whole.clamp_min(0), whole.clamp_max(0)
        torch.testing.assert_close(reduced.clamp_max(0), negative)
        expected = torch.minimum(-negative.sum(-1), positive.sum(-1))
        torch.testing.assert_close(positive.sum(-1) - reduced.clamp_min(0).sum(-1), expected)
        partly = (reduced.clamp_min(0) > 1e-6) & (reduced < positive - 1e-6)
        assert (partly.sum(-1) <= 1).all()


def test_the_control_takes_keys_in_an_order_that_the_seed_decides():
    model, batch = model_of(1.0), batch_of()
    found = []
    for seed in (0, 0, 1):
        with without_as_much_positive(model, seed):
            found.append(model(**batch).logits)
    torch.testing.assert_close(found[0], found[1])
    assert (found[0] - found[2]).abs().max() > 1e-4


def test_flipping_a_head_changes_nothing_without_the_weaker_sign():
    model, batch = model_of(1.0), batch_of()
    share = negative_variance_share(model, [batch])
    flipped = torch.tensor([[True, False], [False, True]])
    with without_weaker_sign(model, share):
        before = model(**batch).logits
    with without_negatives(model):
        one_sign = model(**batch).logits
    flip_heads(model, flipped)
    after = negative_variance_share(model, [batch])
    with without_weaker_sign(model, after):
        torch.testing.assert_close(model(**batch).logits, before)
    with without_negatives(model):
        assert (model(**batch).logits - one_sign).abs().max() > 1e-3


def test_without_the_weaker_sign_every_head_has_one_sign():
    model, batch = model_of(1.0), batch_of()
    share, seen = negative_variance_share(model, [batch]), []

    def record(coefficients):
        seen.append(coefficients)
        return coefficients

    with without_weaker_sign(model, share), edited_coefficients(model, record):
        model(**batch)
    for layer, coefficients in enumerate(seen):
        sign = torch.where(share[layer] > 0.5, -1, 1)[:, None, None]
        assert (sign * coefficients >= 0).all()
        assert coefficients.abs().max() > 0
