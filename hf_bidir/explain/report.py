"""One text or image explained, as `hf-bidir explain` prints and writes it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.files import replacing
from hf_bidir.explain.alignment import Alignment, visible
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.checkpoint import Example, load_checkpoint, read_image, read_text, text_limit
from hf_bidir.explain.colors import shortened, signed
from hf_bidir.explain.continuation import check_prompt, explain_continuation
from hf_bidir.explain.contributions import contributions
from hf_bidir.explain.encoder_decoder import align
from hf_bidir.explain.figures import image_heatmap, layer_head_grid
from hf_bidir.explain.methods import METHODS, check_method, methods_of, token_scores
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.page import html_page, write_page
from hf_bidir.explain.readout import choose_readout, names_tokens
from hf_bidir.explain.running import keep_mask_of, prepared_inputs, reads_images, record_coefficients
from hf_bidir.explain.text_heatmap import text_blocks, text_heatmap

MANY_ANSWERS = ("ForQuestionAnswering", "ForMultipleChoice")
FIGURES = ("scores", "rollout-flow", "heads", "alignment")
SATURATED = 0.1  # of y, as a sum of the sizes of all contributions
LONGEST_NAME = 255  # of a file; a longer text is not looked for on the disk
FLOW_LIMIT = 256  # tokens; the work for all flows grows with the cube of the length, at least


@dataclass(frozen=True)
class Explanation:
    """The scores of one example, and what they explain."""

    example: Example
    explained: str
    notes: list[str]
    method: str
    layer: int | None
    head: int | None
    scores: Tensor  # [tokens]
    heads: Tensor  # [layers, heads]: contributions, summed over all tokens
    traced: dict[str, Tensor]  # rollout and flow, [tokens] each

    def caption(self, method: str) -> str:
        return METHODS[method].caption(self.layer, self.head)

    def summary(self, top: int = 10) -> str:
        """What is explained, then the tokens with the largest scores, special ones too."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        scores = self.scores[order].tolist()
        numbers = [signed(score) if METHODS[self.method].signed else f"{score:.2g}" for score in scores]
        tokens = [shortened(self.example.tokens[index]) for index in order]
        rows = [f"{number:>10}  {token}" for number, token in zip(numbers, tokens, strict=True)]
        return "\n".join([self.explained, *self.notes, f"{self.caption(self.method)}. Largest first:", *rows])

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """What there is to see, by names of `FIGURES`, each with its caption.

        Rollout and flow are missing where attention is not from token to token, the heads where there is one.
        """
        figures = {"scores": (self.caption(self.method), _draw(self, [self.method]))}
        if self.traced:
            figures["rollout-flow"] = (" and ".join(self.traced).capitalize(), _draw(self, list(self.traced)))
        if self.heads.numel() > 1:
            caption = f"sum over all tokens. {self.explained}"
            heads = layer_head_grid(self.heads, unit="a · ∂y/∂a", caption=caption)
            figures["heads"] = ("Contribution of each layer and head", heads)
        return figures

    def page(self) -> str:
        """The figures as a web page, which has a text itself in place of its picture."""
        blocks, figures = [], self.figures()
        if self.example.grid is None:
            del figures["scores"]
            scores = {self.caption(self.method): self.scores}
            blocks = text_blocks(self.example.tokens, scores, METHODS[self.method].unit)
        caption = " ".join(self.notes)
        return html_page(self.explained, blocks=blocks, figures=dict(figures.values()), caption=caption)


def explain_checkpoint(
    source: str | Path | tuple[PreTrainedModel, object],
    text_or_image: str,
    *,
    method: str = "contributions",
    target: str | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    continuation: str | None = None,
    new_tokens: int | None = None,
) -> Explanation | Alignment:
    """Explain what a checkpoint, signed or softmax, makes of one text, or of the image in a file.

    Args:
        source: as in `load_checkpoint`, or what it has returned.
        method, position, layer, head: as in `token_scores`. For masked language models the position is that of the
            mask in the text, for causal ones the last one, unless given.
        target: a class by name or number; for language models, a word of the vocabulary.
        continuation, new_tokens: for causal language models, explain each token of a text that follows, or of so many
            that the model writes, in place of one answer.

    Returns:
        The scores of tokens; of a model that writes, the alignment of what it writes with the text.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint`, `read_text`, `read_image` and `token_scores`; a text
            model was given a file, or a choice means nothing to the model.
    """
    check_method(method, layer, head)
    model, processor = source if isinstance(source, tuple) else load_checkpoint(source)
    _check_not_a_file(model, text_or_image)
    writing = {"continuation": continuation, "new_tokens": new_tokens}
    chosen = {"target": target, "position": position}
    where = {"method": method, "layer": layer, "head": head}
    if model.config.is_encoder_decoder:
        _check_left_out(model, **chosen, **where | {"method": None if method == "contributions" else method}, **writing)
        return align(model, processor, text_or_image)
    if not any(value is not None for value in writing.values()):
        return _explain_answer(model, processor, text_or_image, **chosen, **where)
    if not _writes_on(model):
        raise ValueError(
            f"{type(model).__name__} writes nothing behind a text; leave --continuation and --new-tokens out."
        )
    if None not in writing.values():
        raise ValueError("give --continuation, to have that text explained, or --new-tokens, to let the model write.")
    _check_left_out(model, **chosen)
    options = where | {"new_tokens": new_tokens} if new_tokens is not None else where
    return explain_continuation(model, processor, text_or_image, continuation, **options)


