"""Classes created on demand behave like defined ones: copied, pickled, inspected, completed by editors."""

import ast
import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.data import DataLoader, Dataset

import hf_bidir
from hf_bidir import signed
from tests.tiny_models import FAMILIES, STOCK, inputs_of, logits_of, stock_model

PACKAGE = Path(hf_bidir.__file__).parent
every_family = pytest.mark.parametrize("family", FAMILIES)


def pickled(model, folder):
    return pickle.loads(pickle.dumps(model))


def saved(model, folder):
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


def deep_copied(model, folder):
    return copy.deepcopy(model)


@pytest.mark.parametrize("copied", [deep_copied, pickled, saved])
@every_family
def test_a_copy_computes_the_same_and_has_attention_of_its_own(family, copied, tmp_path):
    model, inputs = signed(stock_model(family)), inputs_of(family)
    expected = logits_of(model, inputs)
    again = copied(model, tmp_path)
    assert type(again) is type(model)
    assert torch.equal(logits_of(again, inputs), expected)
    again.config.attn_negative_mass = 0.0
    torch.testing.assert_close(logits_of(again, inputs), logits_of(stock_model(family), inputs))
    assert torch.equal(logits_of(model, inputs), expected)


@every_family
def test_a_copied_config_equals_the_config(family):
    config = signed(stock_model(family), 0.5).config
    for again in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert type(again) is type(config)
        assert again.to_dict() == config.to_dict()


def test_a_clean_process_loads_a_pickled_model(tmp_path):
    model, inputs = signed(stock_model("llama")), inputs_of("llama")
    torch.save({"model": model, "inputs": inputs}, tmp_path / "saved.pt")
    script = (
        "import sys, torch; folder = sys.argv[1]; saved = torch.load(folder + '/saved.pt', weights_only=False); "
        "torch.save(saved['model'](**saved['inputs']).logits, folder + '/logits.pt')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), model(**inputs).logits)


class Predictions(Dataset):
    """The prediction of a model in a worker process."""

    def __init__(self, model, inputs):
        self.model, self.inputs = model, inputs

    def __len__(self):
        return 1

    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(**self.inputs).logits


def test_a_spawned_worker_process_receives_a_model():
    model, inputs = signed(stock_model("roberta")), inputs_of("roberta")
    workers = DataLoader(Predictions(model, inputs), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    torch.testing.assert_close(next(iter(workers)), model(**inputs).logits)


@every_family
def test_a_made_class_has_the_signatures_and_the_docstring_of_the_stock_class(family):
    stock = STOCK[family][0]
    made = getattr(hf_bidir, f"Bidir{stock.__name__}")
    assert inspect.signature(made) == inspect.signature(stock)
    assert inspect.signature(made.forward) == inspect.signature(stock.forward)
    assert made.__doc__ == stock.__doc__
    assert (made.__module__, made.__qualname__) == ("hf_bidir.modeling.modeling_bidir", made.__name__)


@every_family
def test_a_made_config_takes_the_arguments_of_the_stock_config_and_the_attention_fields(family):
    stock = STOCK[family][1]
    parameters = inspect.signature(getattr(hf_bidir, f"Bidir{stock.__name__}")).parameters
    assert inspect.signature(stock).parameters.items() <= parameters.items()
    assert parameters["attn_negative_mass"].default == 1.0


def test_a_class_is_made_once():
    assert hf_bidir.BidirGPT2Model is hf_bidir.BidirGPT2Model
    assert hf_bidir.BidirGPT2Model.config_class is hf_bidir.BidirGPT2Config


def test_a_model_class_that_transformers_does_not_have_is_refused_with_the_closest_name():
    with pytest.raises(AttributeError, match=r'there is no BidirRobertaForMaskdLM.*"BidirRobertaForMaskedLM"\?'):
        _ = hf_bidir.BidirRobertaForMaskdLM


def stubbed():
    """The public names of the type stub: the bases of a class, nothing for what is imported."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    classes = {node.name: [*map(ast.unparse, node.bases)] for node in tree.body if isinstance(node, ast.ClassDef)}
    imports = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = classes | {alias.name: [] for alias in imports if alias.asname}  # `import x as x` makes x public
    return {name: bases for name, bases in names.items() if not name.startswith("_")}


def test_the_type_stub_declares_exactly_the_public_names():
    assert sorted(stubbed()) == hf_bidir.__all__
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(("name", "bases"), stubbed().items())
def test_a_declared_name_exists_and_extends_what_the_stub_says(name, bases):
    made = getattr(hf_bidir, name)
    if bases:
        assert bases[-1] == f"transformers.{name.removeprefix('Bidir')}"
        assert issubclass(made, getattr(transformers, name.removeprefix("Bidir")))


def test_dir_names_everything_that_is_public():
    assert {"signed", "BidirBertModel", "BidirRobertaForSequenceClassification", *hf_bidir.__all__} <= set(
        dir(hf_bidir)
    )
