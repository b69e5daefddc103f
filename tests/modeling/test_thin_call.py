"""What surrounds the computation of an attention call: Python calls, counted, because a GPU waits for them."""

import sys

import pytest
import torch
from transformers import BertConfig, BertModel

from hf_bidir import BidirBertConfig, BidirBertModel

SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 30,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
KEEP = (torch.arange(12) < 9).expand(2, 1, 1, 12)


def python_calls(task) -> int:
    """How many Python functions a task calls once it is warm, without those inside of Triton's interpreter."""
    for _ in range(3):
        task()
    counted, inside = 0, 0

    def profile(frame, event, _):
        nonlocal counted, inside
        if event == "call" and (inside or "triton" in frame.f_code.co_filename):
            inside += 1
        elif event == "call":
            counted += 1
        elif event == "return" and inside:
            inside -= 1

    sys.setprofile(profile)
    try:
        task()
    finally:
        sys.setprofile(None)
    return counted


HIDDEN = torch.randn(2, 12, 64, generator=torch.Generator().manual_seed(0))


def trained(model_class, config):
    """A step forward and backward of an attention layer."""
    layer = model_class(config).train().encoder.layer[0].attention.self
    return lambda: layer(HIDDEN, KEEP)[0].backward(HIDDEN)


@pytest.mark.skipif(torch.__version__ < "2.9", reason="the interpreter of the first Triton makes other calls")
@pytest.mark.parametrize(("implementation", "most"), [("sdpa", 105), ("fused", 135)])  # named tuples count as calls
def test_a_signed_layer_calls_few_more_functions_than_a_stock_layer_forward_and_backward(implementation, most):
    if implementation == "fused":
        pytest.importorskip("triton")
    config = BidirBertConfig(**SHAPE, attn_implementation=implementation)
    more = python_calls(trained(BidirBertModel, config)) - python_calls(trained(BertModel, BertConfig(**SHAPE)))
    assert more <= most