def _explain_answer(model: PreTrainedModel, processor, text_or_image: str, target, position, method, layer, head):
    """The explanation of one answer."""
    example = _read(model, processor, text_or_image)
    notes = _notes(model, example, method)
    if type(model).__name__.endswith(MANY_ANSWERS):
        notes.append(f"{type(model).__name__} has no single answer to explain; its encoder is explained instead.")
        model = model.base_model
    target, position = _token_level(model, processor, example, target, position)
    chosen = {"target": target, "position": position}

    def scores_by(name: str) -> Tensor:
        found = token_scores(model, example.inputs, name, layer=layer, head=head, **chosen)
        return example.by_token(found[0], METHODS[name].additive)

    traced = {"rollout", *(["flow"] if len(example.token_of_piece) <= FLOW_LIMIT else [])}
    names = {method, *traced.intersection(methods_of(model))}
    scores = {name: scores_by(name) for name in sorted(names)}
    heads = contributions(model, example.inputs, **chosen)[0].sum(-1)
    explained, value = _explained(model, processor, example, **chosen)
    everything = method == "contributions" and layer is None and head is None
    if everything and scores[method].abs().sum() < SATURATED * abs(value):
        notes.append(
            "Attention contributes little to y here; most of it comes from what tokens carry past the attention. "
            "--method erasure counts both."
        )
    return Explanation(
        example=example,
        explained=explained,
        notes=notes,
        method=method,
        layer=layer,
        head=head,
        scores=scores[method],
        heads=heads,
        traced={name: scores[name] for name in ("rollout", "flow") if name in scores},
    )


def _writes_on(model: PreTrainedModel) -> bool:
    return names_tokens(model) and "MaskedLM" not in type(model).__name__


def _check_left_out(model: PreTrainedModel, **choices) -> None:
    """Raise ValueError where a choice was made that means nothing here."""
    named = [f"--{name.replace('_', '-')}" for name, value in choices.items() if value is not None]
    if named:
        what = "where each written token comes from" if model.config.is_encoder_decoder else "each token that follows"
        raise ValueError(f"{type(model).__name__} writes, and explained is {what}; leave out {', '.join(named)}.")


def _check_not_a_file(model: PreTrainedModel, text: str) -> None:
    if not reads_images(model) and len(text) < LONGEST_NAME and Path(text).is_file():
        raise ValueError(
            f"{text} is a file, and {type(model).__name__} takes the text itself, between quotation marks."
        )


def _read(model: PreTrainedModel, processor, text_or_image: str) -> Example:
    videos = hasattr(model.config, "num_frames")
    if reads_images(model) and not videos:
        return read_image(model, processor, text_or_image)
    if model.main_input_name != "input_ids" or hasattr(model.config, "vision_config") or videos:
        raise ValueError(
            f"{type(model).__name__} does not read one text or one image alone, which is what is explained."
        )
    example = read_text(processor, text_or_image, text_limit(model, processor))
    if _writes_on(model):
        check_prompt(model, example)
    return example


