"""A tiny synthetic set, an experiment with it, and one trained cell."""

from functools import partial

import pytest

from hf_bidir.explain import load_checkpoint
from research.faithfulness import adversarial_attention
from research.paper import measures
from research.paper.cells import Cell
from research.paper.experiments import Amount, Experiment, Settings
from research.synthetic import SyntheticTexts, write_splits

TINY = SyntheticTexts(texts=400, vocabulary=40, polar=10)
RECIPE = {
    **{"embedding_size": 16, "hidden_size": 8, "vocab_size": 60, "max_length": 12, "num_train_epochs": 8},
    **{"per_device_train_batch_size": 16, "use_cpu": True},
}
AMOUNT = Amount(texts=12, draws=4, attacked=2, training_texts=24)


@pytest.fixture(scope="package", autouse=True)
def quick_adversaries():
    """Adversaries are searched in few steps; research/tests/faithfulness tests what they find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "adversarial_attention", partial(adversarial_attention, steps=5, starts=1))
        yield


@pytest.fixture(scope="session")
def experiment():
    return Experiment("tiny", "Tiny", RECIPE, [1e-2], synthetic="tiny", published={"softmax": {"accuracy": 98.0}})


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_splits(TINY.split(), tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def trained(experiment, files, tmp_path_factory):
    """A trained cell of TanhMax, with its model and tokenizer."""
    root = tmp_path_factory.mktemp("paper")
    cell = Cell(experiment, "tanhmax", 1e-2, 0, root)
    cell.train(files, Settings(root))
    return cell, *load_checkpoint(cell.run)
