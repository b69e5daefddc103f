"""`hf-bidir doctor`: its choices are those of models, and it prints nothing private."""

import logging
import os
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.cli import app, doctor
from hf_bidir.kernels import fused_check
from hf_bidir.modeling import attention

TOKEN = "hf_" + "x7Kq" * 9
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def printed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    return done.output


def row(printed: str, name: str) -> str:
    """The text in the row with this name."""
    return re.search(rf"^  {re.escape(name)}  +(.*)$", printed, re.MULTILINE)[1]


def test_versions_devices_and_the_kernel_have_a_row_without_paths_and_tokens(printed, tmp_path):
    assert torch.__version__.startswith(row(printed, "torch"))
    assert f"{os.cpu_count()} cores" in row(printed, "cpu")
    assert row(printed, "fused kernel").startswith(("matches the eager path", "not used: "))
    assert row(printed, "float32, decoding, one token over 512").startswith("eager")
    for private in (TOKEN, str(tmp_path), str(Path.cwd()), os.sep):
        assert private not in printed


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, "inference, 512 tokens"), (torch.bfloat16, "training with dropout, 512 tokens")],
)
def test_the_printed_choice_is_the_one_that_a_model_logs(printed, caplog, dtype, name):
    _, length, dropout = doctor.SHAPES[name]
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 16}
    config = BidirBertConfig(**sizes, vocab_size=30, attention_probs_dropout_prob=dropout)
    model = BidirBertModel(config).to(DEVICE, dtype).train(dropout > 0)
    attention._log_choice.cache_clear()
    caplog.set_level(logging.INFO, attention.__name__)
    with torch.no_grad():
        model(torch.arange(length, device=DEVICE)[None] % 30)
    logged = re.findall(r"signed attention uses the (\w+) implementation \((.*)\)", caplog.text)
    assert [f"{choice} ({reason})" for choice, reason in logged] == [row(printed, f"{dtype}"[6:] + f", {name}")]


def test_a_failed_self_check_is_printed_without_its_paths(monkeypatch):
    def fails(*_):
        raise OSError("cannot compile '/home/someone/.triton/cache/kernel.c': see ~/log.txt, output differs by 3/4")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Device", (), {"major": 9}))
    monkeypatch.setattr("hf_bidir.kernels.fused_path.HAS_TRITON", True)
    monkeypatch.setattr("hf_bidir.kernels.fused_path.HAS_COMPILER", True)
    found = fused_check.difference_from_eager(fails, fused_check.Kind(torch.device("cpu"), torch.float32, 16, 16))
    monkeypatch.setattr(fused_check, "difference_from_eager", lambda *_: found)
    expected = "cannot compile '<path>': see <path>, output differs by 3/4"
    assert doctor.kernel_state() == f"not used: it failed with OSError ({expected})"
