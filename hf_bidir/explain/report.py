"""One text or image explained, as `hf-bidir explain` prints and writes it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.convert import signed_encoder
from hf_bidir.explain.checkpoint import Example, load_checkpoint, read_image, read_text
from hf_bidir.explain.colors import signed
from hf_bidir.explain.contributions import contributions
from hf_bidir.explain.figures import image_heatmap, layer_head_grid
from hf_bidir.explain.methods import METHODS, check_method, token_scores
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.page import html_page, write_page
from hf_bidir.explain.readout import choose_readout
from hf_bidir.explain.text_heatmap import text_blocks, text_heatmap
from hf_bidir.finetune.files import replacing

MANY_ANSWERS = ("ForQuestionAnswering", "ForMultipleChoice")
FLOW_LIMIT = 256  # tokens; all flows of a longer example take minutes


@dataclass(frozen=True)
class Explanation:
    """The scores of one example, and what they explain."""

    example: Example
    explained: str
    notes: list[str]
    method: str
    scores: Tensor  # [tokens]
    heads: Tensor  # [layers, heads]: contributions, summed over all tokens
    traced: dict[str, Tensor]  # rollout and flow, [tokens] each

    def summary(self, top: int = 10) -> str:
        """What is explained, then the tokens with the largest scores, special ones too."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        method = METHODS[self.method]
        numbers = [signed(score) if method.signed else f"{score:.2g}" for score in self.scores[order].tolist()]
        rows = [f"{number:>10}  {self.example.tokens[index]}" for number, index in zip(numbers, order, strict=True)]
        return "\n".join([*self.notes, self.explained, f"{method.what}; largest first:", *rows])


