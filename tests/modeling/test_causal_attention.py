"""Causality, windows and grouped key heads: every implementation against the explicit formula."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from hf_bidir import bidir_attention, tanhmax
from hf_bidir.modeling import attention, chunked_attention
from hf_bidir.modeling.attention_call import attention_call

IMPLEMENTATIONS = ["eager", "chunked", "lift", "auto"]


def drawn(batch=2, heads=4, key_heads=2, length=37, head_dim=8, dtype=torch.float64, size=1.0):
    """Query, key and value as a model makes them: views of `[batch, length, heads, head_dim]`."""
    torch.manual_seed(0)
    shapes = [(batch, length, count, head_dim) for count in (heads, key_heads, key_heads)]
    return [(size * torch.randn(shape, dtype=dtype)).transpose(1, 2).requires_grad_() for shape in shapes]


def written_out(query, key, value, keep, causal, window, mass=1.0):
    """The formula with repeated key heads and one mask."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    mask = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= distance.abs() <= window
    mask = mask[None, None] if keep is None else mask & keep
    return tanhmax(query @ key.mT * query.shape[-1] ** -0.5, mask, negative_mass=mass) @ value


def context_and_gradients(context, inputs):
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2), dtype=context.dtype)
    return context, *torch.autograd.grad(context, inputs, upstream)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(chunked_attention, "BAND_ROWS", 8)
    monkeypatch.setattr(attention, "LIFT_ROWS", 8)


KEEPS = {
    "no mask": None,
    "padding on the right": torch.arange(37)[None, None, None] < torch.tensor([37, 20])[:, None, None, None],
    "padding on the left": torch.arange(37)[None, None, None] >= torch.tensor([0, 20])[:, None, None, None],
    "a mask for every query": torch.rand(2, 1, 37, 37, generator=torch.Generator().manual_seed(1)) > 0.5,
    "a mask for every head": torch.rand(1, 4, 1, 37, generator=torch.Generator().manual_seed(1)) > 0.3,
}


@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS.keys())
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_is_the_written_out_formula(implementation, keep, causal, window):
    inputs = drawn()
    band = torch.ones(37, 37, dtype=torch.bool)
    if causal and keep is not None and keep.shape[2] > 1:
        keep = keep & band.tril()
    got, _ = bidir_attention(*inputs, keep, causal=causal, window=window, implementation=implementation)
    expected = written_out(*inputs, keep, causal, window)
    for want, is_ in zip(context_and_gradients(expected, inputs), context_and_gradients(got, inputs), strict=True):
        torch.testing.assert_close(is_, want, rtol=1e-9, atol=1e-11)


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9)),
    piece=st.sampled_from([1, 64, 500, 4096]),
    size=st.sampled_from([0.01, 1.0, 12.0]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 7]),
    mass=st.sampled_from([1.0, 0.3]),
    padding=st.sampled_from([None, (5, 0), (0, 5), (0, 30), (30, 0)]),
)
def test_pieces_of_any_size_give_the_written_out_formula(shape, piece, size, causal, window, mass, padding):
    batch, key_heads, groups, length, head_dim = shape
    inputs = drawn(batch, key_heads * groups, key_heads, length, head_dim, size=size)
    place = torch.arange(length)
    keep = None if padding is None else ((padding[0] <= place) & (place < length - padding[1]))[None, None, None]
    expected = written_out(*inputs, keep, causal, window, mass)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_attention, "CPU_PIECE", piece)
        got, _ = bidir_attention(
            *inputs, keep, causal=causal, window=window, negative_mass=mass, implementation="chunked"
        )
        results = context_and_gradients(got, inputs)
    for want, is_ in zip(context_and_gradients(expected, inputs), results, strict=True):
        torch.testing.assert_close(is_, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("queries", [5, 60])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_causality_counts_queries_and_keys_of_unequal_lengths_from_the_first(implementation, queries):
    query, key, value = drawn(length=60)[0][:, :, :queries], *drawn()[1:]
    call = attention_call(query, key, causal=True)
    context, _ = attention.attend(query, key, value, None, call, implementation)
    torch.testing.assert_close(context, written_out(query, key, value, None, True, None), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("options", "share"), [({"causal": True}, 0.6), ({"window": 16}, 0.25)])
def test_keys_out_of_reach_are_not_computed(options, share):
    inputs = drawn(length=256)

    def flops(**options):
        with FlopCounterMode(display=False) as counter:
            context_and_gradients(bidir_attention(*inputs, implementation="chunked", **options)[0], inputs)
        return counter.get_total_flops()

    assert flops(**options) < share * flops()


def test_padding_of_a_causal_batch_is_not_computed():
    inputs = drawn(batch=1, length=256)
    keep = (torch.arange(256) >= 192)[None, None, None]  # on the left, as for generation

    def flops(keep):
        with FlopCounterMode(display=False) as counter:
            bidir_attention(*inputs, keep, causal=True, implementation="chunked")
        return counter.get_total_flops()

    assert flops(keep) < 0.2 * flops(None)


def test_softmax_is_causal_windowed_and_grouped_as_well():
    inputs = drawn()
    key, value = (x.repeat_interleave(2, 1) for x in inputs[1:])
    scores = inputs[0] @ key.mT * 8**-0.5
    for window in (None, 3):
        distance = torch.arange(37)[:, None] - torch.arange(37)
        mask = (distance >= 0) & (distance <= (37 if window is None else window))
        expected = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
        for implementation in ("auto", "eager"):
            options = {"causal": True, "window": window, "implementation": implementation}
            torch.testing.assert_close(bidir_attention(*inputs, activation="softmax", **options)[0], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1, or None; got 0"),
        ({"window": 2.0}, "window must be an integer of at least 1, or None; got 2.0"),
        (
            {"causal": True, "query": torch.zeros(2, 4, 5, 8)},
            "causal needs as many queries as keys; got 5 queries for 37",
        ),
        ({"window": 3, "query": torch.zeros(2, 4, 5, 8)}, "window needs as many queries as keys; got 5 queries for 37"),
        (
            {"causal": True, "keep": torch.ones(2, 1, 37, 37, dtype=torch.bool)},
            "the mask keeps key 1 for query 0, which causal=True drops",
        ),
        ({"query": torch.zeros(2, 3, 37, 8)}, "number of key heads must divide the number of query heads"),
    ],
)
def test_what_cannot_be_is_one_clear_error(change, message):
    arguments = dict(zip(("query", "key", "value"), drawn(dtype=torch.float32), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        bidir_attention(**arguments)
