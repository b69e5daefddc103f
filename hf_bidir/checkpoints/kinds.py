"""Properties of a model by its class name and config: Auto class, task, loss, example inputs, limits of its texts."""

import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.modeling.compat import stock_heads

NAMED = 5  # tokens in a message
LONGEST_TEXT = 2**20  # limit in tokens where neither model nor tokenizer has one


class Kind(NamedTuple):
    """A kind of head."""

    ending: str  # of the names of its classes
    auto: str  # its Auto class
    task: str  # its name on the Hub
    names_tokens: bool = False  # its logits are those of a vocabulary, at every position
    per_token: bool = False  # it has outputs for every position
    causal: bool = False  # it predicts the next token
    peft_task: str | None = None  # peft's name of the task
    derives_decoder_input: bool = False  # from `input_ids`, which then need the token that ends a text


_CAUSAL: dict[str, Any] = {"names_tokens": True, "per_token": True, "causal": True, "peft_task": "CAUSAL_LM"}
# if several fit a config, the first one counts
KINDS = (
    Kind("Model", "AutoModel", "feature-extraction"),
    Kind("ForImageClassification", "AutoModelForImageClassification", "image-classification"),
    Kind(
        "ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification", peft_task="SEQ_CLS",
        derives_decoder_input=True,
    ),
    Kind(
        "ForTokenClassification", "AutoModelForTokenClassification", "token-classification", per_token=True,
        peft_task="TOKEN_CLS",
    ),
    Kind(
        "ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering", per_token=True,
        peft_task="QUESTION_ANS", derives_decoder_input=True,
    ),
    Kind("ForMultipleChoice", "AutoModelForMultipleChoice", "multiple-choice"),
    Kind("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask", names_tokens=True, per_token=True),
    Kind("ForCausalLM", "AutoModelForCausalLM", "text-generation", **_CAUSAL),
    Kind("LMHeadModel", "AutoModelForCausalLM", "text-generation", **_CAUSAL),
    Kind("ForImageTextToText", "AutoModelForImageTextToText", "image-text-to-text"),
    Kind("ForZeroShotImageClassification", "AutoModelForZeroShotImageClassification", "zero-shot-image-classification"),
    Kind("ForObjectDetection", "AutoModelForObjectDetection", "object-detection"),
    Kind("ForSemanticSegmentation", "AutoModelForSemanticSegmentation", "image-segmentation"),
    Kind("ForAudioClassification", "AutoModelForAudioClassification", "audio-classification"),
    Kind("ForSpeechSeq2Seq", "AutoModelForSpeechSeq2Seq", "automatic-speech-recognition"),
    Kind("ForSeq2SeqLM", "AutoModelForSeq2SeqLM", "text2text-generation", peft_task="SEQ_2_SEQ_LM"),
)  # fmt: skip
NO_HEAD = KINDS[0]
BY_AUTO_CLASS = {kind.auto: kind for kind in reversed(KINDS)}
SEVERAL_LABELS = "multi_label_classification"  # the problem type
IMAGE_TEXT, ZERO_SHOT = "AutoModelForImageTextToText", "AutoModelForZeroShotImageClassification"


def kind_of(model: PreTrainedModel | str) -> Kind:
    """The kind of a model or of a class with this name; `NO_HEAD` if its name has none of the endings."""
    name = model if isinstance(model, str) else type(model).__name__
    name = name.removesuffix("Simple")  # of a head without beams, as of XLNet
    for kind in KINDS[1:]:
        if name.endswith(kind.ending):
            return kind
    return NO_HEAD


def image_text_auto(head: type[PreTrainedModel], config: PretrainedConfig) -> str | None:
    """The Auto class of a model that reads an image with a text: `IMAGE_TEXT` if it is a vision-language model, or
    `ZERO_SHOT` if it has two towers; None for others."""
    heads = stock_heads(type(config).model_type)
    if "pixel_values" not in inspect.signature(head.forward).parameters:
        return None
    for auto in (IMAGE_TEXT, ZERO_SHOT):
        if heads.get(auto) == head.__name__:
            return auto
    return None


