"""Explain predictions of models that read an image and a text: deletion of words, and of cells, coarse to fine."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.alignment import NO_VERDICT, Alignment
from hf_bidir.explain.forward import writes_about_images
from hf_bidir.explain.generation import LOGIT
from hf_bidir.explain.inputs.scene import Cell, Inputs, Part, Scene
from hf_bidir.explain.inputs.text import spelled, visible
from hf_bidir.explain.listing import Listing
from hf_bidir.explain.readout import Prediction, classes_readout, predictions
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.request import Request
from hf_bidir.explain.result import Explanation
from hf_bidir.explain.verdict import verdict_without

COARSE, FINEST = 4, 32  # rows and columns of cells, at first and at most
MATTERS = 0.1  # share of the largest score from which a cell is divided
KEPT = 0.5  # share of a cell's score that its quarters hold together, from which on they stand for it
COST = (
    "{passes} forward passes, one per word and cell. A cell is painted in the mean colour, and divided where its "
    "quarters hold its score; a larger budget divides more."
)


@torch.no_grad()
def explain_scene(model: Any, processor: Any, scene: Scene, request: Request) -> Explanation | Alignment:
    """The explanation of the next token, or of the text that fits best; of generated tokens their alignment."""
    with in_evaluation(model):
        if request.generates:
            return _answer(model, processor.tokenizer, scene, request)
        return _prediction(model, processor.tokenizer, scene, request)


def _prediction(model: Any, tokenizer: Any, scene: Scene, request: Request) -> Explanation:
    if writes_about_images(model):
        request = request.in_vocabulary(tokenizer, scene.inputs["input_ids"][0].tolist())
    else:
        model = _with_classes(model, scene.written())
    readout = classes_readout(model, _outputs(model, scene.inputs).logits, request)

    def predicted(inputs: Inputs) -> Prediction:
        return predictions(model, tokenizer, readout, _outputs(model, inputs))[0]

    prediction = predicted(scene.inputs)
    texts = [0] if writes_about_images(model) else [prediction.target, prediction.instead_of]
    scene, scores, note = deletions(
        scene,
        lambda inputs: readout(_outputs(model, inputs)),
        [text for text in texts if text is not None],
        request.budget,
    )
    explanation = Explanation(
        **vars(prediction),
        example=scene,
        method="deletion",
        model=model.config.name_or_path,
        layer=None,
        head=None,
        scores=scores[0],
        notes=[note],
    )
    if not request.verdict:
        return explanation

    def without(removed: list[int]) -> Prediction:
        return predicted(scene.without([scene.parts[index] for index in removed]))

    return replace(explanation, verdict=verdict_without(explanation, without, missing="to an image with a text"))


def _answer(model: Any, tokenizer: Any, scene: Scene, request: Request) -> Alignment:
    """Explain each of the tokens that are generated greedily."""
    outputs = _outputs(model, scene.inputs, request.new_tokens)
    ids = outputs.ids.tolist()
    readout = classes_readout(model, outputs.logits, replace(request, target=ids))
    scene, scores, note = deletions(
        scene, lambda inputs: readout(_outputs(model, inputs, len(ids), ids)), [0], request.budget
    )
    method = METHODS["deletion"]
    return Alignment(
        method="deletion",
        model=model.config.name_or_path,
        written=spelled(tokenizer, ids),
        explained=f'Answer: "{visible(tokenizer.decode(ids, skip_special_tokens=True).strip())}".',
        reading=f"{method.caption(scene.part)}, summed over the answer; y is {LOGIT}: {method.how_to_read}.",
        scores={method.unit: scores},
        first_length=len(scene.tokens),
        probabilities=outputs.logits.softmax(-1)[range(len(ids)), ids].tolist(),
        listing=Listing(scene.tokens, scores.sum(0), scene.special),
        example=scene,
        notes=[note, NO_VERDICT],
    )


def deletions(
    scene: Scene, y: Callable[[Inputs], Tensor], texts: Sequence[int], budget: int
) -> tuple[Scene, Tensor, str]:
    """`y - y without it` for every word of some texts, and for cells of the image, of which the strongest are divided.

    A cell whose quarters change y little, each on its own, is not divided.

    Args:
        y: of model inputs, `[rows]`.
        budget: forward passes up to which cells are divided.

    Returns:
        The scene with the cells and words as tokens, their scores `[rows, tokens]`, and a note on the cost.
    """
    whole = y(scene.inputs)
    falls: dict[Part | None, Tensor] = {None: torch.zeros_like(whole)}  # also the pass of the whole
    words = [word for text in texts for word in scene.texts[text]]
    left, cells = [Cell(COARSE, *place) for place in product(range(COARSE), repeat=2)], []
    finest = min(FINEST, min(scene.image.size) // 2)
    bar = tqdm(total=max(budget, len(words) + len(left)), desc="deletion", unit="call", leave=False, delay=1)

    def remove(parts: Iterable[Part]) -> None:
        for part in parts:
            falls[part] = whole - y(scene.without([part]))
            bar.update()

    def size(*parts: Part) -> float:
        return sum(falls[part] for part in parts).abs().sum().item()

    with bar:
        remove([*words, *left])
        while left and len(falls) + len(left[0].quarters) <= budget:
            left.sort(key=size)
            cell = left.pop()
            if size(cell) < MATTERS * max(map(size, falls)) or cell.rows >= finest:
                cells.append(cell)
                continue
            remove(cell.quarters)
            if size(*cell.quarters) >= KEPT * size(cell):
                left += cell.quarters
            else:
                cells.append(cell)
    scene = scene.scored([*cells, *left], texts)
    scores = torch.stack([falls[part] for part in scene.parts], -1)
    return scene, scores.cpu(), COST.format(passes=len(falls))


def _outputs(model: Any, inputs: Inputs, count: int | None = 1, ids: Sequence[int] = ()) -> ModelOutput:
    """The similarities to the texts, `[1, texts]`, or the logits of the next tokens, `[count, vocabulary]`, with their
    ids: the given ones, by default generated greedily."""
    if not writes_about_images(model):
        return ModelOutput(logits=model(**inputs, return_dict=True).logits_per_image)
    following = iter(ids)
    made = model.generate(
        **inputs,
        max_new_tokens=count,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
        prefix_allowed_tokens_fn=(lambda *_: [next(following)]) if ids else None,
    )
    return ModelOutput(logits=torch.cat(made.logits), ids=made.sequences[0, -len(made.logits) :])


def _with_classes(model: PreTrainedModel, texts: list[str]) -> PreTrainedModel:
    """The same model with texts as its classes, whose probabilities are independent if it was trained so."""
    named: Any = copy.copy(model)  # with the same modules
    named.config = copy.copy(model.config)
    named.config.id2label = dict(enumerate(texts))
    if "siglip" in model.config.model_type:
        named.config.problem_type = SEVERAL_LABELS
    return named
