"""Checkpoints of recurrent models: the code that they carry, and loading with it alone and with the package alone."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM, BidirRnnForSequenceClassification
from tests.processes import ROOT, run_python

SHAPE = {"vocab_size": 30, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0, "encoder": "gru"}
DECODER = {"decoder_style": "bahdanau", "attn_score": "general", "attn_scope": "local-p", "attn_window": 2}
INPUTS = {"input_ids": torch.arange(3, 13).view(2, 5), "decoder_input_ids": torch.tensor([[1, 5], [1, 6]])}
MODELS = {
    "AutoModelForSequenceClassification": (BidirRnnForSequenceClassification, {"attn_score": "feed_forward"}),
    "AutoModelForSeq2SeqLM": (BidirRnnForSeq2SeqLM, DECODER),
}
LOGITS = """
import sys
{setup}
import transformers
from safetensors.torch import load_file, save_file

for name in ("AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"):
    auto = getattr(transformers, name)
    model = auto.from_pretrained(name, trust_remote_code={remote})
    assert type(model).__module__.startswith("{module}")
    model.save_pretrained("again")
    model = auto.from_pretrained("again", trust_remote_code={remote}).eval()
    save_file({{"logits": model(**load_file("inputs")).logits.detach()}}, name + ".logits")
"""
WITHOUT_PACKAGE = {"setup": "sys.modules['hf_bidir'] = None", "remote": True, "module": "transformers_modules."}
WITH_PACKAGE = {"setup": "import hf_bidir", "remote": False, "module": "hf_bidir.recurrent."}


@pytest.fixture
def saved(tmp_path):
    """A folder of checkpoints, by the name of their Auto class, and their logits."""
    logits = {}
    save_file(INPUTS, tmp_path / "inputs")
    for name, (head, fields) in MODELS.items():
        model = head(BidirRnnConfig(**SHAPE | fields)).eval()
        model.save_pretrained(tmp_path / name)
        logits[name] = model(**INPUTS).logits
    return tmp_path, logits


@pytest.mark.parametrize("program", [WITHOUT_PACKAGE, WITH_PACKAGE], ids=["without the package", "with the package"])
def test_a_new_process_loads_a_checkpoint_and_computes_the_same(saved, program):
    folder, logits = saved
    environment = {"HF_MODULES_CACHE": str(folder / "modules"), "PYTHONPATH": str(ROOT)}
    run_python(LOGITS.format(**program), isolated=program is WITHOUT_PACKAGE, cwd=folder, **environment)
    for name, expected in logits.items():
        torch.testing.assert_close(load_file(folder / f"{name}.logits")["logits"], expected, rtol=0, atol=1e-6)
