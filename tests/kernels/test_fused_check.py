"""The kernel is compared with the plain path before "auto" uses it."""

import re
from dataclasses import replace

import pytest
import torch

from hf_bidir.kernels.fused_check import Kind, difference_from_eager, kind_of
from hf_bidir.kernels.fused_path import fused_obstacle
from hf_bidir.modeling.attention_call import attention_call

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(fused_obstacle() is not None, reason=str(fused_obstacle()))


@pytest.mark.parametrize(
    "options",
    [
        {"keep": "per query", "shifted": True, "value_dim": 16},
        {"keep": None, "dropped": True, "causal": True},
        {"bias": torch.float32, "bias_gradient": True, "capped": True, "window": True},
        {"few": True, "shifted": True, "gradient": False},
    ],
    ids=str,
)
def test_the_kernels_match_the_eager_path_in_calls_of_every_kind(options):
    from hf_bidir.kernels.fused_attention import fused_attention

    kind = Kind(DEVICE, torch.float16, 32, **{"value_dim": 32} | options)
    assert difference_from_eager(fused_attention, kind) is None


def test_the_kind_of_a_call_says_what_its_code_depends_on():
    query, key = torch.randn(1, 4, 1, 32, dtype=torch.float16), torch.randn(1, 2, 9, 32, dtype=torch.float16)
    call = replace(attention_call(query, key), negative_mass=0.3)
    expected = Kind(query.device, query.dtype, 32, 32, keep=None, shifted=True, few=True, gradient=False)
    assert kind_of(query, key, key, None, call) == expected
    keep = torch.ones(1, 1, 40, 9, dtype=torch.bool)
    many, expected = query.expand(1, 4, 40, 32), expected._replace(few=False, keep="per query", dropped=True)
    assert kind_of(many, key, key, keep, replace(call, dropout=0.1)) == expected


def without_mask(query, key, value, keep, call):
    from hf_bidir.kernels.fused_attention import fused_attention

    return fused_attention(query, key, value, None, call)


def wrong_key_gradient(query, key, value, keep, call):
    from hf_bidir.kernels.fused_attention import fused_attention

    halved = key / 2 + key.detach() / 2  # the same keys, with half of their gradient
    return fused_attention(query, halved, value, keep, call)


def does_not_compile(query, key, value, keep, call):
    raise RuntimeError("ptxas: unknown architecture\nand a long log")


@pytest.mark.parametrize(
    ("attend", "named"),
    [
        (without_mask, "its output differs from the eager path by"),
        (wrong_key_gradient, "its key gradient differs from the eager path by 50.0%"),
        (does_not_compile, r"failed with RuntimeError .*unknown architecture"),
    ],
)
def test_a_kernel_that_differs_is_named_with_its_difference(attend, named):
    with torch.no_grad():  # as while a model is evaluated
        found = difference_from_eager(attend, Kind(DEVICE, torch.float16, 32, 32))
    assert re.search(named, found or "no difference")
