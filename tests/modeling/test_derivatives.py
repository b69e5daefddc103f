"""Derivatives beyond the first backward pass, and those of torch.func, on the paths with a backward of their own."""

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.func import grad, hessian, jvp

from hf_bidir import bidir_attention, signed
from tests.tiny_models import stock_model

HEADS, LENGTH, SIZE = 4, 5, 3
PADDING = torch.tensor([[True, True, True, True, False]])[:, None, None]
FULL = torch.rand(1, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4


def projections(key_heads: int = HEADS, dtype: torch.dtype = torch.float64, size: int = SIZE) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, LENGTH, size) for heads in (HEADS, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    "options",
    [
        {"keep": FULL},
        {"causal": True, "negative_mass": 0.3},
        {"window": 1},
        {"dropout": 0.4, "keep": PADDING, "key_heads": 2},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_second_derivatives_of_the_chunked_path_are_those_of_finite_differences(options):
    options = dict(options)
    inputs = projections(options.pop("key_heads", HEADS))

    def attended(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)  # the same coefficients are dropped
        return bidir_attention(*inputs, implementation="chunked", **options)[0]

    assert gradgradcheck(attended, inputs, fast_mode=True)


def test_the_negative_mass_has_second_derivatives_and_one_in_forward_mode():
    inputs, masses = [x.detach() for x in projections()], torch.full((HEADS,), 0.5, dtype=torch.float64)

    def attended(mass: torch.Tensor) -> torch.Tensor:
        return bidir_attention(*inputs, negative_mass=mass, implementation="chunked")[0].sum()

    assert gradgradcheck(attended, (masses.clone().requires_grad_(),), fast_mode=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(masses, torch.ones_like(masses))
        slope = torch.autograd.forward_ad.unpack_dual(attended(dual)).tangent
    step = 1e-6
    torch.testing.assert_close(slope, (attended(masses + step) - attended(masses - step)) / (2 * step))


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
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(embeddings, direction)
        forward = torch.autograd.forward_ad.unpack_dual(f(dual)).tangent
    slopes = {
        "torch.func.jvp": jvp(f, (embeddings,), (direction,))[1],
        "torch.autograd.functional.jvp": torch.autograd.functional.jvp(f, embeddings, direction)[1],
        "forward mode": forward,
        "torch.func.grad": (gradient * direction).sum(),
    }
    for name, found in slopes.items():
        torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-7, msg=name)

    change = (grad(f)(embeddings + step * direction) - grad(f)(embeddings - step * direction)) / (2 * step)
    products = {
        "torch.autograd.functional.hvp": torch.autograd.functional.hvp(f, embeddings, direction)[1],
        "torch.autograd.functional.hessian": torch.einsum(
            "abcd,cd->ab", torch.autograd.functional.hessian(f, embeddings, vectorize=True), direction
        ),
        "torch.func.hessian": torch.einsum("abcd,cd->ab", hessian(f)(embeddings), direction),
        "gradient of a gradient": jvp(grad(f), (embeddings,), (direction,))[1],
    }
    for name, found in products.items():
        torch.testing.assert_close(found, change, rtol=1e-4, atol=1e-6, msg=name)
