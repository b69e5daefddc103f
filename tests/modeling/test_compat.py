"""Private names of transformers that may be gone tomorrow: imports do not fail without them, and models are signed."""

import os
import subprocess
import sys

import pytest

from hf_bidir.modeling import compat

PLACES = {
    "_CAN_RECORD_REGISTRY": ("utils.output_capturing", "modeling_utils"),
    "get_checkpoint_conversion_mapping": ("conversion_mapping",),
    "register_checkpoint_conversion_mapping": ("conversion_mapping",),
    "sdpa_mask": ("masking_utils",),
    "bidirectional_mask_function": ("masking_utils",),
    "flash_attention_forward": ("integrations.flash_attention",),
    "lazy_import_flash_attention": ("modeling_flash_attention_utils",),
    "compile_friendly_flex_attention": ("integrations.flex_attention",),
}
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
assert compat.sdpa_mask is None and not compat.HAS_FLASH and not compat.HAS_FLEX
import hf_bidir
from hf_bidir.modeling import modeling_bidir, two_calls
config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model, ids = BertModel(config).eval(), torch.arange(6)[None]
softmax = model(ids)[0]
model = hf_bidir.signed(model)
assert not torch.allclose(model(ids)[0], softmax)
model.save_pretrained(sys.argv[1])
loaded = hf_bidir.BidirBertModel.from_pretrained(sys.argv[1]).eval()
torch.testing.assert_close(loaded(ids)[0], model(ids)[0])
try:
    model.set_attn_implementation("flex_attention")
except ValueError as error:
    print(error)
"""


def test_without_any_private_name_a_model_is_signed_saved_and_loaded(tmp_path):
    program = f"HIDDEN = {set(PLACES)!r}\n{WITHOUT}"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert '"flex_attention"` is not supported: it does not compute signed attention' in done.stdout


@pytest.mark.parametrize("name", PLACES)
def test_every_private_name_is_where_it_is_looked_for(name):
    assert compat._private(name, *PLACES[name]) is not None