def explain_checkpoint(
    source: str | Path,
    text_or_image: str,
    *,
    method: str = "contributions",
    target: str | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Explanation:
    """Explain what a checkpoint, signed or softmax, makes of one text, or of the image in a file.

    Args:
        source: as in `load_checkpoint`.
        method, position, layer, head: as in `token_scores`. For masked language models the position is that of the
            mask in the text, unless given.
        target: a class by name or number; for masked language models, a word of the vocabulary.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint`, `read_text`, `read_image` and `token_scores`.
    """
    check_method(method)
    model, processor = load_checkpoint(source)
    if hasattr(model.config, "patch_size"):
        example = read_image(model, processor, text_or_image)
    else:
        example = read_text(processor, text_or_image, model.config.max_position_embeddings)
    notes = _notes(model, example, method)
    if type(model).__name__.endswith(MANY_ANSWERS):
        notes.append(f"{type(model).__name__} has no single answer to explain; its encoder is explained instead.")
        model = signed_encoder(model)
    target, position = _token_level(model, processor, example, target, position)
    chosen = {"target": target, "position": position}
    scores = token_scores(model, example.inputs, method, layer=layer, head=head, **chosen)
    per_head = contributions(model, example.inputs, **chosen)
    names = ("rollout", "flow") if scores.shape[-1] <= FLOW_LIMIT else ("rollout",)
    traced = {
        name: scores
        if name == method
        else token_scores(model, example.inputs, name, layer=layer, head=head, position=position)
        for name in names
    }
    return Explanation(
        example=example,
        explained=_explained(model, processor, example, **chosen),
        notes=notes,
        method=method,
        scores=example.by_token(scores[0], METHODS[method].additive),
        heads=per_head[0].sum(-1),
        traced={name: example.by_token(values[0], METHODS[name].additive) for name, values in traced.items()},
    )


def write_explanation(explanation: Explanation, folder: str | Path) -> list[Path]:
    """Write scores.png, rollout-flow.png, heads.png and index.html, a page with all of them, into `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    method, example = METHODS[explanation.method], explanation.example
    traced = explanation.traced
    drawn = {
        "scores": (method.what, _draw(example, {explanation.method: explanation.scores}, method.unit, method.what)),
        "rollout-flow": (
            " and ".join(traced).capitalize(),
            _draw(example, traced, "share", "where the last layer's state comes from, by size, signs ignored"),
        ),
        "heads": (
            "Contribution of each layer and head",
            layer_head_grid(explanation.heads, unit="a · ∂y/∂a", caption="sum over all tokens"),
        ),
    }
    written = []
    for name, (_, figure) in drawn.items():
        with replacing(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=120)
        written.append(folder / f"{name}.png")
    blocks = []
    if example.grid is None:  # the page has the text itself in place of its picture
        blocks = text_blocks(example.tokens, {method.what: explanation.scores}, method.unit)
        del drawn["scores"]
    page = html_page(
        explanation.explained, blocks=blocks, figures=dict(drawn.values()), caption=" ".join(explanation.notes)
    )
    write_page(folder / "index.html", page)
    return [*written, folder / "index.html"]


def _draw(example: Example, named: dict[str, Tensor], unit: str, caption: str) -> Figure:
    """The text once per row of scores, or the image; without the special tokens, which would outshine the others."""
    shown = ~torch.tensor(example.special)
    hidden = [token for token, special in zip(example.tokens, example.special, strict=True) if special]
    caption = f"{caption}; not drawn: {', '.join(dict.fromkeys(hidden))}"
    if example.grid is None:
        words = [token for token, special in zip(example.tokens, example.special, strict=True) if not special]
        return text_heatmap(words, {name: scores[shown] for name, scores in named.items()}, unit=unit, caption=caption)
    grids = torch.stack([scores[shown].unflatten(0, example.grid) for scores in named.values()])
    if len(named) > 1:  # several kinds of numbers on one scale
        grids, unit = grids / grids.abs().amax((1, 2), keepdim=True).clamp_min(1e-12), "share of the largest"
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    return image_heatmap(images, grids, titles=list(named), unit=unit, caption=caption)


def _token_level(model, processor, example: Example, target, position) -> tuple[str | int | None, int | None]:
    """Target and position for masked language models: a word of the vocabulary, at the mask."""
    if "MaskedLM" not in type(model).__name__:
        return target, position
    if position is None:
        masks = (example.inputs["input_ids"][0] == processor.mask_token_id).nonzero().flatten().tolist()
        if not masks:
            raise ValueError(f"a masked language model needs a {processor.mask_token} in the text, or a position.")
        position = masks[0]
    if target is not None:
        token = processor.convert_tokens_to_ids(target)
        if token is None or (token == processor.unk_token_id and target != processor.unk_token):
            raise ValueError(f"target {target!r} is not one word piece of the vocabulary.")
        target = token
    return target, position


@torch.inference_mode()
def _explained(model: PreTrainedModel, processor, example: Example, target, position) -> str:
    """What the model answers, and which number of it is explained."""
    outputs = model(**example.inputs, return_dict=True)
    readout = choose_readout(model, outputs, target, position)
    if "logits" not in outputs:
        return f"{type(model).__name__} has no head: explained is its state of token {position or 0}, along itself."
    logits = outputs.logits[0] if position is None else outputs.logits[0, position]
    explained, answer = readout.weights[0].argmax().item(), logits.argmax().item()
    name, value = _name_of(model, processor), signed(readout(outputs).item())
    if len(logits) == 1:
        return f"Answer, and what is explained: {value}."
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)
    return f"Answer: {name(answer)} ({probabilities[answer]:.1%}). Explained: the logit of {name(explained)}, {value}."


def _name_of(model: PreTrainedModel, processor):
    if "MaskedLM" in type(model).__name__:
        return processor.convert_ids_to_tokens
    return lambda index: model.config.id2label[index]


def _notes(model: PreTrainedModel, example: Example, method: str) -> list[str]:
    notes = []
    if example.truncated:
        notes.append(f"The text is too long for the model: its last {example.truncated} word pieces were left out.")
    if METHODS[method].oriented and signs_are_free(model):
        notes.append(
            f"{method} needs oriented heads: unless this checkpoint was oriented (hf_bidir.explain.orient_heads), the "
            "sign of each head is arbitrary."
        )
    if len(example.token_of_piece) > FLOW_LIMIT:
        notes.append(f"Over {FLOW_LIMIT} tokens, flow is left out of the figures; --method flow computes it.")
    return notes
