"""Checkpoints of recurrent models: the code that they carry, and loading with it alone and with the package alone."""

import ast
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM, BidirRnnForSequenceClassification
from tests.processes import run_python

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
    model = getattr(transformers, name).from_pretrained(name, trust_remote_code={remote}).eval()
    {check}
    save_file({{"logits": model(**load_file("inputs")).logits.detach()}}, name + ".logits")
"""
WITHOUT_PACKAGE = {
    "setup": "sys.modules['hf_bidir'] = None",
    "remote": True,
    "check": "model.save_pretrained('again'); "
    "model = getattr(transformers, name).from_pretrained('again', trust_remote_code=True).eval()",
}
WITH_PACKAGE = {
    "setup": "import hf_bidir",
    "remote": False,
    "check": "assert type(model).__module__.startswith('hf_bidir.recurrent.'), type(model)",
}


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
    environment = {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    run_python(LOGITS.format(**program), isolated=program is WITHOUT_PACKAGE, cwd=folder, **environment)
    for name, expected in logits.items():
        torch.testing.assert_close(load_file(folder / f"{name}.logits")["logits"], expected, rtol=0, atol=1e-6)


def imports_of(file):
    """The modules that a file imports; relative ones begin with a dot."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {"." * node.level + node.module for node in nodes if isinstance(node, ast.ImportFrom)}


def test_a_checkpoint_carries_the_files_that_its_code_imports_and_no_others(tmp_path):
    config = BidirRnnConfig()
    config.save_pretrained(tmp_path)
    carried = {f".{file.stem}": imports_of(file) for file in tmp_path.glob("*.py")}
    foreign = {name.split(".")[0] for name in set().union(*carried.values()) - carried.keys()}
    assert foreign <= {"torch", "transformers"} | sys.stdlib_module_names
    entries = {f".{path.partition('.')[0]}" for path in config.auto_map.values()}
    assert set().union(*(carried[entry] for entry in entries)) & carried.keys() | entries == carried.keys()
    for entry in entries:  # transformers 5.0 copies only the files that this one imports directly
        direct = carried[entry] & carried.keys()
        assert set().union(*(carried[name] for name in direct)) & carried.keys() <= direct, entry
