"""Gradients of fast paths that are differentiated again: by the formula, in operations that torch records."""

from dataclasses import replace

import torch
from torch import Tensor

from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.attention_call import AttentionCall
from hf_bidir.modeling.eager_attention import eager_attention


def eager_gradients(
    inputs: tuple[Tensor, Tensor, Tensor],
    shift: Tensor | None,
    keep: Tensor | None,
    call: AttentionCall,
    grad_context: Tensor,
    factors: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` (query, key, value) and `shift` as differentiable functions of these and of
    `grad_context`, which the backward pass of a fast path returns if its result is differentiated again.

    Args:
        shift: what was added to the scores instead of the negative mass (`AttentionCall.shift`), `[heads, 1, 1]`.
        factors: as in `eager_attention`; the dropout of the call is not drawn again.
    """
    if shift is not None:
        call = replace(call, negative_mass=(-2 * shift).exp())
    with torch.enable_grad(), torch.autocast(grad_context.device.type, enabled=False):
        query, key, value = (upcast(x) for x in inputs)
        context = eager_attention(query, key, value, keep, replace(call, dropout=0.0), factors)[0]
        context = context.to(grad_context.dtype)
        wanted = [x for x in (*inputs, shift) if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(context, wanted, grad_context, create_graph=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in (*inputs, shift))


def needs_eager_gradients(grad_context: Tensor) -> bool:
    """Whether a backward pass has to be made of plain operations: its result is differentiated again
    (`create_graph=True`), or it runs for several gradients at once (`is_grads_batched=True`)."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled()
    return torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(grad_context)
