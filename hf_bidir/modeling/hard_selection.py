"""Hard attention: a single key per query, trained by REINFORCE (Williams 1992; Xu et al. 2015, section 4.1)."""

import torch
from torch import Tensor, nn

MOMENTUM = 0.9  # momentum of the REINFORCE baseline


def select_one(coefficients: Tensor, values: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
    """Select the value of one key per query, with the sign of its coefficient.

    With `sample`, key `i` is drawn with probability `|a_i| / Σ_j |a_j|`; else it is that of largest magnitude.

    Returns:
        `sign(a_i) v_i` `[..., queries, size]`, from coefficients `[..., queries, keys]` and values `[..., keys, size]`,
        and the log-probability of `i` `[..., queries]`; both are 0 for a query whose coefficients are all 0.
    """
    magnitude = coefficients.abs()
    total = magnitude.sum(-1, keepdim=True)
    empty = total == 0
    probability = torch.where(empty, 1.0 / magnitude.shape[-1], magnitude / total.masked_fill(empty, 1.0))
    if sample:
        chosen = torch.multinomial(probability.detach().flatten(0, -2), 1).view(*magnitude.shape[:-1], 1)
    else:
        chosen = magnitude.argmax(-1, keepdim=True)
    sign = coefficients.gather(-1, chosen).sign()
    context = sign * values.gather(-2, chosen.expand(*chosen.shape[:-1], values.shape[-1]))
    log_probability = probability.gather(-1, chosen).clamp_min(torch.finfo(probability.dtype).tiny).log()
    return context, log_probability.masked_fill(empty, 0.0).squeeze(-1)


class Reinforce(nn.Module):
    """A loss whose gradient, averaged over the draws of `select_one`, is that of the expected loss.

    For a draw with probability `p` and loss `L` it is the gradient of `L + (L - b) log p`, where `L - b` is a constant.
    The baseline `b`, a moving average of the losses, only reduces the variance. The value is that of `L`.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("baseline", torch.zeros(()))

    def forward(self, losses: Tensor, log_probability: Tensor) -> Tensor:
        """The mean loss, from `losses` `[examples]` and the summed `log_probability` `[examples]` of their draws."""
        advantage = losses.detach() - self.baseline
        if self.training:
            with torch.no_grad():
                self.baseline.lerp_(losses.detach().mean().to(self.baseline.dtype), 1 - MOMENTUM)
        score = advantage * log_probability
        return (losses + score - score.detach()).mean()
