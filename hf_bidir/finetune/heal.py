"""Healing: distillation that restores the hidden states of the softmax model in a converted, signed student."""

import copy
import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import binom
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, one_hot
from transformers import (
    BaseImageProcessor,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of, predicts_values
from hf_bidir.checkpoints.layer_hooks import at_tokens, without_negatives
from hf_bidir.checkpoints.reading import LICENCES, documents, open_checkpoint
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.card import CARD, parsed_card
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.images import image_mode
from hf_bidir.finetune.arguments import DistillationDataArguments, HealingArguments, ScheduleArguments, option
from hf_bidir.finetune.both_signs import one_sidedness
from hf_bidir.finetune.data.checks import listed
from hf_bidir.finetune.data.image_data import ImageCollator, read_unlabelled_images
from hf_bidir.finetune.data.splits import Splits, sampled
from hf_bidir.finetune.data.text_data import cut_into_blocks, cut_into_snippets, fit_max_length, read_documents
from hf_bidir.finetune.metrics import distillation_metrics
from hf_bidir.finetune.models import able_to_pad, know_padding
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.schedule import NegativeMassSchedule
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.modeling.configuration_bidir import all_masses, is_softmax
from hf_bidir.modeling.signed_layers import signed_layers

logger = logging.getLogger(__name__)

LOGITS = ("logits", "start_logits", "end_logits")
STATES, PREDICTIONS = "states", "logits"  # what can be matched
SMALLEST = 1e-6  # squared norm of a token that errors are divided by
FEWEST_TOKENS, CHECKED_TEXTS = 200, 500
FINAL_MASS = {"balanced": 0.2}  # the default λ of an activation; that of others is 1
FEWEST_EVALUATED, MOST_EVALUATED = 32, 500  # examples
TRAINED_PER_EVALUATED = 35  # a tenth of the time: 7 evaluations, and training costs twice the evaluation of an example
MOST_UNKNOWN = 0.2  # share of unknown pieces
UNLIKELY = 0.05  # the probability, over all classes, that a second training of the teacher gets the student's warning
SHORT_PIECES = 2.0  # characters; words of an unknown alphabet become pieces of one letter


@dataclass
class StudentArguments:
    """The student and its teacher."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None, 'Initial student: a softmax checkpoint, "timm:NAME", or a bidir checkpoint.'
    )
    base_model: str | None = option(
        None, "For the model card: Hub name of the original checkpoint if --model_name_or_path is a folder."
    )
    teacher_name_or_path: str | None = option(
        None, "Softmax teacher, required if the student already has negative mass."
    )
    attn_activation: str | None = option(
        None,
        "Activation of the student, tanhmax or balanced; default: the checkpoint's; for a softmax one tanhmax, or "
        "balanced if it generates text.",
    )
    match: str | None = option(
        None,
        "What the student matches: states (the hidden states of all layers and the logits) or logits (the divergence "
        "of predicted tokens or classes); default: logits for models that generate text, else states.",
        choices=[STATES, PREDICTIONS],
    )
    keep_signs: bool | None = option(
        None,
        "Penalise heads that use one sign, and predictions that stay the same without negative coefficients; default: "
        "true, but false for models with a single query and with gradient_checkpointing.",
    )
    centre: bool = option(
        True, "Subtraction of mean keys and values before a softmax checkpoint is healed; --no_centre skips this."
    )


@dataclass
class HealingScheduleArguments(ScheduleArguments):
    """A schedule that is enabled by default."""

    negative_mass_until: float | None = option(
        0.0, "Change the negative mass over this share of training, 0 to 1; 0 sets the final value at once."
    )
    negative_mass_end: float | None = option(None, "Final negative mass; default: 1, with balanced attention 0.2.")


HEALING = (DistillationDataArguments, StudentArguments, HealingScheduleArguments, HealingArguments)


def heal(
    data: DistillationDataArguments,
    arguments: StudentArguments,
    schedule: ScheduleArguments,
    args: HealingArguments,
    *,
    trainer_class: "type[DistillationTrainer] | None" = None,
    card: Callable[[str], Path] | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint, heal it on texts or images without labels, and save it in `args.output_dir`.

    Licence files, and the other modules of a folder of sentence-transformers, are copied from the source.

    Args:
        data, arguments, schedule, args: the options, instances of `HEALING`.
        trainer_class: another Trainer of the same arguments; by default `DistillationTrainer`.
        card: as in `Run.train`.

    Returns:
        The content of all_results.json.

    Raises:
        InputError: the checkpoint, its teacher or the data cannot be used, or the folder is in use.
    """
    source = arguments.model_name_or_path
    if not source:
        raise InputError("expected --model_name_or_path: a softmax checkpoint, timm:NAME or a bidir checkpoint")
    student, teacher, processors = student_and_teacher(
        source, arguments.teacher_name_or_path, arguments.attn_activation
    )
    splits, collators, processor = healing_data(data, args, source, student, processors)
    unused = "image_column" if isinstance(processor, PreTrainedTokenizerBase) else "text_column"
    licence = _licence(source)
    args.typed = ({"license": licence} if licence else {}) | {k: v for k, v in args.typed.items() if k != unused}
    keep_signs = _keeps_signs(student, arguments.keep_signs, args)
    args.typed["keep_signs"] = keep_signs
    if schedule.negative_mass_end is None:
        schedule.negative_mass_end = FINAL_MASS.get(student.config.attn_activation, 1.0)
    match = arguments.match or (PREDICTIONS if student.can_generate() else STATES)
    set_seed(args.seed)
    run = Run("distillation", student, splits, data, args, schedule)
    results = run.train(
        trainer_class or DistillationTrainer,
        centre=arguments.centre and is_softmax(student.config),
        teacher=teacher,
        match=match,
        keep_signs=keep_signs,
        processing_class=processor,
        data_collator=collators[0],
        eval_collator=collators[1],
        compute_metrics=distillation_metrics(student.can_generate(), class_names(student)),
    )
    if args.should_save and not source.startswith(TIMM_PREFIX):
        for name, content in documents(source).items():
            if name in LICENCES:
                Path(args.output_dir, name).write_bytes(content)
        if sentences := sentence_folder(source):
            sentences.copy_others(Path(args.output_dir))
    if card and args.should_save:
        print(f"Model card: {card(args.output_dir)}")
    return results


def healing_data(
    data: DistillationDataArguments, args: HealingArguments, source: str, student: PreTrainedModel, processors: list
) -> tuple[Splits, tuple[Callable, Callable], PreTrainedTokenizerBase | BaseImageProcessor]:
    """The splits, the collators for training and evaluation, and the tokenizer or image processor.

    Raises:
        InputError: the data cannot be used, or the student has neither tokenizer nor image processor.
    """
    if data.max_eval_samples is None:
        trained = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        few = min(max(trained // TRAINED_PER_EVALUATED, FEWEST_EVALUATED), MOST_EVALUATED)
        data.max_eval_samples = few if args.max_steps > 0 else MOST_EVALUATED
    for processor in processors:
        if isinstance(processor, PreTrainedTokenizerBase):
            fit_max_length(data, args.typed, student, source)
            collator = DataCollatorWithPadding(processor)
            # joined texts are what a model that generates text was pretrained on, and need no padding
            joined = student.can_generate() and processor.eos_token_id is not None
            documents = read_documents(data)
            cut = cut_into_blocks if joined else cut_into_snippets
            splits = sampled(cut(documents, processor, data.max_length), data)
            _check_texts(splits.train, processor, source)
            return splits, (collator, collator), processor
        if isinstance(processor, BaseImageProcessor):
            args.remove_unused_columns = False  # the collator, not the model, takes the image column
            mode = image_mode(student.config)
            collators = ImageCollator.of(processor, data, mode), ImageCollator(processor, mode=mode)
            return read_unlabelled_images(data), collators, processor
    raise InputError(f"{source} has neither a tokenizer nor an image processor; save one in its folder")


def _keeps_signs(student: PreTrainedModel, asked: bool | None, args: HealingArguments) -> bool:
    """Whether to add the penalties on signs, unless asked otherwise; a warning says why where they are left out."""
    between_tokens = getattr(student, "attends_between_tokens", True)
    if asked and not between_tokens:
        raise InputError(
            f"expected keep_signs false for {type(student).__name__}, which has no attention between tokens; leave it "
            "out"
        )
    if asked is not None or (between_tokens and not args.gradient_checkpointing):
        return asked is not False
    reason = "gradient_checkpointing runs layers again" if between_tokens else "no attention between tokens"
    logger.warning("%s: healing without keep_signs.", reason)
    return False


def _licence(source: str) -> str | None:
    """The licence that the card of the source names, which is that of the healed weights too."""
    card = {} if source.startswith(TIMM_PREFIX) else documents(source)
    try:
        return parsed_card(card[CARD], CARD).data.get("license") if CARD in card else None
    except InputError:
        return None


def _check_texts(snippets: Dataset, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Raise InputError for too few texts, and for texts in a language or script that the tokenizer does not know."""
    pieces = list(chain.from_iterable(snippets.select(range(min(CHECKED_TEXTS, len(snippets))))["input_ids"]))
    if len(pieces) < FEWEST_TOKENS and len(snippets) <= CHECKED_TEXTS:
        raise InputError(
            f"expected at least {FEWEST_TOKENS} tokens of text to heal with, besides those held out for validation; "
            f"got {len(pieces)}. Give more texts; they need no labels"
        )
    unknown = mean(piece == tokenizer.unk_token_id for piece in pieces)
    if unknown > MOST_UNKNOWN:
        raise InputError(
            f"the tokenizer of {source} does not know {unknown:.0%} of the texts' pieces; heal with texts in a "
            "language that the model was trained on"
        )
    length = mean(len(token.lstrip("#Ġ▁")) for token in tokenizer.convert_ids_to_tokens(pieces))
    if length < SHORT_PIECES:
        logger.warning(
            "The tokenizer of %s cuts the texts into pieces of %.1f characters; the model may not know their language.",
            source,
            length,
        )


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
        InputError: `keep_signs` with gradient checkpointing, or with several GPUs in one process; in training,
            `match="logits"` for a model that predicts nothing.
    """

    both_signs_weight, most_unequal = 0.1, 3.0
    needed_signs_weight, margin = 0.2, 0.5
    further = 0.1

    def __init__(
        self, *, teacher: PreTrainedModel, match: str = STATES, keep_signs: bool = False, **kwargs: Any
    ) -> None:
        args = kwargs["args"]
        if keep_signs and args.gradient_checkpointing:
            raise InputError(
                "expected keep_signs false with gradient_checkpointing, which runs layers again outside the penalties; "
                "leave out one of the two"
            )
        if keep_signs and args.n_gpu > 1:  # copies of layers run outside the hooks
            raise InputError(
                f"expected one GPU per process with keep_signs; got {args.n_gpu}. Start the script with torchrun "
                f"--nproc_per_node {args.n_gpu}"
            )
        for parameter in _before_attention(kwargs["model"]):
            parameter.requires_grad_(False)
        super().__init__(**kwargs)
        self.match, self.keep_signs, self.class_names = match, keep_signs, class_names(kwargs["model"])
        self.teacher = teacher.eval().requires_grad_(False).to(self.args.device)
        self.model_accepts_loss_kwargs = False  # the loss is a mean; the Trainer averages accumulated ones

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Train; first print the error of the student at its final negative mass, and warn if it does not fall."""
        schedule, before_healing = self._callback(NegativeMassSchedule), math.inf
        if schedule and not resume_from_checkpoint:
            config, before = self.model.config, self.model.config.attn_negative_mass
            config.attn_negative_mass = schedule.end
            metrics = self.evaluate(metric_key_prefix="unhealed")
            config.attn_negative_mass, before_healing = before, metrics["unhealed_loss"]
            error, perplexity = (metrics.get(f"unhealed_{name}") for name in ("relative_error", "perplexity"))
            beside = f", perplexity {perplexity:.4g}" if perplexity else ""
            logger.warning("Before healing, at λ = %g: relative error %.4g%s", schedule.end, error, beside)
        found = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        losses = [log["eval_loss"] for log in self.state.log_history if "eval_loss" in log]
        if losses and losses[-1] >= before_healing:
            logger.warning(
                "Healing did not bring the student closer to its teacher: loss %.4g before, %.4g after; give more "
                "steps or texts, or a lower learning rate.",
                before_healing,
                losses[-1],
            )
        return found

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """As in transformers; after training it also reports how often student and teacher predict the same class."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.class_names and metric_key_prefix == "eval" and not self.is_in_train:
            report_classes(self.class_names, output.predictions, output.label_ids)
        return output

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor:
        model.eval()  # dropout would be noise that the teacher does not have
        expected, keep = self._teacher_outputs(inputs), inputs.get("attention_mask")
        if not self.keep_signs:
            return self._distance(model(**inputs, output_hidden_states=True), expected, keep)
        by_state = self.match == STATES
        heads: AbstractContextManager = one_sidedness(model, keep, self.most_unequal) if by_state else nullcontext([])
        with heads as one_sided:
            distance = self._distance(model(**inputs, output_hidden_states=True), expected, keep)
        with without_negatives(model):
            difference = _difference(model(**inputs, output_hidden_states=True), expected, keep)
        if not by_state:
            return distance + (distance.detach() + self.further - difference).clamp_min(0)
        both = self.both_signs_weight * torch.stack(one_sided).mean()
        needed = self.needed_signs_weight * (self.margin - difference).clamp_min(0)
        # near λ = 0 the penalties could only move the student away from its teacher
        mass = mean(map(float, all_masses(self.model.config.attn_negative_mass)))
        return distance + mass * (both + needed)

    def _distance(self, outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> Tensor:
        return (relative_error if self.match == STATES else divergence)(outputs, expected, keep)

    def _teacher_outputs(self, inputs: dict[str, Tensor]) -> ModelOutput:
        with torch.no_grad():
            return self.teacher(**inputs, output_hidden_states=True)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The distance without the penalties, and per example what `distillation_metrics` needs."""
        with torch.no_grad(), self.compute_loss_context_manager():
            inputs = self._prepare_inputs(inputs)
            outputs, expected = model(**inputs, output_hidden_states=True), self._teacher_outputs(inputs)
            errors = _errors(outputs, expected, inputs.get("attention_mask"))
            counted: list[tuple[Tensor, Tensor]] = []
            if self.teacher.can_generate():
                counted = [_next_token_losses(of_model.logits, inputs) for of_model in (outputs, expected)]
            elif self.class_names:
                counted = [_class_counts(outputs.logits, expected.logits)]
            numerators, denominators = (torch.cat(parts, 1) for parts in zip(errors, *counted, strict=True))
            distance = self._distance(outputs, expected, inputs.get("attention_mask"))
        return distance, numerators, denominators


def report_classes(names: list[str], numerators: np.ndarray, denominators: np.ndarray) -> None:
    """Log how often student and teacher predict the same class, and warn where a second training would more often.

    Two trainings of a calibrated model agree as often as it is right (Jiang et al. 2022, arXiv:2106.13799); its mean
    probability of the predicted class stands for that here.

    Args:
        names: of the classes.
        numerators, denominators: per example, ending with what `_class_counts` returns.
    """
    rows = denominators[:, -len(names) :].sum(0)
    expected, same = numerators[:, -2 * len(names) :].sum(0).reshape(2, -1) / np.maximum(rows, 1)
    order = [index for index in np.argsort(same) if rows[index]]
    shares = listed([f"{names[index]} {same[index]:.1%} of {rows[index]:.0f}" for index in order])
    whole = f"{same @ rows / rows.sum():.1%} of {rows.sum():.0f} examples"
    logger.warning("Student and teacher predict the same class for %s; by the teacher's class: %s.", whole, shares)
    unlikely = binom.cdf((same * rows).round(), rows, expected) < UNLIKELY / len(names)
    if fewer := [f"{names[index]} (about {expected[index]:.1%})" for index in order if unlikely[index]]:
        logger.warning(
            "A second training of the teacher would agree with it more often, on %s. Give more steps, or texts or "
            "images like those that the model classifies.",
            listed(fewer),
        )


def class_names(model: PreTrainedModel) -> list[str]:
    """The names of the classes of which a model predicts one per text or image; none if it predicts something else."""
    if kind_of(model).task not in ("text-classification", "image-classification") or predicts_values(model.config):
        return []
    return [model.config.id2label[index] for index in range(model.config.num_labels)]


def _class_counts(logits: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of shares by the class that the teacher predicts, `[examples, 2 classes]` each.

    The first half sums the teacher's probabilities of its class, the second counts the student's equal predictions.
    """
    theirs = one_hot(expected.argmax(-1), expected.shape[-1]).float()
    ours = one_hot(logits.argmax(-1), logits.shape[-1])
    return torch.cat([theirs * expected.float().softmax(-1), theirs * ours], 1), torch.cat([theirs, theirs], 1)


def _next_token_losses(logits: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum of the losses of the tokens after the first, in nats, and their number, `[examples, 1]` each."""
    ids = inputs["input_ids"]
    keep = inputs.get("attention_mask", torch.ones_like(ids))
    targets = ids[:, 1:].masked_fill(keep[:, 1:] * keep[:, :-1] == 0, -100)  # padding may be on either side
    losses = cross_entropy(logits[:, :-1].float().transpose(1, 2), targets, reduction="none")
    return losses.sum(1, keepdim=True), (targets != -100).sum(1, keepdim=True).float()


def relative_error(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None = None) -> Tensor:
    """The error of `DistillationTrainer` for outputs of student and teacher with hidden states; `keep` is the padding
    mask `[batch, length]`."""
    return _mean_error(*_errors(outputs, expected, keep))


def _errors(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of the relative errors, `[examples, states]` each, to be summed over examples.

    Of a layer, the sum of its tokens' relative errors and their number; of logits, squared distances and norms.
    """
    (layers, logits), (true_layers, true_logits) = _states(outputs), _states(expected)
    pairs = [*zip(layers, true_layers, strict=True), *zip(logits, true_logits, strict=True)]
    sums = []
    for index, (student, teacher) in enumerate(pairs):
        errors, norms = _squared_norms(student - teacher), _squared_norms(teacher)
        if index < len(layers):
            errors, norms = errors / norms.clamp_min(SMALLEST), torch.ones_like(norms)
        kept = keep if keep is not None and keep.shape == norms.shape else 1
        sums.append(torch.stack([(errors * kept).sum(1), (norms * kept).sum(1)]))
    numerators, denominators = torch.stack(sums, -1)
    return numerators, denominators


def _difference(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None) -> Tensor:
    """The divergence, or without predictions the last states' error."""
    if _predictions(expected):
        return divergence(outputs, expected, keep)
    errors, norms = _errors(outputs, expected, keep)
    return _mean_error(errors[:, -1:], norms[:, -1:])


def divergence(outputs: ModelOutput, expected: ModelOutput, keep: Tensor | None = None) -> Tensor:
    """The mean Kullback-Leibler divergence of the student's classes, tokens or ends of spans from the teacher's, in
    nats; `keep` is the padding mask `[batch, length]`. InputError where the outputs have none."""
    names, means = _predictions(expected), []
    if not names:
        raise InputError(f"expected match states for a model that returns {', '.join(expected)}, and predicts nothing")
    for name in names:
        ours, theirs = outputs[name].float().log_softmax(-1), expected[name].float().log_softmax(-1)
        nats = kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
        means.append((nats if nats.dim() == 1 else at_tokens(nats, keep)).mean())
    return torch.stack(means).mean()


def _predictions(expected: ModelOutput) -> list[str]:
    """The names of outputs whose last dimension has several classes or tokens."""
    return [name for name in LOGITS if name in expected and expected[name].shape[-1] > 1]


def _states(outputs: ModelOutput) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of the layers, of which the last is that of the model where it has no head, and the logits."""
    hidden = outputs.get("hidden_states")
    if hidden is None:
        raise InputError(f"a model that returns {', '.join(outputs)} has no hidden states of layers to match")
    logits = [outputs[name] for name in LOGITS if name in outputs]
    spans = "start_logits" in outputs  # [batch, length], where other logits have their classes last
    layers = hidden[1:] if logits else (*hidden[1:-1], outputs.last_hidden_state)
    return [*layers], [x.unsqueeze(-1) if spans else x for x in logits]


def _squared_norms(states: Tensor) -> Tensor:
    """Squared norms of tokens `[batch, length]`, or `[batch, 1]` of states that are not `[batch, length, features]`."""
    squares = states.float().square()
    return squares.sum(-1) if squares.dim() == 3 else squares.flatten(1).sum(1, keepdim=True)


def _mean_error(errors: Tensor, norms: Tensor) -> Tensor:
    return (errors.sum(0) / norms.sum(0)).mean()


def _before_attention(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    """Parameters before the first layer, the embeddings, which student and teacher share."""
    path = next(name for name, module in model.named_modules() if module is signed_layers(model)[0])
    layers = re.split(r"\.\d+\.", path)[0]  # the list of layers
    before = takewhile(lambda named: not named[0].startswith(f"{layers}."), model.named_parameters())
    return (parameter for _, parameter in before)


def student_and_teacher(
    source: str, teacher: str | None, activation: str | None = None
) -> tuple[PreTrainedModel, PreTrainedModel, list]:
    """The signed student, its softmax teacher, and the student's tokenizer or image processor.

    Args:
        source: a softmax checkpoint (converted here), "timm:NAME", or a bidir checkpoint.
        teacher: a softmax or `λ = 0` checkpoint of the same shape; None takes `source` for the teacher, too.
        activation: of the student; None keeps that of a bidir checkpoint; a softmax one becomes TanhMax, or balanced
            if it generates text.

    Raises:
        InputError: a source that cannot be converted or has no states to match, a teacher of another shape or with
            negative mass.
    """
    student, processors = _signed(source)
    for tokenizer in processors:
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            know_padding(student.config, able_to_pad(tokenizer, source))
    softmax_model = copy.deepcopy(student) if teacher is None else _signed(teacher)[0]
    if student.config.is_encoder_decoder:
        raise InputError(
            f"{source} is a {type(student).__name__}, an encoder-decoder; only encoders and decoders can be healed"
        )
    if "MultipleChoice" in type(student).__name__:
        raise InputError(f"{source} ranks choices, which plain text lacks; heal the encoder it was trained from")
    if not is_softmax(softmax_model.config):
        raise InputError(
            f"{teacher or source} computes {softmax_model.config.attn_activation} with negative mass "
            f"{softmax_model.config.attn_negative_mass}, so it is not a softmax teacher; name its original softmax "
            "checkpoint with --teacher_name_or_path"
        )
    ours, theirs = (_shape(model) for model in (student, softmax_model))
    for name, expected in ours.items():
        if theirs[name] != expected:
            raise InputError(
                f"expected a teacher of the student's shape; its {name} is {theirs[name]} and the student's "
                f"{expected}. Name the softmax checkpoint that the student was made from with --teacher_name_or_path"
            )
    if is_softmax(student.config):
        activation = activation or student.config.attn_activation.replace("softmax", "tanhmax")
        student.config.attn_activation, student.config.attn_negative_mass = activation, 0.0
    elif activation not in (None, student.config.attn_activation):
        raise InputError(
            f"{source} was trained with {student.config.attn_activation}, which cannot become {activation}"
        )
    return student, softmax_model, processors


def _shape(model: PreTrainedModel) -> dict[str, Any]:
    fields, layers = ("hidden_size", "vocab_size", "num_labels"), len(signed_layers(model))
    return {"class": type(model).__name__, "number of signed layers": layers} | {
        name: getattr(model.config, name, None) for name in fields
    }


def _signed(source: str) -> tuple[PreTrainedModel, list]:
    """The checkpoint as a signed model in fp32, converted if need be, and its tokenizer or image processor."""
    with as_input_error("", ValueError, OSError, ImportError):
        checkpoint = open_checkpoint(source)
        checkpoint.check_full_precision("trained" if checkpoint.is_signed else "converted")
        model = checkpoint.signed_model(torch.float32)
        if not checkpoint.is_signed and model.can_generate():
            model.config.attn_activation = (
                "balanced"  # healing did not recover it from TanhMax: research/healing/README.md
            )
        return model, checkpoint.processors(model)
