"""The Triton kernels against the plain path: on a GPU where there is one, else in Triton's interpreter."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_bidir import bidir_attention, packed_attention
from hf_bidir.modeling.attention_call import attention_call

triton = pytest.importorskip("triton")

from hf_bidir.modeling import fused_attention as module  # noqa: E402
from hf_bidir.modeling.fused_attention import fused_attention  # noqa: E402
from hf_bidir.modeling.fused_blocks import polynomial_exp2, tl  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = [torch.float16, torch.bfloat16]
MASKS = ["none", "padding", "padding on the left", "an empty example", "holes", "full"]


def projections(batch=2, heads=2, queries=33, keys=29, head_dim=16, value_dim=None, dtype=torch.float32, size=1.0):
    """Query, key and value as a model makes them: views of `[batch, length, heads, head_dim]`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((queries, head_dim), (keys, head_dim), (keys, value_dim or head_dim))
    tensors = [size * torch.randn(batch, n, heads, d, generator=generator) for n, d in shapes]
    return [t.to(DEVICE, dtype).transpose(1, 2).detach().requires_grad_() for t in tensors]


def mask(kind: str, batch: int, heads: int, queries: int, keys: int):
    generator = torch.Generator().manual_seed(1)
    if kind == "none":
        return None
    if kind == "full":
        keep = torch.rand(batch, heads, queries, keys, generator=generator) > 0.4
    elif kind == "holes":
        keep = torch.rand(batch, 1, 1, keys, generator=generator) > 0.4
    else:
        lengths = [keys] + [0 if kind == "an empty example" else (keys + 1) // 2] * (batch - 1)
        keep = (torch.arange(keys) < torch.tensor(lengths).unsqueeze(1))[:, None, None]
    return (keep.flip(-1) if kind == "padding on the left" else keep).to(DEVICE)


def within_reach(keep, queries: int, keys: int, causal: bool, window: int | None):
    """The keep-mask of the plain path that says what the flags say."""
    offsets = torch.arange(queries, device=DEVICE)[:, None] - torch.arange(keys, device=DEVICE)
    reach = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=DEVICE)
    if causal:
        reach &= offsets >= 0
    if window is not None:
        reach &= offsets.abs() <= window
    return reach if keep is None else keep & reach


def attended(query, key, value, keep=None, causal=False, window=None, **options):
    """The kernel itself; its causality and window are for queries and keys of any numbers, as packed examples need."""
    call = replace(attention_call(query, key, **options), causal=causal, window=window)
    return fused_attention(query, key, value, keep, call)


def with_gradients(context, inputs):
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, context.dtype)
    return [context.detach(), *torch.autograd.grad(context, inputs, upstream)]


def plain(inputs, keep=None, dtype=None, **options):
    """Context and gradients by the plain path, in another precision from the same inputs where `dtype` says so."""
    inputs = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    return with_gradients(bidir_attention(*inputs, keep, implementation="eager", **options)[0], inputs)


def fused(inputs, keep=None, **options):
    return with_gradients(bidir_attention(*inputs, keep, implementation="fused", **options)[0], inputs)


def distance(tensors, gold):
    return [(t.double() - g).norm().item() for t, g in zip(tensors, gold, strict=True)]


