"""A tiny synthetic set, an experiment with it, and a trained model of TanhMax."""

import pytest

from hf_bidir.explain import load_checkpoint
from research.paper import measures
from research.paper.experiments import Experiment
from research.runs import train
from research.synthetic import SETS, SyntheticTexts, write_splits

TINY = SyntheticTexts(texts=400, vocabulary=40, polar=10)
RECIPE = {
    **{"embedding_size": 16, "hidden_size": 8, "vocab_size": 60, "max_length": 12, "num_train_epochs": 8},
    **{"per_device_train_batch_size": 16, "use_cpu": True},
}
AMOUNTS = {"TEXTS": 12, "DRAWS": 4, "TRAINING_TEXTS": 24, "DEEP": 6}


@pytest.fixture(scope="package", autouse=True)
def small():
    """The tiny set has a name, and few texts are measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "tiny", TINY)
        for name, value in AMOUNTS.items():
            patch.setattr(measures, name, value)
        yield


@pytest.fixture(scope="session")
def experiment():
    return Experiment("tiny", "Tiny", RECIPE, [1e-2], synthetic="tiny", variants=["softmax", "tanhmax"])


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_splits(TINY.split(), tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def trained(files, tmp_path_factory):
    """A trained model of TanhMax and its tokenizer."""
    folder = tmp_path_factory.mktemp("paper") / "run"
    given = RECIPE | {f"{split}_file": file for split, file in files.items()}
    train("recurrent", given | {"attn_activation": "tanhmax", "learning_rate": 1e-2}, folder)
    model, tokenizer = load_checkpoint(folder)
    return model.requires_grad_(False), tokenizer
