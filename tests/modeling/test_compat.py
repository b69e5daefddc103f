"""Private names of transformers that may be gone tomorrow: imports do not fail without them, and models are signed."""

from transformers import modeling_utils

from hf_bidir.modeling import compat
from tests.processes import run_python

HIDDEN = {
    "_CAN_RECORD_REGISTRY", "get_checkpoint_conversion_mapping", "register_checkpoint_conversion_mapping",
}  # fmt: skip
WITHOUT = """
import importlib, sys
from types import SimpleNamespace
import torch
from transformers import BertConfig, BertModel
whole = importlib.import_module
def without_private_names(name, *package):
    names = vars(whole(name, *package))
    return SimpleNamespace(**{name: value for name, value in names.items() if name not in HIDDEN})
importlib.import_module = without_private_names
from hf_bidir.modeling import compat
importlib.import_module = whole
assert compat.CAN_RECORD == {}
import hf_bidir
config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model, ids = hf_bidir.signed(BertModel(config).eval()), torch.arange(6)[None]
model.save_pretrained(sys.argv[1])
loaded = hf_bidir.BidirBertModel.from_pretrained(sys.argv[1]).eval()
torch.testing.assert_close(loaded(ids)[0], model(ids)[0])
"""


def test_without_any_private_name_a_model_is_signed_saved_and_loaded(tmp_path):
    run_python(f"HIDDEN = {HIDDEN!r}\n{WITHOUT}", tmp_path)


def test_no_substitute_is_in_use_with_this_transformers():
    assert compat.CAN_RECORD is modeling_utils._CAN_RECORD_REGISTRY
    taken = compat.checkpoint_names, compat.register_checkpoint_names
    assert all(function.__module__.startswith("transformers.") for function in taken)
    assert "BertModel" in compat.stock_heads("bert").values()