def assert_as_exact_as_the_plain_path(got, plainly, gold, relative=None):
    """In half precision at most twice the plain path's distance from gold, in fp32 nearly all digits.

    A few numbers may come out of the plain path exact by luck, hence the units in the last place on top; where all
    numbers are small, a `relative` share of them.
    """
    plain_distances = distance(plainly, gold) if plainly else [0] * len(gold)
    for ours, theirs, exact in zip(distance(got, gold), plain_distances, gold, strict=True):
        size = exact.norm().item()
        if got[0].dtype == torch.float32:
            assert ours <= 1e-5 * (size + 1)
        else:
            assert ours <= 2 * theirs + (
                relative * size if relative else torch.finfo(got[0].dtype).eps * 0.1 * (size + 1)
            )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 40), st.integers(1, 40)),
    dims=st.tuples(st.sampled_from([16, 24, 64]), st.sampled_from([16, 40])),
    dtype=st.sampled_from([torch.float32, *HALF]),
    kind=st.sampled_from(MASKS),
    mass=st.sampled_from([1.0, 0.3, 0.0]),
    causal=st.booleans(),
    window=st.sampled_from([None, 0, 3, 20]),
)
def test_the_kernel_errs_at_most_twice_as_much_as_the_plain_path(sizes, dims, dtype, kind, mass, causal, window):
    batch, heads, queries, keys = sizes
    assume(dtype == torch.float32 or queries * keys >= 64)
    inputs = projections(batch, heads, queries, keys, *dims, dtype=dtype)
    keep = mask(kind, batch, heads, queries, keys)
    context = attended(*inputs, keep, causal, window, negative_mass=mass)
    reach = within_reach(keep, queries, keys, causal, window)
    gold = plain(inputs, reach, torch.float64, negative_mass=mass)
    assert_as_exact_as_the_plain_path(with_gradients(context, inputs), plain(inputs, reach, negative_mass=mass), gold)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
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
def test_scores_of_every_size_keep_their_digits_in_the_context_and_in_the_values_gradient(dtype, size):
    query, key, value = projections(dtype=dtype)
    inputs = [(size * query).detach().requires_grad_(), key, value]
    gold = plain(inputs, dtype=torch.float64)
    ours, theirs = distance(fused(inputs), gold), distance(plain(inputs), gold)
    for index in (0, 3):  # both go to 0 with the scores
        assert ours[index] <= max(2 * theirs[index], 1e-5 * gold[index].norm().item())


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 5)])
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


def test_dropout_of_small_scores_drops_what_it_drops_of_large_ones():
    query, key, _ = projections(dtype=torch.bfloat16)
    basis = torch.eye(29, device=DEVICE, dtype=torch.bfloat16).expand(2, 2, 29, 29)
    dropped = []
    for size in (1e-6, 1.0):
        torch.manual_seed(0)
        dropped.append(attended((size * query).detach(), key, basis, dropout=0.4) == 0)
    assert torch.equal(*dropped)
    assert 0.3 < dropped[0].double().mean() < 0.5


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
@pytest.mark.parametrize("scaling", [-0.5, 0.0])
def test_a_scaling_that_turns_the_order_of_the_scores_or_makes_them_all_equal(scaling, activation):
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


def dropped(inputs, rate: float, seed: int):
    """The factors that dropout applied to the coefficients `[..., queries, keys]`, read off values that are a basis."""
    query, key, _ = inputs
    batch, heads, keys, _ = key.shape
    basis = torch.eye(keys, device=DEVICE).expand(batch, heads, keys, keys)
    torch.manual_seed(seed)
    applied = bidir_attention(query, key, basis, dropout=rate, implementation="fused")[0]
    return (applied / bidir_attention(query, key, basis, implementation="eager")[0]).detach()


def test_dropout_drops_its_share_and_scales_the_rest():
    factors = dropped(projections(queries=64, keys=64), 0.3, seed=3)
    kept = factors != 0
    assert abs(kept.double().mean().item() - 0.7) < 0.02  # 16,384 draws: 5 standard deviations
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7), rtol=1e-3, atol=0)


def test_dropout_differs_from_call_to_call_and_from_head_to_head_of_every_example():
    inputs = projections(queries=32, keys=32)
    factors, others = dropped(inputs, 0.5, seed=3), dropped(inputs, 0.5, seed=4)
    different = [factors[0, 0], factors[0, 1], factors[1, 0], others[0, 0]]
    for i, one in enumerate(different):
        for other in different[i + 1 :]:
            assert 0.4 < ((one != 0) == (other != 0)).double().mean() < 0.6


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    inputs = projections(keys=29, value_dim=16)
    factors = dropped(inputs, 0.4, seed=5)
    torch.manual_seed(5)
    got = with_gradients(bidir_attention(*inputs, dropout=0.4, implementation="fused")[0], inputs)
    _, coefficients = bidir_attention(*inputs, implementation="eager")
    expected = with_gradients((coefficients * factors) @ inputs[2], inputs)
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


CU_SEQLENS, CU_SEQLENS_K = [0, 7, 7, 40, 41, 60], [0, 20, 23, 23, 50, 61]


def packed_inputs(heads=2, head_dim=16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, heads, head_dim, generator=generator).to(DEVICE).requires_grad_() for n in (60, 61, 61)]


