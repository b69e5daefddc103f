"""Every implementation of `bidir_attention` against the written-out formula, in the context and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from hf_bidir import bidir_attention
from hf_bidir.kernels import chunked_attention
from hf_bidir.modeling import attention
from hf_bidir.modeling.activations import get_attn_activation
from hf_bidir.modeling.attention_call import keep_and_bias

IMPLEMENTATIONS = ["eager", "chunked", "lift", "auto"]
LENGTH = 21


def drawn(batch=2, heads=4, key_heads=2, queries=LENGTH, keys=LENGTH, head_dim=8, dtype=torch.float64, size=1.0):
    """Query, key and value as a model makes them: views of `[batch, length, heads, head_dim]`."""
    torch.manual_seed(0)
    shapes = [(batch, n, count, head_dim) for n, count in ((queries, heads), (keys, key_heads), (keys, key_heads))]
    return [(size * torch.randn(shape, dtype=dtype)).transpose(1, 2).requires_grad_() for shape in shapes]


def written_out(query, key, value, keep=None, causal=False, window=None, activation="tanhmax", **mass):
    """The formula with repeated key heads and one mask."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    mask = (distance >= 0) if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        mask = mask & (distance.abs() <= window)
    mask = mask[None, None] if keep is None else mask & keep
    return get_attn_activation(activation)(query @ key.mT * query.shape[-1] ** -0.5, mask, **mass) @ value


def context_and_gradients(context, inputs):
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2), dtype=context.dtype)
    return [context, *torch.autograd.grad(context, inputs, upstream)]


def assert_formula(inputs, keep=None, implementation="auto", rtol=1e-7, atol=1e-9, **options):
    got, _ = bidir_attention(*inputs, keep, implementation=implementation, **options)
    results = context_and_gradients(got, inputs)
    if isinstance(options.get("negative_mass"), tuple):
        options["negative_mass"] = torch.tensor(options["negative_mass"], dtype=got.dtype).view(-1, 1, 1)
    expected = context_and_gradients(written_out(*inputs, keep, **options), inputs)
    torch.testing.assert_close(results, expected, rtol=rtol, atol=atol)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(chunked_attention, "BAND_ROWS", 8)


def padded(*lengths):
    return (torch.arange(LENGTH) < torch.tensor(lengths)[:, None])[:, None, None]


KEEPS = {
    "no mask": None,
    "padding on the right": padded(LENGTH, 11),
    "padding on the left": padded(LENGTH, 11).flip(-1),
    "one empty example": padded(0, 17),
    "a mask for every query": torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.5,
    "a mask for every head": torch.rand(1, 4, 1, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.3,
}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS.keys())
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_is_the_written_out_formula(implementation, keep, small_pieces):
    masses = (0.75, 0.5, 0.125, 1.0)
    for causal, window, mass in ((False, None, masses), (True, None, 1.0), (True, 5, 0.3), (False, 1, 1.0)):
        if causal and keep is not None and keep.shape[2] > 1:
            keep = keep & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        assert_formula(drawn(), keep, implementation, causal=causal, window=window, negative_mass=mass)
    for queries in (5, 60) if keep is None else ():  # counted from the first, as the keys
        assert_formula(drawn(queries=queries), None, implementation, causal=True)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9)),
    queries=st.none() | st.integers(1, 40),
    piece=st.sampled_from([1, 64, 500, 4096]),
    size=st.sampled_from([0.01, 0.3, 1.0, 12.0]),
    band=st.sampled_from([{}, {"causal": True}, {"window": 1}, {"causal": True, "window": 7}]),
    mass=st.sampled_from([1.0, 0.3]),
    padding=st.sampled_from([None, (5, 0), (0, 5), (0, 30), (30, 0)]),
)
def test_pieces_of_any_size_give_the_written_out_formula(shape, queries, piece, size, band, mass, padding):
    batch, key_heads, groups, length, head_dim = shape
    inputs = drawn(
        batch, key_heads * groups, key_heads, length if band else queries or length, length, head_dim, size=size
    )
    place = torch.arange(length)
    keep = None if padding is None else ((padding[0] <= place) & (place < length - padding[1]))[None, None, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_attention, "CPU_PIECE", piece)
        assert_formula(inputs, keep, "chunked", negative_mass=mass, **band)


@pytest.mark.parametrize("size", [1e-6, 0.2, 20.0])
def test_chunked_keeps_the_digits_of_scores_of_every_size(size):
    query, key, value = (t.detach() for t in drawn(dtype=torch.float32))
    exact = written_out(size * query.double(), key.double(), value.double())
    context = bidir_attention(size * query, key, value, implementation="chunked")[0]
    assert ((context - exact).norm() / exact.norm()).item() < 1e-5


