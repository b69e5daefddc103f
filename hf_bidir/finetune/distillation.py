"""Distillation: a Trainer without labels, whose loss is the distance of a signed student from its softmax teacher."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import predicts_values
from hf_bidir.checkpoints.layer_hooks import at_tokens, without_negatives
from hf_bidir.common.errors import InputError
from hf_bidir.modeling.configuration_bidir import all_masses
from hf_bidir.modeling.signed_layers import signed_layers

from .both_signs import one_sidedness
from .trainer import SignedTrainer

LOGITS = ("logits", "start_logits", "end_logits")
STATES, PREDICTIONS = "states", "logits"  # what can be matched
SMALLEST = 1e-6  # squared norm of a token that errors are divided by


class DistillationTrainer(SignedTrainer):
    """A Trainer without labels: the loss is the distance from the teacher, with optional penalties on signs.

    The distance is the mean Kullback-Leibler divergence of predicted tokens or classes in nats, or a relative error:
    the error of a layer is the mean of `‖student - teacher‖² / ‖teacher‖²` over the tokens that are not padding. The
    states of a few tokens, often the first one, have many times the norm of the others, so a quotient of sums over
    tokens would measure them alone. Where the model has a head, the error of its logits, which are close to 0 where a
    prediction is undecided, is `Σ ‖student - teacher‖² / Σ ‖teacher‖²`. The loss is the mean over layers and logits.
    The embeddings, which are equal already, stay as they are.

    Args:
        teacher: the softmax model; takes the same inputs.
        match: "logits" for the divergence, "states" for the relative error.
        keep_signs: add the two penalties below. Without them healing leaves fewer negative coefficients, and the
            predictions hardly depend on them.

    Attributes:
        both_signs_weight, most_unequal: weight and ratio of the penalty on heads whose output comes from coefficients
            of one sign, `hf_bidir.finetune.both_signs.one_sidedness`.
        needed_signs_weight, margin: weight and margin of the penalty `max(0, margin - difference)`. The difference
            between the student without negative coefficients and the teacher is the mean Kullback-Leibler divergence
            of their classes or tokens, in nats, or without such logits the relative error of the last hidden states.
        further: in nats; with `match="logits"` the only penalty is `max(0, distance + further - difference)`: the
            student without negative coefficients has to be that much further from the teacher than with them.

    Raises:
        InputError: `keep_signs` with several GPUs in one process; in training, `match="logits"` for a model that
            predicts nothing.
    """

    both_signs_weight, most_unequal = 0.1, 3.0
    needed_signs_weight, margin = 0.2, 0.5
    further = 0.1

    def __init__(
        self,
        *,
        teacher: PreTrainedModel,
        match: str = STATES,
        keep_signs: bool = False,
        **kwargs: Any,
    ) -> None:
        args, student = kwargs["args"], kwargs["model"]
        if keep_signs and args.n_gpu > 1:
            raise InputError(
                "expected keep_signs false with several GPUs in one process, whose threads run layers outside the "
                "penalties; start one process per GPU by torchrun"
            )
        for parameter in parameters_before_attention(student):
            parameter.requires_grad_(False)
        super().__init__(**kwargs)
        self.match, self.keep_signs = match, keep_signs
        self.distance = relative_error if match == STATES else divergence
        self.teacher = teacher.eval().requires_grad_(False).to(self.args.device)
        self.model_accepts_loss_kwargs = False  # the loss is a mean; the Trainer averages accumulated ones

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        model.eval()  # dropout would be noise that the teacher does not have
        with torch.no_grad():
            expected = self.teacher(**inputs, output_hidden_states=True)
        keep = inputs.get("attention_mask")
        penalises_heads = self.keep_signs and self.match == STATES
        heads: AbstractContextManager = nullcontext([])
        if penalises_heads:
            heads = one_sidedness(model, keep, self.most_unequal)
        with heads as one_sided:
            outputs = model(**inputs, output_hidden_states=True)
        distance = self.distance(outputs, expected, keep)
        if not self.keep_signs:
            return distance
        with without_negatives(model):
            outputs = model(**inputs, output_hidden_states=True)
        difference = prediction_difference(outputs, expected, keep)
        if not penalises_heads:
            return distance + (distance.detach() + self.further - difference).clamp_min(0)
        both_signs = self.both_signs_weight * torch.stack(one_sided).mean()
        needed_signs = self.needed_signs_weight * (self.margin - difference).clamp_min(0)
        # near λ = 0 the penalties could only move the student away from its teacher
        negative_mass = mean(map(float, all_masses(self.model.config.attn_negative_mass)))
        return distance + negative_mass * (both_signs + needed_signs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """The difference of the predictions, and per example what `distillation_metrics` needs."""
        inputs = self._prepare_inputs(inputs)
        keep = inputs.get("attention_mask")
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, output_hidden_states=True)
            expected = self.teacher(**inputs, output_hidden_states=True)
            difference = prediction_difference(outputs, expected, keep)
            quantities = {"relative_error": state_errors(outputs, expected, keep)}
            if _predictions(expected) and not predicts_values(self.teacher.config):
                quantities["agreement"] = equal_predictions(outputs, expected, keep)
            if self.teacher.can_generate():
                quantities["perplexity"] = next_token_losses(outputs.logits, inputs)
                quantities["teacher_perplexity"] = next_token_losses(expected.logits, inputs)
        numerators, denominators = ({name: pair[part] for name, pair in quantities.items()} for part in (0, 1))
        return difference, numerators, denominators


def parameters_before_attention(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    """Parameters before the first layer, the embeddings, which student and teacher share."""
    first_layer = signed_layers(model)[0]
    path = next(name for name, module in model.named_modules() if module is first_layer)
    layers = ".".join(takewhile(lambda part: not part.isdigit(), path.split(".")))  # the list of layers
    for name, parameter in model.named_parameters():
        if name.startswith(f"{layers}."):
            return
        yield parameter


def relative_error(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None = None) -> Tensor:
    """The error of `DistillationTrainer` for outputs of student and teacher with hidden states; `keep` is the padding
    mask `[batch, length]`."""
    errors, norms = state_errors(outputs, expected, keep)
    return (errors.sum(0) / norms.sum(0)).mean()


def state_errors(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of the relative errors, `[examples, states]` each, to be summed over examples.

    Of a layer, the sum of its tokens' relative errors and their number; of logits, squared distances and norms.
    """
    numerators, denominators = [], []
    for student, teacher in zip(_layers(outputs), _layers(expected), strict=True):
        norms = _squared_norms(teacher)
        errors = _squared_norms(student - teacher) / norms.clamp_min(SMALLEST)
        numerators.append(_sum_of_tokens(errors, keep))
        denominators.append(_sum_of_tokens(torch.ones_like(errors), keep))
    for student, teacher in zip(_logits(outputs), _logits(expected), strict=True):
        numerators.append(_sum_of_tokens(_squared_norms(student - teacher), keep))
        denominators.append(_sum_of_tokens(_squared_norms(teacher), keep))
    return torch.stack(numerators, 1), torch.stack(denominators, 1)