def boundaries(numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("mass", [1.0, (0.5, 0.0), 0.0], ids=str)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 4)])
def test_packed_examples_attend_to_themselves_alone(causal, window, mass):
    inputs = packed_inputs()
    context = packed_attention(
        *inputs, boundaries(CU_SEQLENS), boundaries(CU_SEQLENS_K), causal=causal, window=window, negative_mass=mass
    )
    examples = []
    for q0, q1, k0, k1 in zip(CU_SEQLENS, CU_SEQLENS[1:], CU_SEQLENS_K, CU_SEQLENS_K[1:], strict=False):
        query, key, value = inputs[0][q0:q1], inputs[1][k0:k1], inputs[2][k0:k1]
        if q0 == q1 or k0 == k1:
            examples.append(0 * query)
            continue
        reach = within_reach(None, q1 - q0, k1 - k0, causal, window)
        alone = [t.transpose(0, 1).unsqueeze(0) for t in (query, key, value)]
        attended = bidir_attention(*alone, reach, negative_mass=mass, implementation="eager")[0]
        examples.append(attended[0].transpose(0, 1))
    for expected, got in zip(with_gradients(torch.cat(examples), inputs), with_gradients(context, inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 7, 50], r"cu_seqlens must rise from 0 to 60, got \[0, 7, 50\]"),
        ([0, 40, 7, 60], r"must rise from 0 to 60, got \[0, 40, 7, 60\]"),
        ([5, 60], "must rise from 0 to 60"),
        ([60], r"must be int32 \[examples \+ 1\].*got \(1,\)"),
    ],
)
def test_boundaries_that_cannot_be_are_refused(numbers, message):
    query = packed_inputs()[0]
    with pytest.raises(ValueError, match=message):
        packed_attention(query, query, query, boundaries(numbers))


def test_boundaries_of_another_dtype_are_refused():
    query = packed_inputs()[0]
    with pytest.raises(ValueError, match=r"must be int32 .*torch\.int64"):
        packed_attention(query, query, query, boundaries([0, 60]).long())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens": [0, 60]}, "must be an int32 tensor .* got a list"),
        ({"max_seqlen": 0}, "max_seqlen must be an integer of at least 1, got 0"),
        ({"max_seqlen": 6.0}, "max_seqlen must be an integer of at least 1, got 6.0"),
        ({"max_seqlen_k": 60}, "without cu_seqlens_k, cu_seqlens also applies to the keys; .*max_seqlen_k=60"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"window": 1.5}, "window must be an integer of at least 1, or None; got 1.5"),
        ({"activation": "tanh"}, '"tanh" has no fused path; choose "tanhmax" or "softmax"'),
    ],
)
def test_what_packed_attention_cannot_take_is_refused(change, message):
    query = packed_inputs()[0]
    with pytest.raises(ValueError, match=message):
        packed_attention(query, query, query, **{"cu_seqlens": boundaries([0, 60])} | change)


def test_packed_keys_without_boundaries_of_their_own_are_as_many_as_the_queries():
    query, key, value = packed_inputs()
    with pytest.raises(ValueError, match="got 61 keys for 60 queries"):
        packed_attention(query, key, value, boundaries([0, 60]), max_seqlen=60)


def test_second_derivatives_are_refused():
    query, key, value = projections()
    context = bidir_attention(query, key, value, implementation="fused")[0]
    (gradient,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match='only first derivatives; use "eager"'):
        gradient.sum().backward()


def test_the_kernel_alone_checks_the_shapes_too():
    query, key, value = projections()
    for wrong in ([query, key[..., :8], value], [query[:, :1], key, value], [query, key, value[:, :, :9]]):
        with pytest.raises(ValueError, match=r"got query \(2, [12], 33, 16\)"):
            fused_attention(*wrong)


def test_boundaries_behind_the_end_read_nothing_there_even_when_nobody_looks_them_up():
    query = packed_inputs()[0].detach()
    beyond = packed_attention(query, query, query, boundaries([0, 40, 90]), max_seqlen=60)
    within = packed_attention(query, query, query, boundaries([0, 40, 60]), max_seqlen=60)
    torch.testing.assert_close(beyond, within)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_a_score_that_is_no_number_spoils_its_own_query_alone(activation, bad):
    query, key, value = (t.detach().clone() for t in projections())
    query[0, 1, 5, 0] = bad
    context = bidir_attention(query, key, value, activation=activation, implementation="fused")[0]
    spoilt = context.isnan().any(-1)
    assert spoilt[0, 1, 5]
    assert spoilt.sum() == 1


