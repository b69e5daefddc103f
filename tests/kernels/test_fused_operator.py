"""The Triton kernels as a torch operator: compilation, export, memory, errors, missing requirements."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from hf_bidir import bidir_attention
from tests.kernels.fused_inputs import (
    DEVICE,
    compared,
    distance,
    mask,
    projections,
    with_gradients,
)

triton = pytest.importorskip("triton")

from hf_bidir.kernels import fused_attention as module  # noqa: E402
from hf_bidir.kernels import fused_path  # noqa: E402
from hf_bidir.kernels.fused_attention import fused_attention  # noqa: E402
from hf_bidir.kernels.fused_blocks import TF32, TF32X3  # noqa: E402
from hf_bidir.kernels.fused_problem import Inputs, prepared  # noqa: E402
from hf_bidir.modeling.attention_call import AttentionCall  # noqa: E402


def test_under_autocast_the_kernel_takes_what_the_projections_give():
    inputs = projections(1)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        query, key, value = (t @ torch.eye(16, device=DEVICE) for t in inputs)
        context = bidir_attention(query, key, value, implementation="fused")[0]
    assert context.dtype == torch.bfloat16
    *_, gold = compared(inputs)
    assert all(d < 0.02 * x.norm() for d, x in zip(distance(with_gradients(context, inputs), gold), gold, strict=True))


def test_what_is_kept_for_the_backward_pass_grows_with_the_length_and_not_with_its_square():
    def kept_numbers(length: int) -> int:
        sizes = []
        inputs = projections(1, 1, length, length)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            bidir_attention(*inputs, implementation="fused")
        return sum(sizes)

    assert kept_numbers(40) == 2 * kept_numbers(20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 15}, r"16 to 256.*\(2, 2, 20, 15\)"),
        ({"value_dim": 257}, r"16 to 256.*\(2, 2, 18, 257\)"),
        ({"dtype": torch.float64}, r"fp16, bf16 or fp32.*torch\.float64"),
        ({"dtype": [torch.float32, torch.float16]}, r"one dtype.*\(2, 2, 18, 16\) torch\.float16"),
    ],
)
def test_what_the_kernel_cannot_take_is_refused_with_the_shapes(change, message):
    query, key, value = projections(**change | {"dtype": torch.float32})
    dtype = change.get("dtype", torch.float32)
    first, second = dtype if isinstance(dtype, list) else (dtype, dtype)
    with pytest.raises(ValueError, match=message):
        bidir_attention(query.to(first), key.to(second), value.to(first), implementation="fused")


def test_a_compiled_graph_holds_the_kernel_whole_at_every_length():
    def attend(query, key, value):
        return bidir_attention(query, key, value, negative_mass=0.5, implementation="fused")[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for length in (17, 21):
        inputs = projections(1, 1, length, length)
        torch.testing.assert_close(with_gradients(compiled(*inputs), inputs), with_gradients(attend(*inputs), inputs))


def test_an_exported_program_holds_the_kernel():
    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return bidir_attention(query, key, value, implementation="fused")[0]

    inputs = tuple(t.detach() for t in projections(1, 1, 17, 17))
    program = torch.export.export(Attention(), inputs)
    torch.testing.assert_close(program.module()(*inputs), Attention()(*inputs))


def test_torch_finds_nothing_wrong_with_the_operator():
    inputs = projections(1, 1, 17, 19)
    bias = torch.randn(1, 1, 17, 19, device=DEVICE)
    shifts = torch.zeros(1, device=DEVICE)
    tensors = (*inputs, mask("holes", 1, 1, 17, 19), bias.requires_grad_(), shifts.requires_grad_(), None)
    numbers = (0.25, None, 0.0, True, None)
    assert set(torch.library.opcheck(module._operator, (*tensors, *numbers)).values()) == {"SUCCESS"}


def test_without_a_gpu_the_kernel_is_refused_and_without_triton_its_error_says_how_to_get_it(monkeypatch):
    inputs = [x.detach().cpu() for x in projections()]
    monkeypatch.setattr(fused_path, "INTERPRETED", False)
    with pytest.raises(ValueError, match="fused attention needs a GPU"):
        bidir_attention(*inputs, implementation="fused")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "hf_bidir.kernels.fused_blocks")
    with pytest.raises(ImportError, match='"fused" needs Triton'):
        importlib.import_module("hf_bidir.kernels.fused_blocks")


def aligned_inputs():
    query = torch.empty(2, 64, 3, 16, device="meta").transpose(1, 2)
    return Inputs(query, query, query, *[None] * 4, 1.0, None, 0.0, False, None)


@pytest.mark.parametrize(
    ("setting", "precision"),
    [({"fp32_precision": "tf32"}, TF32), ({"fp32_precision": "ieee"}, TF32X3), ({"allow_tf32": True}, TF32)],
)
def test_both_of_torchs_ways_of_allowing_tf32_are_understood(setting, precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(**setting))
    assert prepared(aligned_inputs()).code.precision == precision.value


def test_numbers_are_given_to_the_kernels_in_the_types_they_were_compiled_for(monkeypatch):
    launched = []
    monkeypatch.setattr(module, "launch", lambda *arguments: launched.append(arguments))
    inputs = [x.detach() for x in projections(queries=70)]
    for dropout in (0, 0.0):
        fused_attention(*inputs, None, AttentionCall(scaling=1, dropout=dropout))
    (_, first, *_), (_, second, *_) = launched
    assert (first.code, first.kinds) == (second.code, second.kinds)
    assert [type(x) for x in first.problem] == [type(x) for x in second.problem]


def test_what_needs_64_bits_or_is_not_aligned_has_code_of_its_own():
    inputs = aligned_inputs()
    code = prepared(inputs).code
    assert (code.wide, code.unit) == (False, 8)
    far = torch.empty_strided((2, 3, 64, 16), (2**31, 16, 48, 1), device="meta")
    assert prepared(inputs._replace(value=far)).code == code._replace(wide=True)
    odd = torch.empty(2, 64, 3, 17, device="meta")[..., 1:].transpose(1, 2)
    assert prepared(inputs._replace(key=odd)).code == code._replace(unit=1)
