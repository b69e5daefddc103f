"""One or a few queries over many keys: the kernel that splits the keys, as in decoding."""

import pytest
import torch

from hf_bidir import bidir_attention
from tests.modeling.fused_inputs import (
    DEVICE,
    HALF,
    assert_as_exact_as_the_plain_path,
    fused,
    mask,
    plain,
    projections,
)

pytest.importorskip("triton")

KEYS = 300  # three parts


def grouped(queries=1, **options):
    """Four heads that share the keys of two."""
    query = projections(heads=4, queries=queries, keys=KEYS, **options)[0]
    return [query, *projections(heads=2, queries=queries, keys=KEYS, **options)[1:]]


@pytest.mark.parametrize("kind", ["none", "padding", "padding on the left", "an empty example", "holes", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_over_many_keys_err_at_most_twice_as_much_as_the_eager_path(queries, dtype, kind):
    inputs, keep = grouped(queries, dtype=dtype), mask(kind, 2, 4, queries, KEYS)
    options = {"negative_mass": 0.3}
    gold = plain(inputs, keep, torch.float64, **options)
    assert_as_exact_as_the_plain_path(fused(inputs, keep, **options), plain(inputs, keep, **options), gold)


@pytest.mark.parametrize("activation", ["tanhmax", "softmax"])
def test_heads_of_different_masses_and_softmax_are_merged_alike(activation):
    inputs, keep = grouped(2), mask("padding", 2, 4, 2, KEYS)
    options = {"negative_mass": [0.0, 0.3, 1.0, 0.5], "activation": activation}
    for expected, got in zip(plain(inputs, keep, **options), fused(inputs, keep, **options), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("size", [1e-6, 0.03, 60.0])
def test_scores_of_every_magnitude_keep_their_digits_in_all_parts(size):
    query, key, value = grouped(dtype=torch.bfloat16)
    inputs = [(size * query).detach().requires_grad_(), key, value]
    found = (plain(inputs, dtype=torch.float64), plain(inputs), fused(inputs))
    gold, plainly, got = ([gradients[0], gradients[3]] for gradients in found)
    assert_as_exact_as_the_plain_path(got, plainly, gold, relative=1e-3)


def test_small_scores_in_one_part_and_large_ones_in_another_keep_their_digits():
    query, key, value = grouped(dtype=torch.bfloat16)
    key = torch.cat([1e-6 * key[:, :, :128], key[:, :, 128:]], 2).detach().requires_grad_()
    inputs = [query, key, value]
    gold, plainly, got = plain(inputs, dtype=torch.float64), plain(inputs), fused(inputs)
    assert_as_exact_as_the_plain_path(got, plainly, gold)


def test_a_nan_in_one_part_reaches_only_the_heads_that_share_its_key():
    query, key, value = (x.detach().clone() for x in grouped())
    key[0, 1, 200, 0] = float("nan")
    spoilt = bidir_attention(query, key, value, implementation="fused")[0].isnan().all(-1)
    assert spoilt[..., 0].tolist() == [[False, False, True, True], [False] * 4]


def test_keys_may_be_the_filled_part_of_a_static_cache():
    query, key, value = (x.detach() for x in grouped())
    caches = [torch.full((2, 2, 512, 16), float("nan"), device=DEVICE) for _ in range(2)]
    for cache, states in zip(caches, (key, value), strict=True):
        cache[:, :, :KEYS] = states
    got = bidir_attention(query, *(cache[:, :, :KEYS] for cache in caches), implementation="fused")[0]
    torch.testing.assert_close(got, bidir_attention(query, key, value, implementation="fused")[0])
