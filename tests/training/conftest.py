"""Tiny data, and a way to crash a run in the middle."""

import pytest
from datasets import Dataset
from transformers import Trainer


@pytest.fixture
def texts(tmp_path):
    """Options that name three small tables of texts whose class is a word in them."""
    return tables(tmp_path)


def tables(folder):
    """The same, in a folder."""
    options = []
    for split, rows in (("train", 48), ("validation", 12), ("test", 12)):
        labels = [row % 3 == 0 for row in range(rows)]
        sentences = [f"a {'good' if y else 'bad'} film of {split} row {row}" for row, y in enumerate(labels)]
        file = folder / f"{split}.parquet"
        Dataset.from_dict({"text": sentences, "label": [int(y) for y in labels]}).to_parquet(str(file))
        options += [f"--{split}_file", str(file)]
    return [*options, "--class_names", "bad", "good"]


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