@pytest.mark.parametrize("implementation", ["auto", "eager"])
def test_a_learned_negative_mass_may_be_zero_in_some_heads(implementation):
    inputs, mass = drawn(), torch.tensor([0.0, 0.5, 1.0, 0.2], requires_grad=True)
    context, _ = bidir_attention(*inputs, negative_mass=mass, implementation=implementation)
    gradients = torch.autograd.grad(context.square().sum(), [*inputs, mass])
    assert all(result.isfinite().all() for result in (context, *gradients))
    assert gradients[-1][1:].abs().min() > 0


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_chunked_backward_passes_gradcheck(dropout):
    inputs = drawn(1, 2, 2, 5, 8, 4)
    mass = torch.tensor([0.5, 0.2], dtype=torch.float64, requires_grad=True)

    def attend(query, key, value, mass):
        torch.manual_seed(3)  # the same coefficients are dropped at every evaluation
        options = {"negative_mass": mass, "dropout": dropout, "implementation": "chunked"}
        return bidir_attention(query, key, value, (torch.arange(8) < 5)[None, None, None], **options)[0]

    assert gradcheck(attend, (*inputs, mass), fast_mode=True)


@pytest.mark.parametrize("implementation", ["eager", "chunked"])
def test_dropout_acts_on_coefficients_and_differs_from_call_to_call(implementation):
    query, key = torch.randn(2, 1, 1, 400, 8).unbind()
    value = torch.eye(400).expand(1, 1, 400, 400)  # the context is then the coefficients
    plain = bidir_attention(query, key, value, implementation="eager")[0]
    dropped, again = (
        bidir_attention(query, key, value, dropout=0.25, implementation=implementation)[0] for _ in range(2)
    )
    kept = dropped != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75, rtol=1e-4, atol=1e-7)
    assert not torch.equal(dropped, again)


@pytest.mark.parametrize("implementation", ["eager", "chunked", "lift"])
def test_half_precision_stays_within_its_own_rounding(implementation):
    keep = KEEPS["padding on the right"]
    for dtype in (torch.bfloat16, torch.float16):
        inputs = [t.detach().to(dtype) for t in drawn()]
        exact = written_out(*(t.double() for t in inputs), keep)
        context = bidir_attention(*inputs, keep, implementation=implementation)[0]
        assert context.dtype == dtype
        torch.testing.assert_close(context.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_every_mask_of_transformers_becomes_the_same_keep_mask():
    keep = padded(4, 2)[..., :4]
    additive = torch.zeros(2, 1, 1, 4).masked_fill(~keep, torch.finfo(torch.float32).min)
    assert keep_and_bias(None) == (None, None)
    for mask in (keep, keep.long(), additive, additive.half(), additive.clamp_min(-1e4)):
        found, bias = keep_and_bias(mask)
        assert torch.equal(found, keep)
        assert bias is None


WRONG = {
    "'fastest'": {"implementation": "fastest"},
    "tanhmax": {"activation": "tanmax"},
    "4 heads, got 2": {"negative_mass": [0.5, 0.5]},
    "4 heads, got 3": {"negative_mass": torch.full((3,), 0.5)},
    "'half'": {"negative_mass": "half"},
    "got 1.0": {"dropout": 1.0},
    r"\(2, 2, 0, 8\)": {"key": torch.zeros(2, 2, 0, 8), "value": torch.zeros(2, 2, 0, 8)},
    "torch.float32": {"keep": torch.ones(2, 1, 1, LENGTH)},
    r"\(2, 4, 21, 21\), got \(2, 1, 1, 9\)": {"keep": torch.ones(2, 1, 1, 9, dtype=torch.bool)},
    r"\(2, 4, 21, 21\), got \(2, 3, 1, 21\)": {"keep": torch.ones(2, 3, 1, LENGTH, dtype=torch.bool)},
    r"key \(2, 2, 30, 8\), value \(2, 2, 21, 8\)": {"key": torch.zeros(2, 2, 30, 8)},
    r"query \(2, 4, 21, 4\)": {"query": torch.zeros(2, 4, LENGTH, 4)},
    r"query \(1, 4, 21, 8\)": {"query": torch.zeros(1, 4, LENGTH, 8)},
    r"query \(2, 3, 21, 8\)": {"query": torch.zeros(2, 3, LENGTH, 8)},
    "window .* got 0": {"window": 0},
    "5 queries for 21": {"window": 3, "query": torch.zeros(2, 4, 5, 8)},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items())
def test_an_impossible_request_gets_one_clear_error(message, changes):
    arguments = dict(zip(("query", "key", "value"), drawn(dtype=torch.float32), strict=True)) | changes
    with pytest.raises(ValueError, match=message):
        bidir_attention(**arguments)


@pytest.mark.parametrize(
    ("implementation", "options", "named"),
    [
        ("chunked", {"activation": "tanh"}, "tanh"),
        ("lift", {"dropout": 0.1}, "dropout"),
        ("chunked", {"activation": "balanced", "dropout": 0.1}, "dropout"),
        ("chunked", {"negative_mass": [0.0, 0.5, 1.0, 1.0]}, "softmax heads beside signed heads"),
    ],
)
def test_what_an_implementation_does_not_compute_is_left_to_the_formula_and_logged(
    implementation, options, named, caplog
):
    attention._log_choice.cache_clear()
    query, key, value = drawn()
    torch.manual_seed(1)
    context, coefficients = bidir_attention(query, key, value, implementation=implementation, **options)
    torch.testing.assert_close(context, coefficients @ value.repeat_interleave(2, 1))
    torch.manual_seed(1)
    torch.testing.assert_close(coefficients, bidir_attention(query, key, value, implementation="eager", **options)[1])
    assert f"(only it computes {named})" in caplog.text
