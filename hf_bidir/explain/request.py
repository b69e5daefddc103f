"""What is asked of a model: the output to explain, the method, and how; checked once against the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.explain.forward import (
    attends_between_tokens,
    model_within,
    pools_tokens,
    reads_images,
    takes_embedding,
)
from hf_bidir.explain.registry import CAUSAL_DEFAULT, CAUSAL_FAST, IMAGE_DEFAULT, LAYER_DEFAULT, METHODS, TEXT_DEFAULT

if TYPE_CHECKING:
    from hf_bidir.explain.inputs.parts import Segments

AFFORDABLE = 64  # forward passes up to which CAUSAL_DEFAULT is the default
HEADS, TRACED = "heads", ("rollout", "flow")  # figures beside the scores
Target = int | str | Sequence[int] | Tensor | None  # one for all examples, or one per example
Position = int | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Request:
    """The choices of a caller; None leaves each to the model.

    Attributes:
        method: a name of `METHODS`; None selects `default_method`.
        target: the class to explain, by name or index, or a word for a language model; None selects the predicted one.
            Without a head there is none: y projects the hidden state on itself.
        instead_of: another class or word, with which the target is contrasted: y is the logit of the target minus that
            of this one.
        position: the token whose output is explained, where each has one: by default that of the mask for masked
            language models, and the last one for causal ones.
        layer: contributions, values and attention use this layer alone (default except for contributions: the last);
            rollout, flow, ALTI and Chefer use the layers up to it.
        head: use this head alone; by default all.
        size: for images, as in `read_image`.
        against: for sentence encoders, a second text: y is the similarity of the embeddings. Without it, y is the
            embedding's projection on its own direction.
        segments: score segments of the text in place of words: "sentences", "paragraphs", "messages" of a conversation,
            or a list of them, such as retrieved passages. Erasure removes a segment as a whole; of other methods the
            scores of its words are summed, or the largest one is taken, as for the pieces of a word.
        continuation, new_tokens: for causal language models, explain each token of a given continuation of one prompt,
            or of `new_tokens` generated tokens, as by `explain_continuation`.
        figures: what to compute beside the scores of one text or image: "heads", the contribution of each layer and
            head; "rollout" and "flow", whose time grows fast with the length.
        batch_size: texts, or windows of long texts, that run together.
    """

    method: str | None = None
    target: Target = None
    instead_of: Target = None
    position: Position = None
    layer: int | None = None
    head: int | None = None
    size: int | None = None
    against: str | None = None
    segments: "Segments | None" = None
    continuation: str | None = None
    new_tokens: int | None = None
    figures: Sequence[str] = ()
    batch_size: int = 16

    @property
    def generates(self) -> bool:
        """Whether the tokens of a text that follows the prompt are explained."""
        return self.continuation is not None or self.new_tokens is not None

    def model_within(self, model: Any, processor: Any) -> PreTrainedModel:
        """The signed model, of sentence encoders the one compared with `against`, once the request is checked.

        Raises:
            ValueError: choices that do not apply to the model.
        """
        model = model_within(model, processor)
        for target in (self.target, self.instead_of):
            if not isinstance(target, Integral | str | None):
                raise ValueError(
                    f"expected one target for all inputs, a name or an index; got a {type(target).__name__}."
                )
        if self.against is not None and not takes_embedding(model):
            raise ValueError(
                "a second text is compared by sentence encoders: folders of sentence-transformers, as load_checkpoint "
                f"loads them; {type(model).__name__} is none. Leave out against."
            )
        if self.batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {self.batch_size}.")
        for name in self.figures:
            if name not in (HEADS, *TRACED):
                raise ValueError(f"expected figures {', '.join((HEADS, *TRACED))}, got {name!r}.")
        check_method(self.with_method(model))
        self._check_generation(model)
        return model if self.against is None else model.compared_with(processor, self.against)

    def with_method(self, model: PreTrainedModel, passes: int = 1) -> "Request":
        """The request with the default method if it names none; of encoder-decoders any method passes."""
        if self.method is not None:
            return self
        whole = self.layer is None and self.head is None
        return replace(self, method=default_method(model, passes) if whole else LAYER_DEFAULT)

    def _check_generation(self, model: PreTrainedModel) -> None:
        names = ["target", "instead_of", "position", "size"]
        if model.config.is_encoder_decoder:
            what = "generated token"
            names += ["layer", "head", "continuation", "new_tokens"]
        elif self.generates:
            what = "token that follows"
            if not kind_of(model).causal:
                raise ValueError(
                    f"{type(model).__name__} does not generate text; leave out continuation and new_tokens."
                )
            if None not in (self.continuation, self.new_tokens):
                raise ValueError("expected a continuation (a given text) or new_tokens (generate one), got both.")
        else:
            return
        chosen = [name for name in names if getattr(self, name) is not None]
        if chosen:
            raise ValueError(f"{type(model).__name__} is explained for each {what}; leave out {', '.join(chosen)}.")


def check_method(request: Request) -> None:
    """Raise ValueError for an unknown method, or a layer or head for a method that takes none."""
    name, method = request.method, METHODS.get(request.method or "")
    if method is None:
        from hf_bidir.common.errors import did_you_mean

        close = did_you_mean(str(name), list(METHODS))
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}.{close}")
    if method.layers is None and (request.layer is not None or request.head is not None):
        raise ValueError(f"{name} covers the whole model; leave out layer and head, or choose another method.")
    if request.head is not None and not method.takes_head:
        raise ValueError(f"{name} covers all heads of a layer; leave out head, or choose another method.")


def check_supported(model: PreTrainedModel, request: Request) -> None:
    """Raise ValueError for a method that the model does not support, and as in `check_method` and `check_position`."""
    check_method(request)
    if request.method not in (supported := methods_of(model)):
        needed = "an output that is read from a single token" if pools_tokens(model) else "attention between tokens"
        raise ValueError(
            f"{request.method} needs {needed}, which {type(model).__name__} does not have; choose one of "
            f"{', '.join(supported)}."
        )
    check_position(model, request.position)


def check_position(model: PreTrainedModel, position: Position) -> None:
    """Raise ValueError if a head with an output per token has no position, or another classifier has one."""
    name = type(model).__name__
    if kind_of(model).per_token and position is None:
        raise ValueError(f"{name} has an output per token; choose the one to explain with position (--position).")
    whole = name.endswith("Classification") or takes_embedding(model)
    if position is not None and whole and not kind_of(model).per_token:
        raise ValueError(f"{name} has one output per example; leave out position.")


def methods_of(model: PreTrainedModel) -> list[str]:
    """The methods available for a model, by its inputs and its attention; `align` explains encoder-decoders."""
    if model.config.is_encoder_decoder:
        return ["contributions"]
    between_tokens, one_query = attends_between_tokens(model), not pools_tokens(model)
    return [
        name
        for name, method in METHODS.items()
        if (between_tokens or not method.between_tokens) and (one_query or not method.one_query)
    ]


def default_method(model: PreTrainedModel, passes: int = 1) -> str:
    """An eligible method whose mean rank in research/explanations/run.py ties with the best one.

    For causal language models it is the most faithful method of research/explanations/causal.py; where that needs more
    than `AFFORDABLE` forward passes (`passes`, one per token), the most faithful one of a single backward pass. For a
    layer or head, a model with a single query and an encoder-decoder it is contributions.
    """
    if reads_images(model):
        best = IMAGE_DEFAULT
    elif kind_of(model).causal:
        best = CAUSAL_DEFAULT if passes <= AFFORDABLE else CAUSAL_FAST
    else:
        best = TEXT_DEFAULT
    return best if best in methods_of(model) else LAYER_DEFAULT


def why_fast(method: str | None, passes: int) -> str:
    """One sentence where the default of a causal language model is the fast one, else ""."""
    if method != CAUSAL_FAST:
        return ""
    return (
        f"{CAUSAL_DEFAULT}, the default of causal language models, would need {passes} forward passes; {method} needs "
        f'one backward pass and is less faithful. Choose method="{CAUSAL_DEFAULT}" (--method {CAUSAL_DEFAULT}) to wait '
        "for it."
    )
