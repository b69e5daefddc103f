"""Conversions: variants, samples of data, agreement with the softmax model, and sentence encoders."""

from argparse import Namespace

import pytest
import torch
from datasets import Dataset
from pandas import DataFrame

from hf_bidir import convert_checkpoint
from hf_bidir.cli.script import parse
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.hub.evaluate import evaluate_checkpoint
from research.conversions import embeddings, learning_rates, run
from research.conversions.run import TASKS, VARIANTS, Variant
from research.explanations.tasks import MODELS, models
from research.runs import TRAINING
from tests.sentence_models import SENTENCES, sentence_model
from tests.training.checkpoints_of_others import checkpoint_of

WORDS = [f"w{index}" for index in range(20)]


def test_every_variant_and_task_names_options_that_the_scripts_know():
    last = {"output_dir": "unused", "eval_strategy": "no", "load_best_model_at_end": False}
    for chosen in VARIANTS.values():
        parse(TRAINING["distill"].OPTIONS, {"output_dir": "unused"} | (chosen.heal or {}))
    for data in TASKS.values():
        for name in data.recipes.values():
            parse(TRAINING["bert" if data.text else "images"].OPTIONS, run.recipe(name) | last | data.options)


def test_samples_for_training_and_validation_share_no_row(tmp_path):
    data = TASKS["imdb"]
    (tmp_path / "imdb").mkdir()
    Dataset.from_dict({"text": list(map(str, range(6000)))}).to_parquet(str(tmp_path / "imdb/train.parquet"))
    files = (data.split(name, tmp_path, tmp_path / "runs") for name in ("train", "validation"))
    train, validation = (read_table(str(file))["text"] for file in files)
    assert (len(train), len(validation)) == (4000, 1000)
    assert not set(train) & set(validation)


def test_a_healed_model_is_measured_beside_its_softmax_model_and_softmax_models_are_found(tmp_path, monkeypatch):
    data, runs = tmp_path / "data/sst2", tmp_path / "runs"
    data.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        texts = [" ".join(WORDS[row % 9 : row % 9 + 2 + row % 5]) for row in range(60)]
        Dataset.from_dict({"text": texts, "label": [0, 1] * 30}).to_parquet(str(data / f"{split}.parquet"))
    options = Namespace(
        data_dir=data.parent, model=checkpoint_of("Roberta", tmp_path / "bert", words=" ".join(WORDS)), runs=runs
    )
    brief = {"max_steps": 2, "use_cpu": True}
    monkeypatch.setattr(run, "recipe", lambda name: brief | {"attn_activation": "softmax"})
    monkeypatch.setitem(VARIANTS, "tanhmax", Variant("TanhMax", brief | {"keep_signs": False}))
    measured, files = run.measured(options, "sst2", "tanhmax", 40, 0)
    assert read_table(str(files[0])).num_rows == 40
    first, second = (
        evaluate_checkpoint(runs / name, str(files[1])) for name in ("sst2-softmax-0", "sst2-tanhmax-40-0")
    )
    equal = first.predictions.table["prediction"] == second.predictions.table["prediction"]
    assert (measured["agreement"], measured["accuracy"]) == (equal.mean(), second.scores["accuracy"])
    run.measured(options, "sst2", "tanhmax", run.ALL, 0)
    trained = models(Namespace(runs=runs, seeds=1), "sst2", [*MODELS, "converted"])
    assert [name for name, *_ in trained] == ["softmax", "converted"]
    softmax, _ = run.measured(options, "sst2", "softmax", 0, 0)
    assert softmax["recall_0"] == first.scores["recall_0"]


def test_encoders_are_measured_by_nearest_texts_and_by_the_order_of_cosines():
    titles = torch.eye(4)
    news = torch.nn.functional.normalize(titles + 0.3 * titles[[1, 0, 3, 2]])  # the other text of the topic is near
    topics = {"text": ["a", "b", "c", "d"], "label": [0, 0, 1, 1]}
    texts = {"news": DataFrame(topics), "train": DataFrame(topics), "test": DataFrame(topics)}
    vectors = {"titles": titles, "news": news, "train": titles, "test": news[[0, 1, 2, 0]]}
    assert embeddings.measured(vectors, texts) == pytest.approx({"found": 1, "related": 1, "same_group": 0.75})
    assert embeddings.agreement(news, 2 * news) == pytest.approx(1)
    assert embeddings.agreement(news, titles) < 0.95


def test_an_encoder_without_negative_coefficients_gives_other_embeddings(tmp_path):
    healed = convert_checkpoint(sentence_model(tmp_path)[0], tmp_path / "healed", negative_mass=1.0)
    texts = {name: DataFrame({"text": SENTENCES, "title": SENTENCES}) for name in ("news", "train", "test")}
    vectors = {}
    for encoder in ("healed", "positive"):
        with embeddings.opened(encoder, str(tmp_path), healed) as model:
            vectors[encoder] = embeddings.embedded(model, texts)
    assert vectors["healed"].keys() == {"news", "train", "test", "titles"}
    assert not torch.allclose(vectors["healed"]["news"], vectors["positive"]["news"], atol=1e-3)


def test_further_seeds_of_a_learning_rate_study_have_the_rate_of_the_best_validation_accuracy(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_rates, "FILE", tmp_path / "learning_rates.csv")
    best = {learning_rates.SOFTMAX: 5e-5, learning_rates.SIGNED: 5e-4}
    rows = []
    for trial in learning_rates.trials(["sst2"]):
        found = 0.9 if trial["rate"] == best[trial["start"]] else 0.8
        rows.append(trial | {"validation_accuracy": found, "test_accuracy": found - 0.1})
        DataFrame(rows).to_csv(learning_rates.FILE)
    assert {(row["start"], row["rate"]) for row in rows if row["seed"] > 0} == set(best.items())
