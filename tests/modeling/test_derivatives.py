"""Derivatives beyond the first backward pass, and those of torch.func."""

import pytest
import torch
from torch.func import grad, hessian, jvp

from hf_bidir import bidir_attention, signed
from tests.tiny_models import stock_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def projections(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = 1, 4, 5, 16
    return [torch.randn(shape, generator=generator, dtype=dtype).to(DEVICE).requires_grad_() for _ in range(3)]


def test_the_negative_mass_has_a_derivative_in_forward_mode():
    inputs, masses = [x.detach() for x in projections()], torch.full((4,), 0.5, dtype=torch.float64, device=DEVICE)

    def attended(mass: torch.Tensor) -> torch.Tensor:
        return bidir_attention(*inputs, negative_mass=mass, implementation="chunked")[0].sum()

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(masses, torch.ones_like(masses))
        slope = torch.autograd.forward_ad.unpack_dual(attended(dual)).tangent
    step = 1e-6
    torch.testing.assert_close(slope, (attended(masses + step) - attended(masses - step)) / (2 * step))


@pytest.mark.parametrize("implementation", ["chunked", "fused"])
def test_second_derivatives_of_a_fast_path_are_refused(implementation):
    if implementation == "fused":
        pytest.importorskip("triton")
    inputs = projections(torch.float32)
    context = bidir_attention(*inputs, implementation=implementation)[0]
    with pytest.raises(RuntimeError, match=r'first derivatives only.*implementation="eager"'):
        torch.autograd.grad(context.sum(), inputs, create_graph=True)


@pytest.fixture(scope="module")
def bert():
    return signed(stock_model("bert")).double()


def logit(model, embeddings: torch.Tensor) -> torch.Tensor:
    return model(inputs_embeds=embeddings[None] if embeddings.dim() == 2 else embeddings).logits[0, 0]


def test_every_way_to_differentiate_a_model_gives_what_finite_differences_give(bert):
    embeddings = bert.get_input_embeddings()(torch.tensor([5, 6, 7])).detach()
    direction = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    step = 1e-5

    def f(x):
        return logit(bert, x)

    slope = (f(embeddings + step * direction) - f(embeddings - step * direction)) / (2 * step)
    gradient = grad(f)(embeddings)
    for found in (jvp(f, (embeddings,), (direction,))[1], (gradient * direction).sum()):
        torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-7)
    change = (grad(f)(embeddings + step * direction) - grad(f)(embeddings - step * direction)) / (2 * step)
    product = torch.einsum("abcd,cd->ab", hessian(f)(embeddings), direction)
    bert.set_attn_implementation("eager")
    for found in (product, torch.autograd.functional.hvp(f, embeddings, direction)[1]):
        torch.testing.assert_close(found, change, rtol=1e-4, atol=1e-6)