def _layers(outputs: ModelOutput) -> list[Tensor]:
    """The outputs of the layers, of which the last is that of the model where it has no head."""
    layers = [*outputs.hidden_states[1:]]
    return layers if _logits(outputs) else [*layers[:-1], outputs.last_hidden_state]


def _logits(outputs: ModelOutput) -> list[Tensor]:
    """Logits with their classes last; those of spans are `[batch, length]`."""
    if "start_logits" in outputs:
        return [outputs.start_logits.unsqueeze(-1), outputs.end_logits.unsqueeze(-1)]
    return [outputs.logits] if "logits" in outputs else []


def _squared_norms(states: Tensor) -> Tensor:
    """Squared norms of tokens `[batch, length]`, or `[batch, 1]` of states that are not `[batch, length, features]`."""
    if states.dim() != 3:
        states = states.flatten(1).unsqueeze(1)
    return states.float().square().sum(-1)


def _sum_of_tokens(values: Tensor, keep: Tensor | None) -> Tensor:
    """The sum of `values`, `[batch, length]`, over the tokens that are not padding; without a mask over all."""
    if keep is not None and keep.shape == values.shape:
        values = values * keep
    return values.sum(1)


def prediction_difference(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> Tensor:
    """The divergence, or without predictions the relative error of the last states."""
    if _predictions(expected):
        return divergence(outputs, expected, keep)
    errors, norms = state_errors(outputs, expected, keep)
    return errors[:, -1].sum() / norms[:, -1].sum()


def divergence(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None = None) -> Tensor:
    """The mean Kullback-Leibler divergence of the student's classes, tokens or ends of spans from the teacher's, in
    nats; `keep` is the padding mask `[batch, length]`. InputError where the outputs have none."""
    names = _predictions(expected)
    if not names:
        raise InputError(f"expected match states for a model that returns {', '.join(expected)}, and predicts nothing")
    means = []
    for name in names:
        student = outputs[name].float().log_softmax(-1)
        teacher = expected[name].float().log_softmax(-1)
        nats = kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
        if nats.dim() == 2:
            nats = at_tokens(nats, keep)
        means.append(nats.mean())
    return torch.stack(means).mean()


def _predictions(expected: ModelOutput) -> list[str]:
    """The names of outputs whose last dimension has several classes or tokens."""
    return [name for name in LOGITS if name in expected and expected[name].shape[-1] > 1]


def next_token_losses(logits: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum of the losses of the tokens after the first, in nats, and their number, `[examples]` each."""
    ids = inputs["input_ids"]
    keep = inputs.get("attention_mask", torch.ones_like(ids))
    padding = keep[:, 1:] * keep[:, :-1] == 0  # on either side
    targets = ids[:, 1:].masked_fill(padding, -100)
    predictions = logits[:, :-1].float().transpose(1, 2)
    losses = cross_entropy(predictions, targets, reduction="none")
    return losses.sum(1), (~padding).sum(1).float()


def equal_predictions(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """The number of equal predictions (classes, tokens or ends of spans), and that of all, `[examples]` each."""
    by_output = [outputs[name].argmax(-1) == expected[name].argmax(-1) for name in _predictions(expected)]
    equal = torch.cat([each.view(len(each), -1) for each in by_output], 1).float()
    return _sum_of_tokens(equal, keep), _sum_of_tokens(torch.ones_like(equal), keep)
