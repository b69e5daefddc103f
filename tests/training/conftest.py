"""Tiny data, a way to crash a run in the middle, and what a run leaves."""

import json
from contextlib import contextmanager

import pytest
from datasets import Dataset
from transformers import Trainer

from hf_bidir.finetune.data import sources, splits

AT_THE_END = ["--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"]


@pytest.fixture
def texts(tmp_path):
    """Options that name three small tables of texts whose class is a word in them."""
    return tables(tmp_path)


def tables(folder):
    """The same, in a folder."""
    options = []
    for split, rows in (("train", 48), ("validation", 12), ("test", 12)):
        labels = [int(row % 3 == 0) for row in range(rows)]
        sentences = [f"a {('bad', 'good')[label]} film of {split} row {row}" for row, label in enumerate(labels)]
        file = folder / f"{split}.parquet"
        Dataset.from_dict({"text": sentences, "label": labels}).to_parquet(str(file))
        options += [f"--{split}_file", str(file)]
    return [*options, "--class_names", "bad", "good"]


@contextmanager
def few_digits():
    """Runs read the first of the digits only."""
    most = {"train": 300, "validation": 60, "test": 100}
    few = {name: split.select(range(most[name])) for name, split in sources.read_digits().items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "read_digits", lambda: few)
        yield


@pytest.fixture
def crash(monkeypatch):
    """A function that runs `main` and raises KeyboardInterrupt out of training after so many steps."""

    def crashing(main, argv, after_steps):
        steps = iter(range(after_steps))
        step = Trainer.training_step

        def training_step(*args, **kwargs):
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return step(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "training_step", training_step)
            with pytest.raises(KeyboardInterrupt):
                main(argv)

    return crashing


def read(file):
    """The content of a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def losses(folder):
    """The logged training losses of a run, by step."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    log = max((read(state)["log_history"] for state in states), key=len)
    return [entry["loss"] for entry in log if "loss" in entry]