def write_explanation(explanation: Explanation | Alignment, folder: str | Path) -> list[Path]:
    """Write the explanation's figures as PNG, and index.html, a page with all of them, into `folder`."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder for the figures (--output).")
    folder.mkdir(parents=True, exist_ok=True)
    figures = explanation.figures()
    for name in set(FIGURES) - figures.keys():  # of an earlier explanation, of another kind of model
        (folder / f"{name}.png").unlink(missing_ok=True)
    written = [folder / f"{name}.png" for name in figures]
    for file, (_, figure) in zip(written, figures.values(), strict=True):
        with replacing(file) as temporary:
            figure.savefig(temporary, dpi=120)
    write_page(folder / "index.html", explanation.page())
    return [*written, folder / "index.html"]


def _draw(explanation: Explanation, methods: list[str]) -> Figure:
    """The text once per method, or the image; without the special tokens, which would outshine the others."""
    example = explanation.example
    known = {explanation.method: explanation.scores} | explanation.traced
    shown = ~torch.tensor(example.special)
    scores = {name: known[name][shown] for name in methods}
    hidden = dict.fromkeys(token for token, special in zip(example.tokens, example.special, strict=True) if special)
    captions = "; ".join(explanation.caption(name) for name in methods)
    without = f" Not drawn: {', '.join(hidden)}." if hidden else ""
    caption = f"{captions}.{without} {explanation.explained}"
    units = {name: METHODS[name].unit for name in methods}
    if example.grid is None:
        words = [token for token, special in zip(example.tokens, example.special, strict=True) if not special]
        return text_heatmap(words, scores, unit=units, caption=caption)
    grids = torch.stack([values.unflatten(0, example.grid) for values in scores.values()])
    unit = next(iter(units.values()))
    if len(methods) > 1:  # different kinds of numbers on one scale
        grids, unit = grids / grids.abs().amax((1, 2), keepdim=True).clamp_min(1e-12), "share of the largest"
    grids = torch.cat([torch.zeros_like(grids[:1]), grids])  # a panel that shows the image alone
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    return image_heatmap(images, grids, titles=["image", *methods], unit=unit, caption=caption)


def _token_level(model, processor, example: Example, target, position) -> tuple[str | int | None, int | None]:
    """Target and position for language models: a word of the vocabulary, at the mask or behind the text."""
    if not names_tokens(model):
        return target, position
    if position is None and _writes_on(model):
        position = example.inputs["input_ids"].shape[1] - 1
    if position is None:
        masks = (example.inputs["input_ids"][0] == processor.mask_token_id).nonzero().flatten().tolist()
        if not masks:
            raise ValueError(
                f"a masked language model needs a {processor.mask_token} in the text, or a position (--position)."
            )
        position = masks[0]
    return None if target is None else _word_piece(processor, target), position


def _word_piece(tokenizer, word: str) -> int:
    """The number of a word as it stands in a text, or of a word piece."""
    if not word.strip():
        raise ValueError(f"expected a target of the vocabulary, got {word!r}.")
    tries = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word.lstrip()}", word)]
    for pieces in tries:
        if len(pieces) == 1 and (pieces[0] != tokenizer.unk_token_id or word == tokenizer.unk_token):
            return pieces[0]
    token = tokenizer.convert_tokens_to_ids(word)
    if token is None or token == tokenizer.unk_token_id:
        known = [piece for piece in tries[0] if piece != tokenizer.unk_token_id]
        parts = " + ".join(repr(tokenizer.decode([piece])) for piece in known)
        whole = " Or explain all of them, one after the other, with --continuation."
        split = f", but {parts}; choose one of them" if len(known) > 1 else ""
        raise ValueError(f"target {word!r} is not one token of the vocabulary{split}.{whole if split else ''}")
    return token


@torch.inference_mode()
def _explained(model: PreTrainedModel, processor, example: Example, target, position) -> tuple[str, float]:
    """What the model answers and which number of it is explained, in words; and that number."""
    inputs = prepared_inputs(model, example.inputs)
    outputs, coefficients = record_coefficients(model, inputs)
    read = read_position(coefficients[-1], keep_mask_of(inputs, coefficients[-1].shape[-1]))
    readout = choose_readout(model, outputs, target, position, read)
    value = readout(outputs).item()
    if "logits" not in outputs:
        place = readout.positions[0].item()
        return f"{type(model).__name__} has no head: y is its state of token {place}, along itself.", value
    logits = outputs.logits[0] if position is None else outputs.logits[0, position]
    if len(logits) == 1:
        return f"Answer, and what is explained: y = {signed(value)}.", value
    explained, answer = readout.weights[0].argmax().item(), logits.argmax().item()
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probability = (logits.float().sigmoid() if several else logits.float().softmax(-1))[answer]
    name = _name_of(model, processor)
    above = " above the mean of all tokens" if names_tokens(model) else ""
    y = f"y, the logit of {name(explained)}{above}, {signed(value)}"
    return f"Answer: {name(answer)} ({probability:.1%}). Explained: {y}.", value


def _name_of(model: PreTrainedModel, processor):
    if names_tokens(model):
        return lambda index: f'"{_token(processor, index)}"'
    return lambda index: model.config.id2label[index]


def _token(tokenizer, index: int) -> str:
    """As it stands in a text; the piece itself where that is nothing, its number where the tokenizer has none."""
    return visible(tokenizer.decode([index])) or tokenizer.convert_ids_to_tokens(index) or f"token {index}"


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