def test_inputs_may_lie_in_memory_as_they_like():
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


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU chooses its blocks itself")
@pytest.mark.parametrize(("rows", "columns"), [(32, 16), (16, 32), (64, 16)])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 5), (True, 20)])
def test_the_size_of_the_blocks_changes_nothing(rows, columns, causal, window, monkeypatch):
    for kernel in (module.forward_kernel, module.query_gradient_kernel, module.key_value_gradient_kernel):
        monkeypatch.setattr(kernel, "configs", [triton.Config({"BLOCK_M": rows, "BLOCK_N": columns})])
    inputs, keep = projections(queries=70, keys=75), mask("padding", 2, 2, 70, 75)
    got = with_gradients(attended(*inputs, keep, causal, window), inputs)
    reach = within_reach(keep, 70, 75, causal, window)
    assert_as_exact_as_the_plain_path(got, None, plain(inputs, reach, torch.float64))


@pytest.fixture
def spread(monkeypatch):
    """Exponentials on two units, whatever the GPU would choose."""
    configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 64, "SPREAD": True})]
    monkeypatch.setattr(module.forward_kernel, "configs", configs)


@pytest.mark.parametrize("kind", ["none", "an empty example", "full"])
@pytest.mark.parametrize("size", [1e-6, 0.03, 1.0, 20.0])
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
def test_a_score_beyond_every_number_spoils_its_own_row_where_exponentials_are_spread(large, spread):
    query, key, value = (t.detach().clone() for t in projections(keys=64, dtype=torch.bfloat16))
    key[..., 0] = 0
    key[:, :, 60, 0] = 1e3  # in the last quarter of a block of keys
    query[..., 0], query[0, 1, 5, 0] = 0, large
    spoilt = fused_attention(query, key, value).isnan().any(-1)
    assert spoilt[0, 1, 5]
    assert spoilt.sum() == 1


def test_a_window_beyond_every_key_is_no_window():
    inputs = [t.detach() for t in projections()]
    torch.testing.assert_close(attended(*inputs, window=2**31 - 1), attended(*inputs))


def test_under_autocast_the_kernel_takes_what_the_projections_give():
    inputs = projections()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        query, key, value = (t @ torch.eye(16, device=DEVICE) for t in inputs)
        context = bidir_attention(query, key, value, implementation="fused")[0]
    assert context.dtype == torch.bfloat16
    gold = plain(inputs, dtype=torch.float64)
    for got, exact in zip(with_gradients(context, inputs), gold, strict=True):
        assert distance([got], [exact])[0] < 0.02 * exact.norm()


def test_what_is_kept_for_the_backward_pass_grows_with_the_length_and_not_with_its_square():
    def kept_numbers(length: int) -> int:
        sizes = []
        inputs = projections(1, 1, length, length)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            bidir_attention(*inputs, implementation="fused")
        return sum(sizes)

    assert kept_numbers(96) == 2 * kept_numbers(48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, r"head dimensions from 16 to 256; .* Got query \(2, 2, 33, 8\)"),
        ({"head_dim": 264}, "head dimensions from 16 to 256"),
        ({"value_dim": 8}, r"head dimensions from 16 to 256.*value \(2, 2, 29, 8\)"),
        ({"dtype": torch.float64}, "one dtype, fp16, bf16 or fp32; .* Got query .* torch.float64"),
        ({"keys": 0}, r"no size may be 0, got query \(2, 2, 33, 16\), key \(2, 2, 0, 16\)"),
    ],
)
def test_what_the_kernel_cannot_take_is_refused_with_the_shapes(change, message):
    with pytest.raises(ValueError, match=message):
        bidir_attention(*projections(**change), implementation="fused")


def test_mixed_dtypes_are_refused():
    query, key, value = projections()
    with pytest.raises(ValueError, match=r"one dtype.*key \(2, 2, 29, 16\) torch.float16"):
        bidir_attention(query, key.half(), value, implementation="fused")


def test_a_mask_besides_packed_examples_is_refused():
    query = projections(queries=29)[0]
    examples = module.Packed(boundaries([0, 29]), boundaries([0, 29]), 29, 29)
    with pytest.raises(ValueError, match="omit keep"):
        fused_attention(query, query, query, mask("padding", 2, 1, 1, 29), packed=examples)


@pytest.mark.parametrize("kind", ["none", "padding", "full"])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 5)])
@pytest.mark.parametrize("mass", [1.0, (0.9, 0.3, 1.0, 0.0)], ids=str)
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


