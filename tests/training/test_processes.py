"""Several processes train together, here on a CPU: the losses are those of one process, whatever starts them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_bidir.common.errors import InputError
from training.text_classification import main

ROOT = Path(__file__).parents[2]
OPTIONS = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 --vocab_size 80 "
    "--max_length 12 --dropout 0 --num_train_epochs 3 --logging_steps 1 --learning_rate 1e-2 --disable_tqdm true "
    "--use_cpu"
)
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no"],
}


@pytest.fixture
def alone(texts, tmp_path):
    """The losses of one process with 8 examples a step."""
    run(texts, tmp_path / "alone", 8)
    return losses(tmp_path / "alone")


def run(texts, folder, batch, *more):
    main([*texts, *OPTIONS, "--per_device_train_batch_size", str(batch), "--output_dir", str(folder), *more])


def together(launcher, texts, folder, batch):
    """Train with two processes, which find each other through gloo."""
    # without a GPU the option need not be given
    options = [option for option in OPTIONS if launcher == "torchrun" or option != "--use_cpu"]
    script = [str(ROOT / "training/text_classification.py"), *texts, *options, "--output_dir", str(folder)]
    command = [sys.executable, "-m", *LAUNCHERS[launcher], *script, "--per_device_train_batch_size", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((folder / "run.json").read_text())["world_size"] == 2


def losses(folder):
    """The logged training losses, by step."""
    state = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])) / "trainer_state.json"
    logged = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    return torch.tensor(logged)


def test_two_processes_learn_what_one_learns(alone, texts, tmp_path):
    together("accelerate", texts, tmp_path / "two", 4)
    torch.testing.assert_close(losses(tmp_path / "two"), alone, atol=1e-4, rtol=0)


def test_an_interrupted_run_continues_with_another_number_of_processes(alone, texts, tmp_path, crash):
    argv = [*texts, *OPTIONS, "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "run")]
    crash(main, argv, after_steps=10)  # 6 steps an epoch: in the middle of the second
    together("torchrun", texts, tmp_path / "run", 4)
    assert json.loads((tmp_path / "run/run.json").read_text())["resumed_from"] == "checkpoint-6"
    torch.testing.assert_close(losses(tmp_path / "run"), alone, atol=1e-4, rtol=0)


def test_accumulated_batches_learn_what_one_batch_learns(alone, texts, tmp_path):
    run(texts, tmp_path / "accumulated", 4, "--gradient_accumulation_steps", "2")
    torch.testing.assert_close(losses(tmp_path / "accumulated"), alone, atol=1e-4, rtol=0)


def test_an_interrupted_run_is_not_continued_with_another_number_of_examples_per_step(texts, tmp_path, crash):
    argv = [*texts, *OPTIONS, "--output_dir", str(tmp_path / "run"), "--per_device_train_batch_size"]
    crash(main, [*argv, "8"], after_steps=7)
    with pytest.raises(InputError, match=r"a step had 8 examples, and now 4 \(processes x per_device"):
        main([*argv, "4"])
