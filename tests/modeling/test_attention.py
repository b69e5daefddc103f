"""Every implementation of `bidir_attention` against the eager path, in the context and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from hf_bidir import bidir_attention, tanhmax
from hf_bidir.modeling import chunked_attention
from hf_bidir.modeling.attention_inputs import keep_and_bias

FAST = ["auto", "chunked", "lift"]
MASSES = [1.0, 0.3, (0.9, 0.5, 0.1)]


def projections(batch=2, heads=3, queries=33, keys=29, head_dim=8, dtype=torch.float32, size=1.0):
    """Query, key and value as a model makes them: views of `[batch, length, heads, head_dim]`."""
    torch.manual_seed(0)
    tensors = [size * torch.randn(batch, n, heads, head_dim, dtype=dtype) for n in (queries, keys, keys)]
    return [t.transpose(1, 2).detach().requires_grad_() for t in tensors]


def padding(lengths, keys=29):
    return (torch.arange(keys) < torch.tensor(lengths).unsqueeze(1))[:, None, None]


KEEPS = {
    "no mask": None,
    "padded": padding([29, 11]),
    "padded on the left": padding([29, 11]).flip(-1),
    "one empty example": padding([0, 17]),
    "full mask": torch.rand(2, 3, 33, 29, generator=torch.Generator().manual_seed(1)) > 0.5,
}


def context_and_gradients(inputs, keep, **options):
    context, _ = bidir_attention(*inputs, keep, **options)
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2), dtype=context.dtype)
    return context, *torch.autograd.grad(context, inputs, upstream)


@pytest.mark.parametrize("mass", MASSES, ids=str)
@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS.keys())
@pytest.mark.parametrize("implementation", FAST)
def test_every_implementation_agrees_with_the_plain_path_to_1e_5(implementation, keep, mass):
    inputs = projections()
    plain = context_and_gradients(inputs, keep, negative_mass=mass, implementation="eager")
    fast = context_and_gradients(inputs, keep, negative_mass=mass, implementation=implementation)
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS.keys())
@pytest.mark.parametrize("implementation", ["auto", "chunked"])
def test_softmax_agrees_with_the_plain_path(implementation, keep):
    inputs = projections()
    plain = context_and_gradients(inputs, keep, activation="softmax", implementation="eager")
    fast = context_and_gradients(inputs, keep, activation="softmax", implementation=implementation)
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_the_plain_path_is_coefficients_times_values():
    query, key, value = projections(dtype=torch.float64)
    keep = KEEPS["padded"]
    context, coefficients = bidir_attention(query, key, value, keep, implementation="eager")
    expected = tanhmax(query @ key.mT / 8**0.5, keep)
    torch.testing.assert_close(coefficients, expected)
    torch.testing.assert_close(context, expected @ value)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.2, 1.0, 20.0])
def test_chunked_keeps_the_digits_of_scores_of_every_size(size):
    query, key, value = (t.detach() for t in projections())
    exact = bidir_attention(size * query.double(), key.double(), value.double(), implementation="eager")[0]
    context = bidir_attention(size * query, key, value, implementation="chunked")[0]
    assert ((context - exact).norm() / exact.norm()).item() < 1e-5


@pytest.mark.parametrize("implementation", ["auto", "eager"])
def test_a_learned_negative_mass_may_be_zero_in_some_heads(implementation):
    inputs = projections()
    mass = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
    context, _ = bidir_attention(*inputs, negative_mass=mass, implementation=implementation)
    gradients = torch.autograd.grad(context.square().sum(), [*inputs, mass])
    assert context.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[-1][1:].abs().min() > 0


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(*(st.integers(1, n) for n in (3, 4, 40, 40, 12))),
    piece=st.sampled_from([1, 64, 500, 4096]),
    size=st.sampled_from([0.01, 0.3, 1.0, 12.0]),
    masked=st.booleans(),
)
def test_pieces_of_any_size_give_the_plain_result(shape, piece, size, masked):
    batch, heads, queries, keys, head_dim = shape
    inputs = projections(batch, heads, queries, keys, head_dim, torch.float64, size)
    keep = torch.rand(batch, 1, queries, keys, generator=torch.Generator().manual_seed(0)) > 0.4 if masked else None
    plain = context_and_gradients(inputs, keep, implementation="eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_attention, "CPU_PIECE", piece)
        fast = context_and_gradients(inputs, keep, implementation="chunked")
    for expected, got in zip(plain, fast, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_chunked_backward_passes_gradcheck(dropout):
    keys, inputs = 8, projections(1, 2, 5, 8, 4, torch.float64)
    mass = torch.tensor([0.5, 0.2], dtype=torch.float64, requires_grad=True)
    keep = padding([keys - 3], keys)

    def attend(query, key, value, mass):
        torch.manual_seed(3)  # the same coefficients are dropped at every evaluation
        options = {"negative_mass": mass, "dropout": dropout, "implementation": "chunked"}
        return bidir_attention(query, key, value, keep, **options)[0]

    assert gradcheck(attend, (*inputs, mass))


@pytest.mark.parametrize("implementation", ["eager", "chunked"])
def test_dropout_acts_on_coefficients(implementation):
    query, key = torch.randn(2, 1, 1, 400, 8).unbind()
    value = torch.eye(400).expand(1, 1, 400, 400)  # the context is then the coefficients
    plain = bidir_attention(query, key, value, implementation="eager")[0]
    torch.manual_seed(0)
    dropped = bidir_attention(query, key, value, dropout=0.25, implementation=implementation)[0]
    kept = dropped != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75, rtol=1e-4, atol=1e-7)


def test_the_backward_pass_goes_through_the_pieces_of_the_forward_pass_with_another_number_of_threads(monkeypatch):
    monkeypatch.setattr(chunked_attention, "CPU_PIECE", 2048)
    query, key, value = inputs = projections(heads=5, dtype=torch.float64)
    sizes = torch.tensor([0.01, 1.0, 90.0, 0.02, 3.0], dtype=torch.float64)[:, None, None]  # small, common, beyond e^40
    context = bidir_attention(sizes * query, key, value, implementation="chunked")[0]
    expected = torch.autograd.grad(
        bidir_attention(sizes * query, key, value, implementation="eager")[0].square().sum(), inputs
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for theirs, ours in zip(expected, torch.autograd.grad(context.square().sum(), inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_two_calls_drop_different_coefficients():
    inputs = projections()
    first, second = (bidir_attention(*inputs, dropout=0.5, implementation="chunked")[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("implementation", ["auto", "chunked", "lift"])
def test_a_fast_path_returns_no_coefficients(implementation):
    assert bidir_attention(*projections(), implementation=implementation)[1] is None


@pytest.mark.parametrize("implementation", ["eager", "chunked", "lift"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_its_own_rounding(implementation, dtype):
    inputs = [t.detach().to(dtype) for t in projections()]
    exact = bidir_attention(*(t.double() for t in inputs), KEEPS["padded"], implementation="eager")[0]
    context = bidir_attention(*inputs, KEEPS["padded"], implementation=implementation)[0]
    assert context.dtype == dtype
    torch.testing.assert_close(context.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("implementation", ["auto", "eager", "chunked"])
def test_scores_of_a_thousand_stay_finite(implementation):
    inputs = projections(size=30.0)
    for result in context_and_gradients(inputs, KEEPS["padded"], implementation=implementation):
        assert result.isfinite().all()


def test_autocast_does_not_lower_the_precision_of_the_scores():
    inputs = projections()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context = bidir_attention(*inputs, implementation="chunked")[0]
    torch.testing.assert_close(context, bidir_attention(*inputs, implementation="eager")[0], rtol=0, atol=1e-5)


def test_heads_with_and_without_a_negative_half_can_mix():
    query, key, value = (t.detach() for t in projections())
    context, _ = bidir_attention(query, key, value, negative_mass=[0.0, 0.5, 1.0])
    for head, mass in enumerate([0.0, 0.5, 1.0]):
        one = slice(head, head + 1)
        alone, _ = bidir_attention(query[:, one], key[:, one], value[:, one], negative_mass=mass)
        torch.testing.assert_close(context[:, one], alone, rtol=0, atol=1e-6)


def test_every_mask_of_transformers_becomes_the_same_keep_mask():
    keep = padding([4, 2], keys=4)
    additive = torch.zeros(2, 1, 1, 4).masked_fill(~keep, torch.finfo(torch.float32).min)
    assert keep_and_bias(None) == (None, None)
    for mask in (keep, keep.long(), additive, additive.half(), additive.clamp_min(-1e4)):
        assert torch.equal(keep_and_bias(mask)[0], keep)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"implementation": "fastest"}, "'fastest' is not known; choose one of: auto, eager"),
        ({"activation": "tanmax"}, 'Did you mean "tanhmax"'),
        ({"activation": "tanh", "implementation": "chunked"}, '"tanh" has no chunked implementation; use "eager"'),
        ({"implementation": "lift", "dropout": 0.1}, "cannot apply dropout=0.1"),
        ({"negative_mass": [0.5, 0.5]}, "one for each of the 3 heads, got 2"),
        ({"negative_mass": torch.full((2,), 0.5)}, "one for each of the 3 heads, got 2"),
        ({"negative_mass": [0.0, 0.5, 1.0], "implementation": "lift"}, "every head's negative mass to be positive"),
        ({"negative_mass": 2.0}, r"must lie in \[0, 1\]"),
        ({"negative_mass": "half"}, r"must lie in \[0, 1\].*, got 'half'"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"key": torch.zeros(2, 3, 0, 8), "value": torch.zeros(2, 3, 0, 8)}, r"no size may be 0.*\(2, 3, 0, 8\)"),
        ({"keep": torch.ones(2, 1, 1, 29)}, "keep must be boolean"),
        ({"keep": torch.ones(2, 1, 1, 28, dtype=torch.bool)}, r"\(2, 3, 33, 29\), got \(2, 1, 1, 28\)"),
        ({"key": torch.zeros(2, 3, 30, 8)}, r"key \(2, 3, 30, 8\), value \(2, 3, 29, 8\)"),
        ({"query": torch.zeros(2, 3, 33, 4)}, r"agree in batch and head_dim.*query \(2, 3, 33, 4\)"),
    ],
)
def test_an_impossible_request_gets_one_clear_error(changes, message):
    arguments = dict(zip(("query", "key", "value"), projections(), strict=True)) | changes
    with pytest.raises(ValueError, match=message):
        bidir_attention(**arguments)
