"""Imports are lazy, and the Auto classes still find signed models; tests/test_package.py imports transformers first."""

from tests.processes import ROOT, run_python

LIGHT = """
import sys
import hf_bidir, hf_bidir.explain
from typer.testing import CliRunner
from hf_bidir.cli import app

open("taken.csv", "w").close()
refused = ["explain x --file missing.txt", "explain x y.csv --output taken.csv"]
for words in ("--help", "explain --help", "families roberta", *refused):
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2 * (words in refused), done.output
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
BEFORE_TRANSFORMERS = """
import sys
sys.stderr = sys.stdout
import hf_bidir, warnings
import hf_bidir.cli.start
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PretrainedConfig

class Mine(PretrainedConfig):
    model_type = "mine"

AutoConfig.register("mine", Mine)
shape = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
print(type(AutoModel.from_config(AutoConfig.for_model("bidir_bert", **shape))).__name__)
print(AutoConfig.for_model("bert").model_type, type(AutoConfig.for_model("mine")).__name__)
print([name in CONFIG_MAPPING for name in ("bidir_x", "x")])
# deprecations in the code of libraries, which the user of a command cannot change
import torch.utils._pytree
warnings.warn("is deprecated", FutureWarning)
torch.utils._pytree.log.warning("%s is deprecated", 1)
"""


def test_the_package_and_commands_that_only_print_or_find_no_file_import_neither_torch_nor_transformers(tmp_path):
    assert run_python(LIGHT, fresh=True, cwd=tmp_path, PYTHONPATH=str(ROOT)).splitlines() == ["[]"]


def test_an_import_before_that_of_transformers_registers_signed_models_beside_others_and_prints_nothing():
    printed = run_python(BEFORE_TRANSFORMERS, fresh=True)
    assert printed.splitlines() == ["BidirBertModel", "bert Mine", "[False, False]"]
