"""Imports are lazy, and the Auto classes still find signed models."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_transformers():
    assert run("import hf_bidir, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])") == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["families", "roberta"]])
def test_help_of_the_command_imports_neither_torch_nor_transformers(arguments):
    code = (
        f"import sys; sys.argv = ['hf-bidir', *{arguments}]\n"
        "from hf_bidir.cli import app\n"
        "try: app()\n"
        "finally: print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert run(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import hf_bidir; from transformers import AutoConfig, AutoModel",
        "from transformers import AutoConfig, AutoModel; import hf_bidir",
    ],
    ids=["before", "after"],
)
def test_the_auto_classes_find_signed_models_whatever_was_imported_first(imports):
    shape = "hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9"
    made = f"AutoModel.from_config(AutoConfig.for_model('bidir_bert', {shape}))"
    assert run(f"{imports}\nprint(type({made}).__name__)") == "BidirBertModel"


def test_stock_models_are_found_as_before_and_no_other_is_invented():
    code = (
        "import hf_bidir\n"
        "from transformers import AutoConfig, AutoModel, CONFIG_MAPPING\n"
        "print(AutoConfig.for_model('bert').model_type, [name in CONFIG_MAPPING for name in ('bidir_x', 'x')])"
    )
    assert run(code) == "bert [False, False]"


def test_a_config_registered_by_somebody_else_remains():
    code = (
        "import hf_bidir\n"
        "from transformers import AutoConfig, PretrainedConfig\n"
        "class Mine(PretrainedConfig):\n"
        "    model_type = 'mine'\n"
        "AutoConfig.register('mine', Mine)\n"
        "print(type(AutoConfig.for_model('mine')).__name__, type(AutoConfig.for_model('bidir_vit')).__name__)"
    )
    assert run(code) == "Mine BidirViTConfig"


def test_a_command_prints_no_deprecation_in_the_code_of_libraries():
    code = (
        "from hf_bidir.cli import app\nimport transformers.modeling_utils, torch.utils._pytree, warnings\n"
        "warnings.warn('is deprecated', FutureWarning)\n"
        "torch.utils._pytree.log.warning('%s is deprecated', 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
