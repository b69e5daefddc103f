"""The kernel is compared with the plain path before "auto" uses it."""

import re
from dataclasses import replace

import pytest
import torch

from hf_bidir.modeling.attention_inputs import fused_obstacle
from hf_bidir.modeling.fused_check import difference_from_eager

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(fused_obstacle() is not None, reason=str(fused_obstacle()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(64, 64), (48, 32)])
def test_the_kernel_matches_the_eager_path(dtype, head_dim, value_dim):
    from hf_bidir.modeling.fused_attention import fused_attention

    assert difference_from_eager(fused_attention, DEVICE, dtype, head_dim, value_dim) is None


def wrong_forward(query, key, value, keep, call):
    from hf_bidir.modeling.fused_attention import fused_attention

    return fused_attention(query, key, value, keep, replace(call, scaling=1.2 * call.scaling))


def without_mask(query, key, value, keep, call):
    from hf_bidir.modeling.fused_attention import fused_attention

    return fused_attention(query, key, value, None, call)


def wrong_key_gradient(query, key, value, keep, call):
    from hf_bidir.modeling.fused_attention import fused_attention

    halved = key / 2 + key.detach() / 2  # the same keys, with half of their gradient
    return fused_attention(query, halved, value, keep, call)


def does_not_compile(query, key, value, keep, call):
    raise RuntimeError("ptxas: unknown architecture\nand a long log")


@pytest.mark.parametrize(
    ("attend", "named"),
    [
        (wrong_forward, "its output differs from the eager path by"),
        (without_mask, "its output differs"),
        (wrong_key_gradient, "its key gradient differs from the eager path by 50.0%"),
        (does_not_compile, r"failed with RuntimeError .*unknown architecture"),
    ],
)
def test_a_kernel_that_differs_is_named_with_its_difference(attend, named):
    with torch.no_grad():  # as while a model is evaluated
        found = difference_from_eager(attend, DEVICE, torch.float16, 32, 32)
    assert re.search(named, found or "no difference")
