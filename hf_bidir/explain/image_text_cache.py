"""What a model predicts for an image with texts: the forward cache of such models.

The processor runs again for everything that is removed, so that any model of both is explained as it is used.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS
from hf_bidir.checkpoints.layer_hooks import in_evaluation

from .forward import writes_about_images
from .inputs.image_text import ImageText, Inputs
from .inputs.text import Place
from .readout import Readout


class ImageTextCache:
    """What a model predicts for an image with texts, whole or without some tokens; like a `ForwardCache`.

    Attributes:
        model: of two towers, with the texts as its classes.
        examples: the single example, with its tokens once it has scores.
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

    def called(self, inputs: Inputs) -> ModelOutput:
        """The outputs of one call: the similarities, or the logits of the next token."""
        model: Any = self.model
        last = {"logits_to_keep": 1} if "logits_to_keep" in signature(model.forward).parameters else {}
        with in_evaluation(model):
            outputs = model(**inputs, **last, return_dict=True)
        return ModelOutput(logits=outputs.logits[:, -1] if self.writes else outputs.logits_per_image)

    def _outputs(self, inputs: Inputs, ids: Tensor | None = None) -> ModelOutput:
        with torch.inference_mode(False), torch.no_grad():
            return self._generated(inputs, ids) if self.writes else self.called(inputs)

    def _generated(self, inputs: Inputs, ids: Tensor | None) -> ModelOutput:
        """The logits and ids of tokens that are generated greedily, or logits for the given ids."""
        model: Any = self.model
        following = iter([] if ids is None else ids.tolist())
        with in_evaluation(model):
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

    def texts_of(self, readout: Readout) -> dict[str, int]:
        """The texts that `y` is read from, by the names that they are drawn with."""
        if self.writes:
            return {"": 0}
        named = {"": readout.targets, "instead of": readout.foils}
        return {name: int(row) for name, row in named.items() if row is not None}


def _with_classes(model: PreTrainedModel, texts: list[str]) -> PreTrainedModel:
    """The same model with texts as its classes, whose probabilities are independent if it was trained so."""
    named: Any = copy.copy(model)  # with the same modules
    named.config = copy.copy(model.config)
    named.config.id2label = dict(enumerate(texts))
    if "siglip" in model.config.model_type:
        named.config.problem_type = SEVERAL_LABELS
    return named
