"""Reads an image with texts as the processors of vision-language models and of models of two towers do."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from PIL import Image, ImageStat
from transformers import PreTrainedModel, ProcessorMixin

from hf_bidir.checkpoints.kinds import device_of
from hf_bidir.common.images import open_image
from hf_bidir.explain.forward import writes_about_images
from hf_bidir.explain.inputs.image import file_name
from hf_bidir.explain.inputs.scene import Inputs, Scene, Word

WORD = re.compile(r"(?:[\u3040-\u30ff\u3400-\u9fff]|\w+(?:['’-]\w+)*|[^\w\s])\s*")  # with the blanks after it
SIGLIP = {"padding": "max_length", "max_length": 64}  # as it was trained
CHAT = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}


def read_scene(model: PreTrainedModel, processor: Any, inputs: Any) -> Scene:
    """An image with a text; for models of two towers also with several texts, such as classes.

    Args:
        inputs: an image and a text or texts, as a tuple or as the mapping {"image": ..., "text": ...}. The text for a
            vision-language model is what a user asks.

    Raises:
        FileNotFoundError: no such image.
        ValueError: inputs or a processor of another kind, several texts for a vision-language model, or one without a
            word.
    """
    name, writes = type(model).__name__, writes_about_images(model)
    if not isinstance(processor, ProcessorMixin):
        raise ValueError(f"expected the processor of {name} (AutoProcessor), got a {type(processor).__name__}.")
    pair = (inputs.get("image"), inputs.get("text")) if isinstance(inputs, Mapping) else inputs
    match pair:
        case (file, str(text)):
            texts = [text]
        case (file, [*texts]) if len(texts) == 1 or not writes:
            pass
        case _:
            raise ValueError(
                f'expected an image and a text (--text) for {name}, such as {{"image": "photo.jpg", "text": "a cat"}}; '
                f"got {inputs!r}."
            )
    words, start, texts = [], 0, [text.strip() for text in texts]
    for index, text in enumerate(texts):
        words.append([Word(index, start + match.start(), match[0]) for match in WORD.finditer(text)])
        start += len(text) + 1
    if not words or not all(words):
        raise ValueError(f"expected a text with at least one word, got {texts!r}.")
    image = open_image(file)
    reader = partial(_asked, processor, _prefix(processor, image)) if writes else partial(_compared, processor)
    prepared = partial(_prepared, model, reader)
    return Scene(
        inputs=prepared(image, texts),
        tokens=[],
        special=[],
        token_of_piece=torch.arange(0),
        file=file_name(file),
        image=image,
        color=_mean_color(processor.image_processor, image),
        texts=words,
        prepared=prepared,
    )


def _prepared(model: PreTrainedModel, reader: Callable[..., Any], image: Image.Image, texts: list[str]) -> Inputs:
    """What a processor returns, on the device of the model and in its precision."""
    return dict(reader(image, *texts).to(device_of(model), model.dtype))


def _compared(processor: Any, image: Image.Image, *texts: str) -> Any:
    """The inputs of a model of two towers, with a row per text."""
    padding = SIGLIP if "Siglip" in type(processor).__name__ else {"padding": True}
    return processor(images=image, text=list(texts), **padding, return_tensors="pt")


def _asked(processor: Any, prefix: str, image: Image.Image, text: str) -> Any:
    """The inputs of a vision-language model, by its chat template if it has one."""
    if processor.chat_template is None:
        return processor(images=image, text=prefix + text, return_tensors="pt")
    content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
    return processor.apply_chat_template([{"role": "user", "content": content}], **CHAT, return_tensors="pt")


def _prefix(processor: Any, image: Image.Image) -> str:
    """The image token that belongs before a text, unless the processor or its chat template adds it."""
    token = str(getattr(processor, "image_token", ""))
    with suppress(ValueError):  # of processors that count image tokens
        ids = _asked(processor, "", image, "a")["input_ids"]
        if not token or processor.tokenizer.convert_tokens_to_ids(token) in ids:
            return ""
    return token


def _mean_color(processor: Any, image: Image.Image) -> tuple[int, ...]:
    """The colour that the image processor takes as the mean, or the mean of the image."""
    mean = getattr(processor, "image_mean", None)
    return tuple(map(round, ImageStat.Stat(image).mean if mean is None else (255 * channel for channel in mean)))