def divides_by_all_labels(model: nn.Module) -> bool:
    """Whether the loss of a model is a sum over the labels, divided by the `num_items_in_batch` that a Trainer passes.

    transformers looks for `**kwargs` in the signature, but many heads that have it return the mean of their own batch.
    So this reads the code: `forward` must hand its keywords to the loss function, and that to the cross entropy of
    transformers. False where there is no such code, which is safe: the Trainer then averages over batches.
    """
    try:
        source = inspect.getsource(inspect.unwrap(model.forward))
    except (OSError, TypeError):
        return False
    if not re.search(r"loss_function\(.*\*\*", source, re.DOTALL):
        return False
    function = model.loss_function
    if function.__name__ == "ForSequenceClassificationLoss" and predicts_values(model.config):
        return False  # the mean of squared errors, or of binary cross entropies
    names = function.__code__.co_names + function.__code__.co_varnames
    return "fixed_cross_entropy" in names or "num_items_in_batch" in names


def predicts_values(config: PretrainedConfig) -> bool:
    """Whether a classifier predicts numbers or several labels, by the rule with which transformers guesses it."""
    known = config.problem_type
    return known in ("regression", SEVERAL_LABELS) or (known is None and config.num_labels == 1)


def takes_one_row(model: PreTrainedModel) -> bool:
    """Whether the model classifies texts and has no padding token, so that a decoder accepts one text at a time."""
    unpadded = getattr(model.config.get_text_config(), "pad_token_id", 0) is None
    return unpadded and kind_of(model).task == "text-classification"


def device_of(model: PreTrainedModel) -> torch.device:
    """The device of a model's inputs; where weights lie on disk or in memory, that on which accelerate runs them."""
    if model.device.type != "meta":
        return model.device
    for place in getattr(model, "hf_device_map", {}).values():
        if place not in ("cpu", "disk"):
            return torch.device(place)
    return torch.device("cpu")


def text_limit(model: PreTrainedModel, tokenizer: Any) -> int:
    """The longest text, in tokens, that both the model and its tokenizer accept; at most `LONGEST_TEXT`."""
    return min(longest_text(model) or LONGEST_TEXT, tokenizer.model_max_length, LONGEST_TEXT)


def longest_text(model: PreTrainedModel) -> int | None:
    """The largest number of tokens that the positions of a text model allow; None without a limit in the config."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not limit or limit < 0:
        return None
    words = _words_of(model)
    for table in model.modules():  # RoBERTa's positions start after the padding index
        counts = isinstance(table, nn.Embedding) and table is not words and table.num_embeddings == limit
        if counts and table.padding_idx is not None:
            return limit - table.padding_idx - 1
    return limit


def vocabulary_of(model: PreTrainedModel) -> int | None:
    """The number of tokens that a model of text has embeddings for; None for other models."""
    if model.main_input_name != "input_ids":
        return None
    return getattr(_words_of(model), "num_embeddings", None)


def _words_of(model: PreTrainedModel) -> nn.Module | None:
    """The table of words; None of a model that names none, as of characters, or of a text and an image."""
    with suppress(NotImplementedError):
        return model.get_input_embeddings()
    return None


def check_vocabulary(tokenizer: Any, count: int | None, source: str | Path) -> None:
    """Raise ValueError if tokens were added to a tokenizer for which a model with `count` embeddings has none.

    Special tokens that the tokenizer names itself, such as `image_token` of Gemma 3, may have none: in a model of text
    they are not used. Other processors, and a count of None, pass.
    """
    if count is None or not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    of_texts = PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    of_other_inputs = {token for name, token in tokenizer.special_tokens_map.items() if name not in of_texts}
    without = []
    for index, token in sorted(tokenizer.added_tokens_decoder.items()):
        if index >= count and str(token) not in of_other_inputs:
            without.append(str(token))
    if without:
        raise ValueError(
            f"the tokenizer of {source} has tokens for which its model, with {count} embeddings, has none: "
            f"{', '.join(without[:NAMED])}. They were added without model.resize_token_embeddings(len(tokenizer)); "
            "call it, and save the model again."
        )
