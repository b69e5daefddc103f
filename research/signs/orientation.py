"""Does a head's sign mean the same for a class in all texts? How many heads of a TanhMax model have a consistent sign.

    python -m research.signs.orientation model_cards/sst2-minilm-tanhmax --data DIR/sst2/train.parquet --target positive

At λ = 1 negating the keys and values of a head negates its coefficients and changes no output, so its overall sign is
arbitrary, and can be chosen such that positive coefficients support the target on average (the head is oriented). How
consistent the signs then are is counted over texts of the training data: the part of `Σ |a_ij u_ij|`, u = ∂y/∂a, in
which u has the sign that the average has. 1 means that the sign of a coefficient gives that of its contribution, 0.5
that it says nothing.
"""

from collections.abc import Iterable, Mapping

import torch
from pandas import read_parquet
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain import load_checkpoint
from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.methods.contributions import coefficients_and_gradients
from hf_bidir.explain.request import Request, Target
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import all_masses
from hf_bidir.modeling.signed_layers import signed_layers
from research.runs import command_line

CONSISTENT = 0.6  # smallest share of one sign at which a head counts as consistent
TEXTS = 256


def sign_shares(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], target: Target = None
) -> Tensor | None:
    """The share of the more frequent sign of `u` in `Σ |a u|` of each head, `[layers, heads]` in [0.5, 1].

    NaN for a head without effect on the target; None unless `λ = 1` in all heads, where signs are arbitrary.
    """
    config = signed_layers(model)[0].config
    config = getattr(config, "bidir", config)
    if config.attn_activation not in WITH_NEGATIVE_MASS or {*all_masses(config.attn_negative_mass)} != {1}:
        return None
    pull, total = sum(_support(model, batch, target) for batch in batches)
    return (0.5 + 0.5 * pull.abs() / total).float()


def _support(model: PreTrainedModel, batch: Mapping[str, Tensor], target: Target) -> Tensor:
    """Sums of `|a| u` and of `|a u|` over a batch, `[2, layers, heads]`."""
    layers, calls = signed_layers(model), []
    with hooked(layers, before=lambda layer, *_: calls.append(layer)):
        coefficients, gradients = coefficients_and_gradients(ForwardCache(model, batch), Request(target=target))
    sums = {layer: torch.zeros(2, coefficients[0].shape[1], dtype=torch.double) for layer in layers}
    for layer, coefficient, support in zip(calls, coefficients, gradients, strict=True):
        pull = (coefficient.abs() * support).double()  # 0 for queries at padding
        sums[layer] += torch.stack([pull.sum((0, 2, 3)), pull.abs().sum((0, 2, 3))])
    return torch.stack([*sums.values()], 1)


def batches_of(tokenizer, texts: Iterable[str]) -> list[dict[str, Tensor]]:
    return [
        dict(tokenizer(list(batch), padding=True, truncation=True, max_length=256, return_tensors="pt"))
        for batch in torch.utils.data.DataLoader(list(texts), batch_size=16)
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("checkpoint", help="folder or Hub name of a text classifier with TanhMax")
    parser.add_argument("--data", required=True, help="parquet file of training texts, with a column text")
    parser.add_argument("--target", help="the class; by default the predicted one of each text")
    options = parser.parse_args()
    model, tokenizer = load_checkpoint(options.checkpoint)
    texts = read_parquet(options.data)["text"].sample(TEXTS, random_state=0)
    share = sign_shares(model, batches_of(tokenizer, texts), options.target)
    if share is None:
        raise SystemExit("the signs of heads are arbitrary at λ = 1 only; this checkpoint has another λ.")
    print(f"{(share >= CONSISTENT).sum()} of {share.numel()} heads have a consistent sign (at least {CONSISTENT}).")
    print(f"median share {share.nanmedian():.2f}, largest {share.nan_to_num().max():.2f}")


if __name__ == "__main__":
    main()
