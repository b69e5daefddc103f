"""What is asked of a model: the output to explain, the method, and how; checked once against the model."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import check_vocabulary, kind_of, vocabulary_of
from hf_bidir.checkpoints.signing import as_signed, unwrapped
from hf_bidir.common.errors import did_you_mean
from hf_bidir.modeling.signed_layers import signed_layers

from .forward import (
    attends_between_tokens,
    check_kind,
    chooses_text,
    classifies_decoded,
    of_one_choice,
    pools_tokens,
    reads_image_text,
    reads_images,
    takes_embedding,
    translates,
    writes_about_images,
)
from .inputs.parts import Segments
from .inputs.text import Answer, Example, shortened, spelled
from .registry import DEFAULTS, LAYER_DEFAULT, METHODS, Method

ENCODERS = "sentence encoders: folders of sentence-transformers, as load_checkpoint loads them"
SINGLE = "a single prediction for a text or an image"
UNSIGNED = "deletion"  # the method of models that are not signed
GRADIENTS = "integrated-gradients"
AFFORDABLE = 64  # forward passes that a default method takes at most
OTHER_LAYERS = {"linear_attention", "mamba", "conv"}  # types that also mix tokens, from which erasure removes none
MOST_LISTED = 1000  # characters of the positions in a message
Target = int | str | Sequence[int] | Tensor | Answer | None  # one for all examples, or one per example
Position = int | str | Sequence[int] | Sequence[Sequence[int]] | Tensor | None


@dataclass(frozen=True)
class Request:
    """The choices of a caller; None leaves each to the model.

    Attributes:
        method: a name of `METHODS`; None selects `default_method`.
        target: the class to explain, by name or index, or a word for a language model, or an answer as spelled in the
            context; None selects the predicted one.
            Without a head there is none: y projects the hidden state on itself.
        instead_of: another class or word, with which the target is contrasted: y is the logit of the target minus that
            of this one.
        position: the token whose output is explained, where each has one, or a word of the text: by default that of the
            mask for masked language models, the last one for causal ones, and of taggers each word with a label.
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
            which a space separates from it, or of at most `new_tokens` greedily generated tokens.
        details: also compute the coefficients of one head, by default that of the last layer which adds most to the
            query that the output is read from; and the contribution of each layer and head.
        verdict: also predict without the strongest words or patches, and score by a second method; by default for the
            single input of `explain`.
        budget: the forward passes per text up to which the default method is the best one, and not a cheap one; by
            default 0 in `explain_each`.
        batch_size: texts that run together, where one method explains all of them without details and verdict.
    """

    method: str | None = None
    target: Target = None
    instead_of: Target = None
    position: Position = None
    layer: int | None = None
    head: int | None = None
    size: int | None = None
    against: str | None = None
    segments: Segments | None = None
    continuation: str | None = None
    new_tokens: int | None = None
    details: bool = False
    verdict: bool | None = None
    budget: int = AFFORDABLE
    batch_size: int = 16

    @property
    def entry(self) -> Method:
        """The entry of the method, once it is resolved."""
        return METHODS[str(self.method)]

    @property
    def is_part(self) -> bool:
        """Whether a layer or head alone is explained."""
        return (self.layer, self.head) != (None, None)

    @property
    def generates(self) -> bool:
        """Whether the tokens of a text that follows the prompt are explained."""
        return self.continuation is not None or self.new_tokens is not None

    @contextmanager
    def checked(self, model: Any, processor: Any) -> Iterator[PreTrainedModel]:
        """Inside the context, the model of `torch.compile`, `DataParallel` or peft, signed; of sentence encoders the
        one compared with `against`. A stock model is the same afterwards.

        Raises:
            ValueError: a model that cannot be explained, or choices that do not apply to it.
        """
        if isinstance(processor, nn.Module) or isinstance(model, PreTrainedTokenizerBase):
            raise ValueError(
                "expected a model and then its tokenizer or image processor; got a "
                f"{type(model).__name__} and a {type(processor).__name__}."
            )
        model = unwrapped(model)
        check_kind(type(model), model.config)
        check_vocabulary(processor, vocabulary_of(model), type(model).__name__)
        with ExitStack() as stack:
            if not (classifies_decoded(model) or reads_image_text(model)):
                self._sign(model, stack)
            self._check_choices(model)
            self.resolved(model)
            if self.against is not None:
                model = model.compared_with(processor, self.against)
            yield of_one_choice(model) if chooses_text(model) else model

    def _sign(self, model: PreTrainedModel, stack: ExitStack) -> None:
        """Sign a stock model in a context; a model of texts that cannot be signed stays as it is for deletion."""
        try:
            stack.enter_context(as_signed(model))
        except ValueError as error:
            if reads_images(model):
                raise
            if self.method != UNSIGNED:
                advice = f'method="{UNSIGNED}" (--method {UNSIGNED}) explains it all the same.'
                raise ValueError(f"{error} {advice}") from error

    def resolved(self, model: PreTrainedModel, passes: int = 1) -> "Request":
        """The request with its method: the named one, or the default for a text that erasure needs `passes` for.

        Raises:
            ValueError: a method that is unknown or that the model does not support, or a layer or head for a method
                that takes none.
        """
        name = self.method
        if name is None:
            name = LAYER_DEFAULT if self.is_part else default_method(model, passes, self.budget)
        _check_method(model, name, self.layer, self.head)
        return replace(self, method=name)

    def at_token(self, model: PreTrainedModel, tokenizer: Any, example: Example) -> "Request":
        """The request of a model with an output per token: with its position, by default that of the mask, or the last
        one of a causal model; and with words of the vocabulary as token ids."""
        if example.answer is not None:
            return replace(self, position=[example.answer.positions], target=example.answer)
        kind, ids = kind_of(model), example.inputs["input_ids"][0].tolist()
        if writes_about_images(model):
            return self.in_vocabulary(tokenizer, ids)
        position = example.place_of(self.position) if isinstance(self.position, str) else self.position
        if position is None and kind.task == "token-classification":
            return self
        if position is None and kind.causal:
            position = len(ids) - 1
        elif position is None and kind.names_tokens and tokenizer.mask_token_id in ids:
            position = ids.index(tokenizer.mask_token_id)
        if position not in range(len(ids)):
            masked = f"{tokenizer.mask_token} in the text, or " if kind.names_tokens and not kind.causal else ""
            places = [f"{place} {token}" for place, token in enumerate(spelled(tokenizer, ids))]
            listed = shortened(", ".join(places), MOST_LISTED)
            raise ValueError(f"expected {masked}the position of a token (--position): {listed}; got {self.position!r}.")
        located = replace(self, position=position)
        if not kind.names_tokens:
            return located
        return located.in_vocabulary(tokenizer, ids if kind.causal else [])

    def in_vocabulary(self, tokenizer: Any, before: Sequence[int]) -> "Request":
        """The request with words of the vocabulary as token ids, of words that follow these tokens."""
        last = tokenizer.decode(before[-1:])
        ends_apart = set(before[-1:]) <= set(tokenizer.all_special_ids) or last[-1:].isspace()
        spaced = not before or not ends_apart
        target, instead_of = (_token_of(tokenizer, word, spaced) for word in (self.target, self.instead_of))
        return replace(self, target=target, instead_of=instead_of)

    def _check_choices(self, model: PreTrainedModel) -> None:
        """Raise ValueError for choices that do not apply to the model, or to any."""
        if self.batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {self.batch_size}.")
        if self.continuation is not None and self.new_tokens is not None:
            raise ValueError("expected a continuation (a given text) or new_tokens (generate one), got both.")
        both, image, causal = reads_image_text(model), reads_images(model), kind_of(model).causal
        decodes = translates(model) and not both
        single = not (decodes or self.generates)
        choices = {
            "against": (ENCODERS, takes_embedding(model)),
            "size": ("images", image),
            "segments": ("texts", not (both or image)),
            "continuation": ("causal language models", causal and not both),
            "new_tokens": ("models that generate text after a prompt", causal or writes_about_images(model)),
            "target": (SINGLE, single and not chooses_text(model)),
            "instead_of": (SINGLE, single and not chooses_text(model)),
            "position": (SINGLE, single and not both),
            "details": (SINGLE, single and not both),
            "layer": ("models without a decoder", not decodes),
            "head": ("models without a decoder", not decodes),
        }
        for name, (purpose, applies) in choices.items():
            value = getattr(self, name)
            if not (applies or value is None or value is False):
                named = f"{name} (--{name.replace('_', '-')})"
                raise ValueError(f"{name} is for {purpose}, not for {type(model).__name__}; leave out {named}.")


def _check_method(model: PreTrainedModel, name: str, layer: int | None, head: int | None) -> None:
    method = METHODS.get(name)
    if method is None:
        close = did_you_mean(name, list(METHODS))
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}.{close}")
    if method.layers is None and (layer is not None or head is not None):
        raise ValueError(f"{name} covers the whole model; leave out layer and head, or choose another method.")
    if head is not None and not method.takes_head:
        raise ValueError(f"{name} covers all heads of a layer; leave out head, or choose another method.")
    supported = methods_of(model)
    if name not in supported:
        raise ValueError(f"{name} does not apply to {type(model).__name__}; choose one of {', '.join(supported)}.")


def _token_of(tokenizer: Any, word: Target, spaced: bool) -> Any:
    """The id of a word as spelled in a text, after a space if `spaced`, or of a word piece; ids as they are."""
    if not isinstance(word, str):
        return word
    if not word.strip():
        raise ValueError(f"expected a word of the vocabulary as target, got {word!r}.")
    after_space = f" {word.lstrip()}"
    texts = [after_space, word] if spaced else [word, after_space]
    first, second = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for pieces in (first, second, [tokenizer.convert_tokens_to_ids(word)]):
        if len(pieces) == 1 and pieces[0] not in (None, tokenizer.unk_token_id):
            return pieces[0]
    parts = " + ".join(map(repr, spelled(tokenizer, second)))
    raise ValueError(
        f"target {word!r} is not one token of the vocabulary, but {parts}; choose one of them, or explain all of them "
        "with --continuation."
    )


def check_position(model: PreTrainedModel, position: Position) -> None:
    """Raise ValueError if a head with an output per token has no position, or another classifier has one."""
    name, per_token = type(model).__name__, kind_of(model).per_token and not reads_image_text(model)
    if per_token and position is None:
        raise ValueError(f"{name} has an output per token; choose the one to explain with position (--position).")
    whole = name.endswith("Classification") or takes_embedding(model) or chooses_text(model)
    if position is not None and whole and not per_token:
        raise ValueError(f"{name} has one output per example; leave out position (--position).")


def only_deletes(model: PreTrainedModel) -> bool:
    """Whether deletion alone explains a model: one of texts that is not signed, or an encoder-decoder that classifies
    them or reads images."""
    if reads_image_text(model):
        return model.config.is_encoder_decoder
    return classifies_decoded(model) or not signed_layers(model)


def methods_of(model: PreTrainedModel) -> list[str]:
    """The methods available for a model, by its inputs and its attention."""
    if reads_image_text(model):
        return [UNSIGNED] if only_deletes(model) else [UNSIGNED, GRADIENTS]
    if classifies_decoded(model):
        return [UNSIGNED]
    if translates(model):
        return ["contributions"]
    between_tokens, one_query = attends_between_tokens(model), not pools_tokens(model)
    layers = getattr(model.config.get_text_config(), "layer_types", None) or ()
    mixes_otherwise = OTHER_LAYERS.intersection(layers)
    return [
        name
        for name, method in METHODS.items()
        if (between_tokens or not method.between_tokens)
        and (one_query or not method.one_query)
        and not (mixes_otherwise and name == "erasure")
    ]


def default_method(model: PreTrainedModel, passes: int = 1, budget: int = AFFORDABLE) -> str:
    """The best method that a budget of forward passes affords, or the cheap one for this kind of model.

    For texts they were chosen by research/explanations/words.py, for causal language models by causal.py there, for
    images by patches.py. Contributions for models with a single query, and where the method does not apply.

    Args:
        passes: that erasure of each word takes.
        budget: as in `Request`.
    """
    kind = "image with text" if reads_image_text(model) else "image" if reads_images(model) else "text"
    best, cheap = DEFAULTS[kind]
    supported = methods_of(model)
    for name in (best, UNSIGNED) if passes <= budget else (cheap,):
        if attends_between_tokens(model) and name in supported:
            return name
    return LAYER_DEFAULT if LAYER_DEFAULT in supported else UNSIGNED
