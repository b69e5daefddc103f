"""The Triton kernels match the eager path: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_bidir import bidir_attention
from hf_bidir.modeling.attention import attend
from hf_bidir.modeling.attention_call import attention_call
from tests.kernels.fused_inputs import (
    DEVICE,
    HALF,
    KEYS,
    MASKS,
    PART,
    assert_as_exact,
    assert_exact,
    compared,
    fused,
    grouped,
    mask,
    projections,
    scaled,
    with_gradients,
)

from hf_bidir.kernels import fused_launch  # isort: skip  # where there is Triton


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 36), st.integers(1, 36)),
    dims=st.tuples(st.sampled_from([16, 24, 64]), st.sampled_from([16, 40])),
    dtype=st.sampled_from([torch.float32, *HALF]),
    kind=st.sampled_from(MASKS),
    mass=st.sampled_from([1.0, 0.3, 0.01]),
    causal=st.booleans(),
    window=st.sampled_from([None, 0, 3, 20]),
)
def test_the_kernel_errs_at_most_twice_as_much_as_the_eager_path(sizes, dims, dtype, kind, mass, causal, window):
    batch, heads, queries, keys = sizes
    assume(dtype == torch.float32 or queries * keys >= 64)
    inputs = projections(batch, heads, queries, keys, *dims, dtype=dtype)
    keep = mask(kind, batch, heads, queries, keys)
    assert_exact(inputs, keep, causal=causal, window=window, negative_mass=mass)


@pytest.mark.parametrize("head_dim", [20, 256])
def test_head_dimensions_from_16_to_256(head_dim):
    assert_exact(projections(1, 1, 17, 19, head_dim))


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU chooses its blocks itself")
@pytest.mark.parametrize(
    ("rows", "columns", "causal", "window"), [(32, 16, False, 5), (16, 32, True, None), (32, 16, True, 20)]
)
def test_the_block_size_does_not_change_the_result(rows, columns, causal, window, monkeypatch):
    monkeypatch.setattr(fused_launch, "candidates", lambda *_: [(rows, columns, 4, 1)])
    monkeypatch.setattr(fused_launch, "_ready", {})
    inputs = projections(1, queries=40, keys=45)
    assert_exact(inputs, mask("padding", 1, 2, 40, 45), causal=causal, window=window)


@pytest.mark.parametrize(
    ("make", "dtype", "size"),
    [
        (projections, torch.float32, 1e-4),
        (projections, torch.bfloat16, 20.0),
        (grouped, torch.bfloat16, 60.0),
    ],
)
def test_small_scores_in_fp32_and_large_ones_in_bf16_keep_their_digits_in_context_and_value_gradient(make, dtype, size):
    results = compared(scaled(make(batch=1, dtype=dtype), size))
    going_to_0_with_the_scores = ([context, for_values] for context, _, _, for_values in results)
    assert_as_exact(*going_to_0_with_the_scores, relative=1e-5 if dtype == torch.float32 else 1e-3)


@pytest.mark.parametrize(
    "options",
    [{"scaling": -0.5}, {"negative_mass": [0.0, 1.0]}, {"negative_mass": torch.tensor(0.5, device=DEVICE)}],
    ids=str,
)
def test_every_scaling_and_mass_agrees_with_the_eager_path(options):
    assert_exact(projections(), mask("padding", 2, 2, 20, 18), **options)


def test_the_negative_mass_of_every_head_gets_its_gradient():
    inputs = projections(1)
    mass = torch.tensor([0.9, 0.2], device=DEVICE, requires_grad=True)
    got, expected = (
        with_gradients(bidir_attention(*inputs, negative_mass=mass, implementation=path)[0], [*inputs, mass])
        for path in ("fused", "eager")
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_score_affects_only_its_own_query(bad):
    query, key, value = projections()
    query.data[0, 1, 5, 0] = bad
    spoilt = fused(query, key, value).isnan().any(-1)
    assert spoilt[0, 1, 5]
    assert spoilt.sum() == 1


def test_inputs_and_saved_tensors_may_have_any_memory_layout():
    inputs = projections(1, queries=20, keys=20)
    scattered = [torch.stack([x.detach()] * 2, -1)[..., 0].requires_grad_() for x in inputs]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
        context = bidir_attention(*scattered, implementation="fused")[0]
    expected, *_ = compared(inputs)
    torch.testing.assert_close(with_gradients(context, scattered), expected)


def test_a_window_beyond_every_key_is_no_window():
    inputs = projections(1, queries=18)
    torch.testing.assert_close(fused(*inputs, window=2**31 - 1), fused(*inputs))


@pytest.mark.parametrize(("kind", "causal", "window"), [("padding", True, None), ("full", False, 5)])
def test_key_heads_serve_several_heads_each(kind, causal, window):
    masses = (0.9, 0.3, 1.0, 0.0)
    inputs = grouped(queries=20, keys=20)
    assert_exact(inputs, mask(kind, 2, 4, 20, 20), causal=causal, window=window, negative_mass=masses)


@pytest.mark.parametrize(
    ("queries", "dtype", "kind"),
    [(1, torch.float32, "padding"), (3, torch.float16, "an empty example"), (3, torch.bfloat16, "full"),
     (1, torch.bfloat16, "holes")],
)  # fmt: skip
def test_few_queries_over_many_keys_err_at_most_twice_as_much_as_the_eager_path(queries, dtype, kind):
    assert_exact(grouped(queries, dtype=dtype), mask(kind, 2, 4, queries, KEYS), negative_mass=0.3)


def test_softmax_layers_beside_signed_ones_are_computed_too():
    inputs = projections()
    keep = mask("an empty example", 2, 2, 20, 18)
    for softcap in (None, 0.5):
        call = attention_call(*inputs[:2], activation="softmax", softcap=softcap)
        torch.testing.assert_close(*(attend(*inputs, keep, call, path)[0] for path in ("fused", "eager")))


def test_a_nan_in_one_part_reaches_only_the_heads_that_share_its_key():
    query, key, value = grouped()
    key.data[0, 1, PART + 2, 0] = float("nan")
    spoilt = fused(query, key, value).isnan().all(-1)
    assert spoilt[..., 0].tolist() == [[False, False, True, True], [False] * 4]


def test_keys_may_be_the_filled_part_of_a_static_cache():
    query, key, value = grouped()
    filled = (F.pad(x, (0, 0, 0, PART), value=float("nan"))[:, :, :KEYS] for x in (key, value))
    torch.testing.assert_close(fused(query, *filled), fused(query, key, value))
