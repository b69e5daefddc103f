"""The Triton kernels at other block sizes, and with exponentials spread over two units."""

import pytest
import torch

from tests.modeling.fused_inputs import (
    DEVICE,
    assert_as_exact_as_the_plain_path,
    attended,
    fused,
    mask,
    plain,
    projections,
    with_gradients,
    within_reach,
)

triton = pytest.importorskip("triton")

from hf_bidir.modeling import fused_attention as module  # noqa: E402
from hf_bidir.modeling.fused_attention import fused_attention  # noqa: E402
from hf_bidir.modeling.fused_blocks import polynomial_exp2, tl  # noqa: E402


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU chooses its blocks itself")
@pytest.mark.parametrize(
    ("rows", "columns", "causal", "window"),
    [
        (32, 16, False, None),
        (16, 32, True, None),
        (64, 16, False, 5),
        (32, 16, True, 20),
        (16, 32, False, 5),
        (64, 16, True, 20),
    ],
)
def test_the_block_size_does_not_change_the_result(rows, columns, causal, window, monkeypatch):
    for kernel in (module.forward_kernel, module.query_gradient_kernel, module.key_value_gradient_kernel):
        monkeypatch.setattr(kernel, "configs", [triton.Config({"BLOCK_M": rows, "BLOCK_N": columns})])
    inputs, keep = projections(queries=70, keys=75), mask("padding", 2, 2, 70, 75)
    got = with_gradients(attended(*inputs, keep, causal, window), inputs)
    reach = within_reach(keep, 70, 75, causal, window)
    assert_as_exact_as_the_plain_path(got, None, plain(inputs, reach, torch.float64))


@pytest.fixture
def spread(monkeypatch):
    """Exponentials on two units, regardless of the GPU's default."""
    configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 64, "SPREAD": True})]
    monkeypatch.setattr(module.forward_kernel, "configs", configs)


@pytest.mark.parametrize(("size", "kind"), [(1e-6, "none"), (0.03, "full"), (1.0, "an empty example"), (20.0, "full")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exponentials_that_are_spread_over_two_units_are_as_exact(dtype, size, kind, spread):
    query, key, value = projections(keys=75, dtype=dtype)
    inputs, keep = [(size * query).detach().requires_grad_(), key, value], mask(kind, 2, 2, 33, 75)
    gold = plain(inputs, keep, torch.float64)
    assert_as_exact_as_the_plain_path(fused(inputs, keep), plain(inputs, keep), gold)


@triton.jit
def powers_of_two(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, polynomial_exp2(tl.load(x + at)))


def test_the_polynomial_is_exact_to_2_5e_7_and_at_0_altogether():
    x = torch.linspace(-126, 0, 2**16, device=DEVICE)
    y = torch.empty_like(x)
    powers_of_two[(1,)](x, y, SIZE=2**16)
    assert (y.double() / torch.exp2(x.double()) - 1).abs().max() < 2.5e-7
    assert y[-1] == 1


def test_masked_values_change_no_digit_where_exponentials_are_spread(spread):
    query, key, value = (t.detach() for t in projections(keys=64, dtype=torch.bfloat16))
    keep = mask("padding", 2, 2, 33, 64)
    large = torch.where(keep.transpose(2, 3), value, 1e8).bfloat16()
    assert torch.equal(fused_attention(query, key, large, keep), fused_attention(query, key, value, keep))


@pytest.mark.parametrize("large", [3e38, -3e38])
def test_an_infinite_score_affects_only_its_own_row_where_exponentials_are_spread(large, spread):
    query, key, value = (t.detach().clone() for t in projections(keys=64, dtype=torch.bfloat16))
    key[..., 0] = 0
    key[:, :, 60, 0] = 1e3  # in the last quarter of a block of keys
    query[..., 0], query[0, 1, 5, 0] = 0, large
    spoilt = fused_attention(query, key, value).isnan().any(-1)
    assert spoilt[0, 1, 5]
    assert spoilt.sum() == 1
