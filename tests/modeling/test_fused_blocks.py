"""The Triton kernels at other block sizes."""

import pytest
import torch

from tests.modeling.fused_inputs import (
    DEVICE,
    assert_as_exact_as_the_plain_path,
    attended,
    mask,
    plain,
    projections,
    with_gradients,
    within_reach,
)

triton = pytest.importorskip("triton")

from hf_bidir.modeling import fused_launch  # noqa: E402


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU chooses its blocks itself")
@pytest.mark.parametrize(
    ("rows", "columns", "causal", "window"),
    [
        (32, 16, False, None),
        (16, 32, True, None),
        (64, 16, False, 5),
        (32, 16, True, 20),
        (16, 32, False, 5),
        (64, 16, True, 20),
    ],
)
def test_the_block_size_does_not_change_the_result(rows, columns, causal, window, monkeypatch):
    monkeypatch.setattr(fused_launch, "candidates", lambda *_: [(rows, columns, 4, 1)])
    monkeypatch.setattr(fused_launch, "_ready", {})
    inputs, keep = projections(queries=70, keys=75), mask("padding", 2, 2, 70, 75)
    got = with_gradients(attended(*inputs, keep, causal, window), inputs)
    reach = within_reach(keep, 70, 75, causal, window)
    assert_as_exact_as_the_plain_path(got, None, plain(inputs, reach, torch.float64))
