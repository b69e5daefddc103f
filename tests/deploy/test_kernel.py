"""The kernel repository: built from the package's files, loaded by the `kernels` library and by transformers."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_kernels_available

import kernels
from hf_bidir import signed
from hf_bidir.kernels.fused_launch import tilings
from tests.tiny_models import inputs_of, logits_of, stock_model

ROOT = Path(__file__).parents[2]
USE = """
import sys, torch
from transformers import AutoModelForCausalLM
folder, name = sys.argv[1], "someone/signed-attention"
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=name, allow_all_kernels=True)
torch.save(model(**torch.load(folder + "/inputs.pt")).logits, folder + "/logits.pt")
assert "hf_bidir" not in sys.modules
"""


def module_of(path):
    spec = importlib.util.spec_from_file_location(f"kernel_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the kernel's folder, built."""
    folder = tmp_path_factory.mktemp("kernels") / "signed-attention"
    shutil.copytree(ROOT / "kernels/signed-attention", folder, ignore=shutil.ignore_patterns("build"))
    return module_of(ROOT / "kernels/build.py").build(folder)


def load_kernel(folder):
    return kernels.get_local_kernel(folder, backend=None if torch.cuda.is_available() else "cpu")


def renamed(built, folder):
    """A copy of a built kernel that one process can load beside the first."""
    shutil.copytree(built, folder)
    for variant in folder.glob("build/*"):
        metadata = json.loads((variant / "metadata.json").read_text())
        (variant / "metadata.json").write_text(json.dumps(metadata | {"id": f"_{folder.name}_kernel"}))
    return folder


def test_its_own_tests_pass(built):
    module = module_of(built / "tests/test_signed_attention.py")
    kernel = load_kernel(built)
    module.test_context_and_gradients_are_those_of_the_formula(kernel, torch.float32, 32)
    module.test_a_causal_query_does_not_see_later_keys(kernel)


def test_its_configuration_and_files_are_what_the_kernels_library_of_this_version_reads(built):
    from kernels._rust import Build, Digest, DigestAlgorithm, Metadata  # private, but kernel-builder uses them too

    assert set(map(str, Build.open(built).general.backends)) == {"cpu", "cuda"}
    for variant in built.glob("build/*"):
        found = Digest.hash_variant(DigestAlgorithm.SHA256, variant)
        Metadata.read_from_file(variant / "metadata.json").digest.validate(found)
        assert "tilings.json" in found.files


def test_its_tilings_are_those_of_the_package_and_its_json_file_adds_those_of_another_gpu(built, tmp_path, monkeypatch):
    kernel = load_kernel(built)
    assert importlib.import_module(f"{kernel.__name__}.fused_launch").tilings() == tilings()
    folder = renamed(built, tmp_path / "tuned")
    entries = tilings() | {"7.0 forward 64": [32, 16, 4, 1]}
    for variant in folder.glob("build/*"):
        (variant / "tilings.json").write_text(json.dumps(entries))
    launch = importlib.import_module(f"{load_kernel(folder).__name__}.fused_launch")
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    code = launch.Code(64, 64, 64, 64, *[False] * 4, 8, False, 0)
    gpu = launch._gpu(torch.device("cuda"))
    assert launch.candidates("forward", code, gpu)[0] == (32, 16, 4, 1)
    assert launch.candidates("query_gradient", code, gpu)[0] == tilings()["ada query_gradient 64"]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_stock_model_with_it_computes_what_a_signed_model_computes(family, built):
    ALL_ATTENTION_FUNCTIONS.register("the kernel", load_kernel(built).flash_attn_forward)  # as transformers does
    ALL_MASK_ATTENTION_FUNCTIONS.register("the kernel", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model, inputs = stock_model(family), inputs_of(family)
    softmax = logits_of(model, inputs)
    model.set_attn_implementation("the kernel")
    got = logits_of(model, inputs)
    torch.testing.assert_close(got, logits_of(signed(stock_model(family)), inputs), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(got, softmax, atol=1e-3)
    model.config.attn_negative_mass = 0.0
    torch.testing.assert_close(logits_of(model, inputs), softmax, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 4])}, "passes cu_seq_lens_q"),
        ({"softcap": 30.0}, "passes softcap to its attention function"),
        ({"attention_mask": torch.rand(1, 1, 4, 4)}, "passes a bias in its mask to its attention function"),
    ],
)
def test_it_refuses_what_it_does_not_compute(changes, message, built):
    layer, tensors = torch.nn.Linear(1, 1), torch.randn(3, 1, 2, 4, 16)
    with pytest.raises(ValueError, match=message):
        load_kernel(built).flash_attn_forward(layer, *tensors, **changes)


@pytest.mark.skipif(not is_kernels_available(), reason="transformers wants another version of kernels")
def test_transformers_loads_it_by_its_name_on_the_hub(built, tmp_path):
    model, inputs = stock_model("llama"), inputs_of("llama")
    model.save_pretrained(tmp_path)
    torch.save(inputs, tmp_path / "inputs.pt")
    # get_kernel then takes the folder in place of the repository
    environment = os.environ | {"LOCAL_KERNELS": f"someone/signed-attention={built}", "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", USE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    got, keep = torch.load(tmp_path / "logits.pt", weights_only=True), inputs["attention_mask"].bool()
    torch.testing.assert_close(got[keep], logits_of(signed(model), inputs), atol=1e-5, rtol=1e-4)


def test_its_benchmark_compares_with_the_formula(built):
    benchmark = module_of(built / "benchmarks/benchmark.py").SignedAttention()
    benchmark.kernel = load_kernel(built)
    benchmark.setup()
    for name in ("tanhmax", "softmax"):
        getattr(benchmark, f"benchmark_{name}")()
        torch.testing.assert_close(benchmark.out, getattr(benchmark, f"verify_{name}")(), atol=1e-5, rtol=1e-4)
