"""Classes created on demand behave like defined ones: copied, pickled, inspected, completed by editors."""

import ast
import copy
import inspect
import pickle
from pathlib import Path

import pytest
import torch
import transformers

import hf_bidir
from hf_bidir import signed
from tests.processes import run_python
from tests.tiny_models import FAMILIES, STOCK, inputs_of, logits_of, stock_model

PACKAGE = Path(hf_bidir.__file__).parent


def saved(model, folder):
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


@pytest.mark.parametrize(
    ("family", "copied"), [("roberta", lambda model, _: copy.deepcopy(model)), ("t5", saved), ("llama", saved)]
)
def test_a_copy_computes_the_same_and_has_attention_and_a_config_of_its_own(family, copied, tmp_path):
    model, inputs = signed(stock_model(family)), inputs_of(family)
    expected = logits_of(model, inputs)
    again = copied(model, tmp_path)
    assert type(again) is type(model)
    assert (type(again.config), again.config.to_dict()) == (type(model.config), model.config.to_dict())
    assert torch.equal(logits_of(again, inputs), expected)
    again.config.attn_negative_mass = 0.0
    torch.testing.assert_close(logits_of(again, inputs), logits_of(stock_model(family), inputs))
    assert torch.equal(logits_of(model, inputs), expected)


PREDICT = """
import pickle, sys
import torch
model, inputs = pickle.load(open(sys.argv[1], "rb"))
torch.save(model(**inputs).logits.detach(), sys.argv[2])
"""


def test_another_process_such_as_a_spawned_worker_receives_a_model(tmp_path):
    model, inputs = signed(stock_model("roberta")), inputs_of("roberta")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps((model, inputs)))
    run_python(PREDICT, tmp_path / "model.pickle", tmp_path / "logits.pt")
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), model(**inputs).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_made_classes_have_the_signatures_and_the_docstring_of_the_stock_classes(family):
    stock, _ = STOCK[family]
    made = getattr(hf_bidir, f"Bidir{stock.__name__}")
    assert inspect.signature(made) == inspect.signature(stock)
    assert inspect.signature(made.forward) == inspect.signature(stock.forward)
    assert made.__doc__ == stock.__doc__
    assert (made.__module__, made.__qualname__) == ("hf_bidir.modeling.modeling_bidir", made.__name__)
    assert inspect.signature(made.config_class) == inspect.signature(stock.config_class)


def stubbed():
    """The public names of the type stub: the bases of a class, nothing for what is imported."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    classes = {node.name: [*map(ast.unparse, node.bases)] for node in tree.body if isinstance(node, ast.ClassDef)}
    imports = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = classes | {alias.name: [] for alias in imports if alias.asname}  # `import x as x` makes x public
    return {name: bases for name, bases in names.items() if not name.startswith("_")}


def test_the_type_stub_declares_the_public_names_and_common_classes_which_extend_what_it_says():
    assert set(hf_bidir.__all__) == {name for name, bases in stubbed().items() if not bases}
    assert stubbed().keys() <= set(dir(hf_bidir))
    assert (PACKAGE / "py.typed").is_file()
    for name, bases in stubbed().items():
        made = getattr(hf_bidir, name)
        if bases:
            assert bases[-1] == f"transformers.{name.removeprefix('Bidir')}"
            assert issubclass(made, getattr(transformers, name.removeprefix("Bidir")))
