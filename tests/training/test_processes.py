"""Several processes train together, here on a CPU: the losses are those of one process."""

import shlex
from pathlib import Path

import pytest
import torch

from tests.processes import together
from tests.tiny_models import signed_model
from tests.training.conftest import losses, read, tables
from training.text_classification import main

ROOT = Path(__file__).parents[2]
OPTIONS = shlex.split(
    "--hidden_size 16 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 32 --vocab_size 80 "
    "--max_length 12 --dropout 0 --num_train_epochs 2 --logging_steps 1 --learning_rate 1e-2 --disable_tqdm true "
    "--use_cpu --per_device_train_batch_size"
)

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
    main([*tables(folder), *OPTIONS, "8", "--output_dir", str(folder / "run")])
    return torch.tensor(losses(folder / "run"))


def test_an_interrupted_run_continues_with_another_number_of_processes(alone, texts, tmp_path, crash):
    run = [*texts, "--output_dir", str(tmp_path / "run"), *OPTIONS]
    crash(main, [*run, "8"], after_steps=10)  # 6 steps an epoch: in the middle of the second
    together(ROOT / "training/text_classification.py", *run, "4")
    record = read(tmp_path / "run/run.json")
    assert (record["resumed_from"], record["world_size"]) == ("checkpoint-6", 2)
    torch.testing.assert_close(torch.tensor(losses(tmp_path / "run")), alone, atol=1e-4, rtol=0)


def test_accumulated_batches_learn_what_one_batch_learns(alone, texts, tmp_path):
    main([*texts, *OPTIONS, "4", "--gradient_accumulation_steps", "2", "--output_dir", str(tmp_path / "run")])
    torch.testing.assert_close(torch.tensor(losses(tmp_path / "run")), alone, atol=1e-4, rtol=0)


def test_tensor_parallelism_divides_the_heads_of_signed_layers(tmp_path):
    pytest.importorskip("transformers.distributed.tensor_parallel")  # in recent versions
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    torch.save(ids, tmp_path / "ids.pt")
    models = {"softmax": signed_model("llama", 0.0), "by_layer": signed_model("llama", [0.3, 0.7])}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    script = tmp_path / "divide.py"
    script.write_text(DIVIDE)
    together(script, tmp_path, *models)
    for name, model in models.items():
        with torch.no_grad():
            whole = model(ids, output_attentions=True)
        logits, coefficients = zip(*(torch.load(tmp_path / f"{name}{rank}.pt") for rank in (0, 1)), strict=True)
        for part in logits:
            torch.testing.assert_close(part, whole.logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.cat(coefficients, 1), whole.attentions[0], atol=1e-4, rtol=0)
