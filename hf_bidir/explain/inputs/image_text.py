"""An image with texts, read as processors do, whole and without some cells and words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import log2
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageStat
from torch import Tensor
from transformers import PreTrainedModel, ProcessorMixin

from hf_bidir.checkpoints.kinds import device_of
from hf_bidir.common.images import open_image

from ..forward import writes_about_images
from .image import file_name
from .text import Example, Place, Text, word_places

SIGLIP = {"padding": "max_length", "max_length": 64}  # as it was trained
CHAT = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
DRAWN = 512  # pixels that the longer side of a picture has at most
Inputs = dict[str, Tensor]
Span = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ImageText(Example):
    """An image with texts, below each other; its tokens, which are cells and words, are known once they have scores.

    Attributes:
        image: as it is, before the processor.
        padding: the id of the token that pads texts.
        color: the mean colour of the processor, or of the image, in which removed cells are painted.
        spans: the place of each word.
        prepared: makes model inputs of one row from an image and texts.
    """

    image: Image.Image
    padding: int
    color: Span
    spans: Sequence[Span]
    prepared: Callable[[Image.Image, list[str]], Inputs]

    @property
    def picture(self) -> Tensor:
        shown = self.image.reduce(1 + max(self.image.size) // DRAWN)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1)

    def without(self, places: Iterable[Place] = ()) -> tuple[Image.Image, list[str]]:
        """The image with boxes painted in one colour, and the texts without some words and the blanks before them."""
        image, written = self.image.copy(), list(self.text)
        for place in places:
            if len(place) > 2:
                image.paste(self.color, place)
            else:
                start = len(self.text[: place[0]].rstrip(" "))
                written[start : place[1]] = [""] * (place[1] - start)
        return image, ["".join(written[slice(*part)]).strip() for part in self.parts]

    def words_of(self, text: int) -> list[Span]:
        """The places of the words of one of the texts."""
        start, end = self.parts[text]
        return [span for span in self.spans if start <= span[0] < end]

    def pieces_of(self, text: int) -> list[int]:
        """The first piece of each word of one of the texts in its row of model inputs, and the one after the last.

        It is where the pieces of the text up to there differ from those of a longer one; what a template writes after
        the text may hide a next word that begins alike.
        """
        start, end = self.parts[text]
        whole = self.text[start:end]

        def pieces(text: str) -> list[int]:
            return self.prepared(self.image, [text])["input_ids"][0].tolist()

        longer = pieces(f"{whole} {whole}")
        ends = [place - start for place, _ in self.words_of(text)] + [len(whole)]
        return [_common(pieces(whole[:end].rstrip()), longer) for end in ends]

    def scored(self, cells: Sequence[Span], texts: Mapping[str, int]) -> "ImageText":
        """The same with these cells, and the words of these texts by their names, as tokens."""
        width, height = self.image.size
        tokens, places, begins, most = [], list(cells), {}, 1
        for left, upper, right, _ in cells:
            rows = 2 ** round(log2(width / (right - left)))
            row, column = round(upper / height * rows), round(left / width * rows)
            tokens.append(f"cell in row {row}, column {column} of {rows} × {rows}")
            most = max(most, rows)
        for name, text in texts.items():
            begins[name] = len(places)
            places += self.words_of(text)
        tokens += [self.text[slice(*span)] for span in places[len(cells) :]]
        return replace(
            self,
            tokens=tokens,
            special=[False] * len(tokens),
            token_of_piece=torch.arange(len(tokens)),
            texts=begins,
            grid=(most, most),
            places=places,
        )


def _common(first: list[int], second: list[int]) -> int:
    """How many ids two lists have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def read_image_text(model: PreTrainedModel, processor: Any, inputs: Any) -> ImageText:
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
    pair: Any = (inputs.get("image"), inputs.get("text")) if isinstance(inputs, Mapping) else inputs
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
    texts = [text.strip() for text in texts]
    if not texts or not all(texts):
        raise ValueError(f"expected a text with at least one word, got {texts!r}.")
    image = open_image(file)
    reader = partial(_asked, processor, _prefix(processor, image)) if writes else partial(_compared, processor)
    text = Text.of_texts(*texts)

    def prepared(image: Image.Image, texts: list[str]) -> Inputs:
        """What the processor returns, on the device of the model and in its precision."""
        with torch.inference_mode(False):  # gradients need tensors of the usual mode
            return dict(reader(image, *texts).to(device_of(model), model.dtype))

    return ImageText(
        inputs=prepared(image, texts),
        tokens=[],
        special=[],
        token_of_piece=torch.arange(0),
        grid=(1, 1),
        file=file_name(file),
        text=text.content,
        parts=text.parts,
        image=image,
        padding=processor.tokenizer.pad_token_id or 0,
        color=_mean_color(processor.image_processor, image),
        spans=word_places(processor.tokenizer, text.content),
        prepared=prepared,
    )


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
    with suppress(ValueError, KeyError):  # of processors that count image tokens, or write the text into the image
        ids = _asked(processor, "", image, "a")["input_ids"]
        if not token or processor.tokenizer.convert_tokens_to_ids(token) in ids:
            return ""
    return token


def _mean_color(processor: Any, image: Image.Image) -> tuple[int, ...]:
    """The colour that the image processor takes as the mean, or the mean of the image."""
    mean = getattr(processor, "image_mean", None)
    return tuple(map(round, ImageStat.Stat(image).mean if mean is None else (255 * channel for channel in mean)))
