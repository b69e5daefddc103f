"""Imports are lazy, and the Auto classes still find signed models; tests/test_package.py imports transformers first."""

import subprocess
import sys

SHAPE = "hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9"


COMMANDS = [["--help"], ["explain", "--help"], ["families", "roberta"]]


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_commands_that_only_print_import_neither_torch_nor_transformers():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from hf_bidir.cli import app\n"
        f"for words in {COMMANDS}:\n"
        "    done = CliRunner().invoke(app, words)\n"
        "    print(done.exit_code, [m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    assert run(code) == ["0 []"] * len(COMMANDS)


def test_importing_the_package_and_its_explanations_imports_neither_torch_nor_transformers():
    code = (
        "import hf_bidir, hf_bidir.explain, sys\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    assert run(code) == ["[]"]


def test_an_import_before_that_of_transformers_registers_signed_models_beside_others_and_prints_nothing():
    code = (
        "import hf_bidir, sys, warnings\n"
        "print('transformers' in sys.modules)\n"
        "import hf_bidir.cli.start\n"
        "from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PretrainedConfig\n"
        "class Mine(PretrainedConfig):\n"
        "    model_type = 'mine'\n"
        "AutoConfig.register('mine', Mine)\n"
        f"print(type(AutoModel.from_config(AutoConfig.for_model('bidir_bert', {SHAPE}))).__name__)\n"
        "print(AutoConfig.for_model('bert').model_type, type(AutoConfig.for_model('mine')).__name__)\n"
        "print([name in CONFIG_MAPPING for name in ('bidir_x', 'x')])\n"
        # deprecations in the code of libraries, which the user of a command cannot change
        "import torch.utils._pytree\n"
        "warnings.warn('is deprecated', FutureWarning)\n"
        "torch.utils._pytree.log.warning('%s is deprecated', 1)\n"
    )
    assert run(code) == ["False", "BidirBertModel", "bert Mine", "[False, False]"]
