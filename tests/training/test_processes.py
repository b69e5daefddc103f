"""Several processes train together, here on a CPU: the losses are those of one process, whatever starts them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_bidir import signed
from tests.tiny_models import stock_model
from tests.training.conftest import tables
from training.text_classification import main

ROOT = Path(__file__).parents[2]
OPTIONS = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 --vocab_size 80 "
    "--max_length 12 --dropout 0 --num_train_epochs 2 --logging_steps 1 --learning_rate 1e-2 --disable_tqdm true "
    "--use_cpu"
)
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no"],
}

DIVIDE = """
import sys
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
import hf_bidir

ids = torch.load(sys.argv[1] + "/ids.pt")
for name in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/{name}", tp_plan="auto").eval()
    assert isinstance(model.model.layers[0].self_attn.q_proj.weight, DTensor)
    with torch.no_grad():
        outputs = model(ids, output_attentions=True)
    rank = torch.distributed.get_rank()
    torch.save((outputs.logits, outputs.attentions[0]), f"{sys.argv[1]}/{name}{rank}.pt")
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of one process with 8 examples a step."""
    folder = tmp_path_factory.mktemp("alone")
    run(tables(folder), folder / "alone", 8)
    return losses(folder / "alone")


def run(texts, folder, batch, *more):
    main([*texts, *OPTIONS, "--per_device_train_batch_size", str(batch), "--output_dir", str(folder), *more])


def together(launcher, *script):
    """Run a script in two processes, which find each other through gloo."""
    python = sys.executable
    command = [python, "-m", *LAUNCHERS[launcher], *map(str, script)]
    without_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON_EXEC": python}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=without_gpu)
    assert done.returncode == 0, done.stderr[-3000:]


def losses(folder):
    """The logged training losses, by step."""
    state = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])) / "trainer_state.json"
    logged = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    return torch.tensor(logged)


def test_an_interrupted_run_continues_with_another_number_of_processes(alone, texts, tmp_path, crash):
    argv = [*texts, *OPTIONS, "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "run")]
    crash(main, argv, after_steps=10)  # 6 steps an epoch: in the middle of the second
    argv[argv.index("8")] = "4"
    together("accelerate", ROOT / "training/text_classification.py", *argv)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert (record["resumed_from"], record["world_size"]) == ("checkpoint-6", 2)
    torch.testing.assert_close(losses(tmp_path / "run"), alone, atol=1e-4, rtol=0)


def test_accumulated_batches_learn_what_one_batch_learns(alone, texts, tmp_path):
    run(texts, tmp_path / "accumulated", 4, "--gradient_accumulation_steps", "2")
    torch.testing.assert_close(losses(tmp_path / "accumulated"), alone, atol=1e-4, rtol=0)


def test_tensor_parallelism_divides_the_heads_of_signed_layers(tmp_path):
    pytest.importorskip("transformers.distributed.tensor_parallel")  # in recent versions
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    torch.save(ids, tmp_path / "ids.pt")
    models = {"softmax": signed(stock_model("llama"), 0.0), "by_layer": signed(stock_model("llama"), [0.3, 0.7])}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    script = tmp_path / "divide.py"
    script.write_text(DIVIDE)
    together("torchrun", script, tmp_path, *models)
    for name, model in models.items():
        with torch.no_grad():
            whole = model(ids, output_attentions=True)
        logits, coefficients = zip(*(torch.load(tmp_path / f"{name}{rank}.pt") for rank in (0, 1)), strict=True)
        for found in logits:
            torch.testing.assert_close(found, whole.logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.cat(coefficients, 1), whole.attentions[0], atol=1e-4, rtol=0)