def test_dropout_of_grouped_heads_is_the_same_forward_and_backward():
    query, key, value = projections(heads=4, queries=29)[0], *projections()[1:]
    torch.manual_seed(5)
    got = attended(query, key, value, dropout=0.4)
    factors = dropped([query, *(x.repeat_interleave(2, 1) for x in (key, value))], 0.4, seed=5)
    _, coefficients = bidir_attention(query, key, value, implementation="eager")
    expected = (coefficients * factors) @ value.repeat_interleave(2, 1)
    inputs = [query, key, value]
    for theirs, ours in zip(with_gradients(expected, inputs), with_gradients(got, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_a_compiled_graph_holds_the_kernel_whole_at_every_length():
    def attend(query, key, value):
        return bidir_attention(query, key, value, negative_mass=0.5, implementation="fused")[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for length in (17, 19, 29):
        inputs = projections(1, 1, length, length)
        got = with_gradients(compiled(*inputs), inputs)
        for expected, ours in zip(with_gradients(attend(*inputs), inputs), got, strict=True):
            torch.testing.assert_close(ours, expected)


def test_packed_attention_compiles_into_one_graph_where_the_longest_is_given():
    inputs, starts = packed_inputs()[:1] * 3, boundaries([0, 20, 60])

    def attend(query, key, value):
        return packed_attention(query, key, value, starts, max_seqlen=40)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))


def test_boundaries_may_be_a_column_of_a_table():
    query = packed_inputs()[0]
    column = boundaries([[0, 0], [20, 1], [60, 2]])[:, 0]
    got = packed_attention(query, query, query, column)
    torch.testing.assert_close(got, packed_attention(query, query, query, boundaries([0, 20, 60])))


def test_an_exported_program_holds_the_kernel():
    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return bidir_attention(query, key, value, implementation="fused")[0]

    inputs = tuple(t.detach() for t in projections())
    program = torch.export.export(Attention(), inputs)
    torch.testing.assert_close(program.module()(*inputs), Attention()(*inputs))


@pytest.mark.parametrize("causal", [False, True])
def test_torch_finds_nothing_wrong_with_the_operator(causal):
    inputs = projections(1, 1, 17, 19)
    shift = torch.zeros(1, device=DEVICE, requires_grad=True)
    numbers = (17, 19, True, 0.25, 0.0, causal, None)
    found = torch.library.opcheck(
        module._forward, (*inputs, mask("holes", 1, 1, 17, 19), shift, None, None, None, *numbers)
    )
    assert set(found.values()) == {"SUCCESS"}


def run_alone(code: str, **environment: str) -> str:
    """What a fresh Python prints that runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ATTEMPT = """
import torch
from hf_bidir import bidir_attention
x = torch.randn(1, 1, 4, 16)
print(bidir_attention(x, x, x)[0].shape)
try:
    bidir_attention(x, x, x, implementation="fused")
except (ValueError, ImportError) as error:
    print(error)
"""


def test_without_a_gpu_fused_says_so_and_auto_does_without():
    printed = run_alone(ATTEMPT, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert printed.startswith("torch.Size([1, 1, 4, 16])\n")
    assert 'fused attention needs a GPU; use implementation="auto"' in printed


def test_without_triton_fused_says_so_and_auto_does_without():
    printed = run_alone("import sys; sys.modules['triton'] = None\n" + ATTEMPT)
    assert printed.startswith("torch.Size([1, 1, 4, 16])\n")
    assert 'implementation="fused" needs Triton' in printed


def test_nothing_imports_triton_before_the_kernel_is_asked_for():
    code = "import sys, hf_bidir; print([name for name in sys.modules if 'fused' in name and 'hf_bidir' in name])"
    assert run_alone(code) == "[]\n"


NEW_WAY = """
import torch
from hf_bidir import bidir_attention
torch.backends.cuda.matmul.fp32_precision = "tf32"
device = "cuda" if torch.cuda.is_available() else "cpu"
for dtype in (torch.float16, torch.float32):
    x = torch.randn(1, 1, 4, 16, device=device, dtype=dtype)
    print(bidir_attention(x, x, x, implementation="fused")[0].dtype)
"""


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch knows only the old way"
)
def test_torchs_new_way_of_allowing_tf32_is_understood():
    assert run_alone(NEW_WAY) == "torch.float16\ntorch.float32\n"
