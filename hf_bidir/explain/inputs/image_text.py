"""An image with texts: read as processors do, and explained by deletion of words, and of cells, coarse to fine.

The processor runs again for everything that is removed, so that any model of both is explained as it is used.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log2
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageStat
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, ProcessorMixin
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, device_of
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.common.images import open_image

from ..forward import writes_about_images
from ..readout import readout_of
from ..request import Request
from .image import file_name
from .text import Example, Place, Text, word_places

SIGLIP = {"padding": "max_length", "max_length": 64}  # as it was trained
CHAT = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
DRAWN = 512  # pixels that the longer side of a picture has at most
COARSE, FINEST, QUARTERS = 2, 32, 4  # divisions of the image into quarters at first, and most rows of cells
LEAST = 4  # pixels of a side of a cell
DIVIDED = 0.1  # share of the largest score from which a cell is divided
KEPT = 0.5  # share of a cell's score that its quarters hold together, from which on they stand for it
COST = (
    "{passes} forward passes, one per word and cell. A cell is painted in the mean colour, and divided where its "
    "quarters hold its score; a larger budget divides more."
)
Inputs = Mapping[str, Tensor]
Span = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ImageText(Example):
    """An image with texts, below each other; its tokens, which are cells and words, are known once they have scores.

    Attributes:
        image: as it is, before the processor.
        color: the mean colour of the processor, or of the image, in which removed cells are painted.
        spans: the place of each word.
        prepared: makes model inputs of one row from an image and texts.
    """

    image: Image.Image
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


class ImageTextCache:
    """What a model predicts for an image with texts, whole or without some tokens; like a `ForwardCache`.

    Attributes:
        model: of two towers, with the texts as its classes.
        examples: the single example, since `deletions` with its tokens.
        count: the tokens that are generated and explained.
    """

    passes = 1  # how many there are is decided by the budget

    def __init__(self, model: PreTrainedModel, example: ImageText, count: int | None) -> None:
        self.writes = writes_about_images(model)
        self.model = model if self.writes else _with_classes(model, example.without()[1])
        self.examples, self.count = [example], count or 1
        self.notes: defaultdict[int, list[str]] = defaultdict(list)

    @cached_property
    def outputs_alone(self) -> ModelOutput:
        """The similarities to the texts, `[1, texts]`, or the logits of tokens that are generated greedily, `[count,
        vocabulary]`, with their ids."""
        return self._outputs(self.examples[0].inputs)

    def without(self, places: Iterable[Place]) -> ModelOutput:
        """The outputs without boxes and words; of generated text, for the same ids."""
        (example,) = self.examples
        return self._outputs(example.prepared(*example.without(places)), self.outputs_alone.get("ids"))

    @torch.no_grad()
    def _outputs(self, inputs: Inputs, ids: Tensor | None = None) -> ModelOutput:
        model: Any = self.model
        with in_evaluation(model):
            if not self.writes:
                return ModelOutput(logits=model(**inputs, return_dict=True).logits_per_image)
            following = iter([] if ids is None else ids.tolist())
            made = model.generate(
                **inputs,
                max_new_tokens=self.count if ids is None else len(ids),
                do_sample=False,
                num_beams=1,
                output_logits=True,
                return_dict_in_generate=True,
                prefix_allowed_tokens_fn=None if ids is None else lambda *_: [next(following)],
            )
        return ModelOutput(logits=torch.cat(made.logits), ids=made.sequences[0, -len(made.logits) :].cpu())

    def deletions(self, request: Request) -> Tensor:
        """`y - y without it` `[rows, tokens]` for words, and for cells, of which the strongest are divided.

        The words are those of the texts that `y` is read from. A cell whose quarters change y little, each on its own,
        is not divided, and within the budget of forward passes.
        """
        (example,) = self.examples
        readout = readout_of(self, request, self.outputs_alone)
        whole = readout(self.outputs_alone)
        texts = {"": 0}
        if not self.writes:
            named = {"": readout.targets, "instead of": readout.foils}
            texts = {name: int(row) for name, row in named.items() if row is not None}
        words = [word for text in texts.values() for word in example.words_of(text)]
        least = 2 * max(LEAST, min(example.image.size) // FINEST)
        left, cells = [(0, 0, *example.image.size)], []
        for _ in range(COARSE):
            left = [quarter for cell in left for quarter in _divided(cell, least)]
        falls: dict[Span, Tensor] = {(): torch.zeros_like(whole)}  # also the pass of the whole
        total = max(request.budget, len(words) + len(left))
        bar = tqdm(total=total, desc="deletion", unit="call", leave=False, delay=1)

        def remove(places: Iterable[Span]) -> None:
            for place in places:
                falls[place] = whole - readout(self.without([place]))
                bar.update()

        def size(*places: Span) -> float:
            return sum(falls[place] for place in places).abs().sum().item()

        with bar:
            remove([*words, *left])
            while left and len(falls) + QUARTERS <= request.budget:
                left.sort(key=size)
                cell = left.pop()
                quarters = _divided(cell, least)
                if size(cell) < DIVIDED * max(map(size, falls)) or len(quarters) == 1:
                    cells.append(cell)
                    continue
                remove(quarters)
                if size(*quarters) >= KEPT * size(cell):
                    left += quarters
                else:
                    cells.append(cell)
        cells = sorted([*cells, *left], key=itemgetter(1, 0))
        self.examples = [example.scored(cells, texts)]
        self.notes[0].append(COST.format(passes=len(falls)))
        return torch.stack([falls[place] for place in (*cells, *words)], -1)


def _divided(cell: Span, least: int) -> list[Span]:
    """The quarters of a cell whose sides have at least so many pixels; a smaller one itself."""
    left, upper, right, lower = cell
    if min(right - left, lower - upper) < least:
        return [cell]
    x, y = (left + right) // 2, (upper + lower) // 2
    return [(left, upper, x, y), (x, upper, right, y), (left, y, x, lower), (x, y, right, lower)]


def _with_classes(model: PreTrainedModel, texts: list[str]) -> PreTrainedModel:
    """The same model with texts as its classes, whose probabilities are independent if it was trained so."""
    named: Any = copy.copy(model)  # with the same modules
    named.config = copy.copy(model.config)
    named.config.id2label = dict(enumerate(texts))
    if "siglip" in model.config.model_type:
        named.config.problem_type = SEVERAL_LABELS
    return named


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
    texts = [text.strip() for text in texts]
    if not texts or not all(texts):
        raise ValueError(f"expected a text with at least one word, got {texts!r}.")
    image = open_image(file)
    reader = partial(_asked, processor, _prefix(processor, image)) if writes else partial(_compared, processor)
    text = Text.of_texts(*texts)

    def prepared(image: Image.Image, texts: list[str]) -> Inputs:
        """What the processor returns, on the device of the model and in its precision."""
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
