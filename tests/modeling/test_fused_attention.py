"""The Triton kernels match the eager path: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_bidir import bidir_attention
from tests.modeling.fused_inputs import (
    DEVICE,
    HALF,
    MASKS,
    assert_as_exact_as_the_plain_path,
    attended,
    distance,
    fused,
    mask,
    plain,
    projections,
    with_gradients,
    within_reach,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 40), st.integers(1, 40)),
    dims=st.tuples(st.sampled_from([16, 24, 64]), st.sampled_from([16, 40])),
    dtype=st.sampled_from([torch.float32, *HALF]),
    kind=st.sampled_from(MASKS),
    mass=st.sampled_from([1.0, 0.3, 0.0]),
    causal=st.booleans(),
    window=st.sampled_from([None, 0, 3, 20]),
)
def test_the_kernel_errs_at_most_twice_as_much_as_the_eager_path(sizes, dims, dtype, kind, mass, causal, window):
    batch, heads, queries, keys = sizes
    assume(dtype == torch.float32 or queries * keys >= 64)
    inputs = projections(batch, heads, queries, keys, *dims, dtype=dtype)
    keep = mask(kind, batch, heads, queries, keys)
    context = attended(*inputs, keep, causal, window, negative_mass=mass)
    reach = within_reach(keep, queries, keys, causal, window)
    gold = plain(inputs, reach, torch.float64, negative_mass=mass)
    assert_as_exact_as_the_plain_path(with_gradients(context, inputs), plain(inputs, reach, negative_mass=mass), gold)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_mask_is_obeyed_in_the_context_and_in_every_gradient(kind, dtype):
    inputs, keep = projections(dtype=dtype), mask(kind, 2, 2, 33, 29)
    gold = plain(inputs, keep, torch.float64)
    assert_as_exact_as_the_plain_path(fused(inputs, keep), plain(inputs, keep), gold)


@pytest.mark.parametrize("head_dim", [16, 20, 32, 64, 80, 128, 256])
def test_head_dimensions_from_16_to_256(head_dim):
    inputs = projections(1, 1, 17, 19, head_dim)
    assert_as_exact_as_the_plain_path(fused(inputs), plain(inputs), plain(inputs, dtype=torch.float64))


@pytest.mark.parametrize("size", [1e-6, 1e-4, 0.03, 1.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_of_every_magnitude_keep_their_digits_in_the_context_and_the_gradient_of_the_values(dtype, size):
    query, key, value = projections(dtype=dtype)
    inputs = [(size * query).detach().requires_grad_(), key, value]
    gold = plain(inputs, dtype=torch.float64)
    ours, theirs = distance(fused(inputs), gold), distance(plain(inputs), gold)
    for index in (0, 3):  # both go to 0 with the scores
        assert ours[index] <= max(2 * theirs[index], 1e-5 * gold[index].norm().item())


@pytest.mark.parametrize(
    ("kind", "causal", "window"),
    [
        ("none", False, None),
        ("padding", True, None),
        ("padding on the left", False, 5),
        ("an empty example", False, None),
        ("holes", False, 5),
        ("full", True, None),
    ],
)
def test_a_query_of_small_scores_keeps_its_digits_beside_one_of_large_scores(kind, causal, window):
    query, key, value = projections(dtype=torch.bfloat16)
    sizes = torch.where(torch.arange(33, device=DEVICE) % 2 == 0, 1e-6, 3.0).bfloat16()[:, None]
    inputs, keep = [(sizes * query).detach(), key, value], mask(kind, 2, 2, 33, 29)
    reach = within_reach(keep, 33, 29, causal, window)
    gold = bidir_attention(*(x.double() for x in inputs), reach, implementation="eager")[0][:, :, ::2]
    plainly = bidir_attention(*inputs, reach, implementation="eager")[0][:, :, ::2]
    got = attended(*inputs, keep, causal, window)[:, :, ::2]
    assert_as_exact_as_the_plain_path([got], [plainly], [gold], relative=1e-3)


def test_a_head_of_small_scores_keeps_the_digits_of_its_values_gradient_beside_others():
    query, key, value = projections(dtype=torch.bfloat16)
    sizes = torch.tensor([[1.0, 3.0], [2.0, 1e-6]], device=DEVICE).bfloat16()[..., None, None]
    inputs = [(sizes * query).detach().requires_grad_(), key, value]
    found = (plain(inputs, dtype=torch.float64), plain(inputs), fused(inputs))
    gold, plainly, got = (gradients[-1][1, 1] for gradients in found)
    assert_as_exact_as_the_plain_path([got], [plainly], [gold], relative=1e-3)


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
@pytest.mark.parametrize("scaling", [-0.5, 0.0])
def test_a_scaling_that_is_negative_or_zero(scaling, activation):
    inputs, keep = projections(), mask("padding", 2, 2, 33, 29)
    options = {"scaling": scaling, "activation": activation}
    for expected, got in zip(plain(inputs, keep, **options), fused(inputs, keep, **options), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def test_the_negative_mass_of_every_head_gets_its_gradient():
    inputs, mass = projections(), torch.tensor([0.9, 0.2], device=DEVICE, requires_grad=True)
    for expected, got in zip(
        with_gradients(bidir_attention(*inputs, negative_mass=mass, implementation="eager")[0], [*inputs, mass]),
        with_gradients(bidir_attention(*inputs, negative_mass=mass, implementation="fused")[0], [*inputs, mass]),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_softmax_heads_and_signed_heads_mix_in_one_layer():
    inputs, keep = projections(), mask("padding", 2, 2, 33, 29)
    for expected, got in zip(
        plain(inputs, keep, negative_mass=[0.0, 1.0]), fused(inputs, keep, negative_mass=[0.0, 1.0]), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def test_softmax_is_the_kernels_other_mode():
    inputs = projections()
    for expected, got in zip(plain(inputs, activation="softmax"), fused(inputs, activation="softmax"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_a_nan_score_affects_only_its_own_query(activation, bad):
    query, key, value = (t.detach().clone() for t in projections())
    query[0, 1, 5, 0] = bad
    context = bidir_attention(query, key, value, activation=activation, implementation="fused")[0]
    spoilt = context.isnan().any(-1)
    assert spoilt[0, 1, 5]
    assert spoilt.sum() == 1


def test_inputs_may_have_any_memory_layout():
    plainly = projections(queries=20, keys=20)
    scattered = [
        torch.empty(*t.shape[:-1], 2 * t.shape[-1], device=DEVICE)[..., ::2].copy_(t.detach()).requires_grad_()
        for t in plainly
    ]
    assert not any(t.is_contiguous() for t in scattered)
    for expected, got in zip(fused(plainly), fused(scattered), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_query_that_is_one_broadcast_to_all_examples_gets_its_gradient():
    _, key, value = projections()
    one = projections(batch=1)[0]
    gradients = []
    for implementation in ("eager", "fused"):
        context = bidir_attention(one.expand(2, -1, -1, -1), key, value, implementation=implementation)[0]
        gradients.append(with_gradients(context, [one, key, value]))
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_window_beyond_every_key_is_no_window():
    inputs = [t.detach() for t in projections()]
    torch.testing.assert_close(attended(*inputs, window=2**31 - 1), attended(*inputs))


@pytest.mark.parametrize(
    ("kind", "causal", "window", "mass"),
    [
        ("none", False, None, 1.0),
        ("padding", True, None, (0.9, 0.3, 1.0, 0.0)),
        ("full", False, None, (0.9, 0.3, 1.0, 0.0)),
        ("none", True, 5, (0.9, 0.3, 1.0, 0.0)),
        ("padding", True, 5, 1.0),
    ],
)
def test_key_heads_serve_several_heads_each(kind, causal, window, mass):
    query = projections(heads=4, queries=37, keys=37)[0]
    inputs = [query, *projections(heads=2, queries=37, keys=37)[1:]]
    keep = mask(kind, 2, 4, 37, 37)
    got = with_gradients(attended(*inputs, keep, causal, window, negative_mass=mass), inputs)
    key, value = (x.repeat_interleave(2, 1) for x in inputs[1:])
    reach = within_reach(keep, 37, 37, causal, window)
    expected = bidir_attention(query, key, value, reach, negative_mass=mass, implementation="eager")[0]
    for theirs, ours in zip(with_gradients(expected, inputs), got, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_a_mass_in_a_tensor_of_one_number_is_that_of_every_head():
    inputs, mass = projections(heads=3), torch.tensor(0.5, device=DEVICE)
    for expected, got in zip(plain(inputs, negative_mass=0.5), fused(inputs, negative_mass=mass), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def test_saved_tensors_may_come_back_in_another_memory_layout():
    inputs = projections(heads=3, queries=70, keys=75)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
        got = fused(inputs)
    for expected, ours in zip(plain(inputs), got, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5)
