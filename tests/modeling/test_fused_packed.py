"""Packed examples in the Triton kernels: boundaries instead of padding."""

import pytest
import torch

from hf_bidir import bidir_attention, packed_attention
from tests.modeling.fused_inputs import (
    CU_SEQLENS,
    CU_SEQLENS_K,
    boundaries,
    mask,
    packed_inputs,
    projections,
    with_gradients,
    within_reach,
)

triton = pytest.importorskip("triton")

from hf_bidir.modeling.fused_attention import fused_attention  # noqa: E402
from hf_bidir.modeling.packed_attention import Packed  # noqa: E402


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


def test_boundaries_behind_the_end_read_nothing_there_even_when_nobody_looks_them_up():
    query = packed_inputs()[0].detach()
    beyond = packed_attention(query, query, query, boundaries([0, 40, 90]), max_seqlen=60)
    within = packed_attention(query, query, query, boundaries([0, 40, 60]), max_seqlen=60)
    torch.testing.assert_close(beyond, within)


def test_a_mask_besides_packed_examples_is_refused():
    query = projections(queries=29)[0]
    examples = Packed(boundaries([0, 29]), boundaries([0, 29]), 29, 29)
    with pytest.raises(ValueError, match="omit keep"):
        fused_attention(query, query, query, mask("padding", 2, 1, 1, 29), packed=examples)


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
