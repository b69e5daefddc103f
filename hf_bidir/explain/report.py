"""Explanation of one text or image: the summary, figures and page of `hf-bidir explain`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.files import replacing
from hf_bidir.explain.alignment import Alignment, visible
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.checkpoint import Example, load_checkpoint, read_image, read_text, text_limit
from hf_bidir.explain.colors import Scale, as_array, shortened, signed
from hf_bidir.explain.continuation import check_prompt, explain_continuation
from hf_bidir.explain.contributions import contributions
from hf_bidir.explain.encoder_decoder import align
from hf_bidir.explain.figures import image_heatmap, layer_head_grid
from hf_bidir.explain.methods import METHODS, check_method, methods_of, token_scores
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.page import html_page, png_of
from hf_bidir.explain.readout import choose_readout, names_tokens
from hf_bidir.explain.running import keep_mask_of, prepared_inputs, reads_images, record_coefficients
from hf_bidir.explain.text_heatmap import text_blocks, text_heatmap

SEVERAL_OUTPUTS = ("ForQuestionAnswering", "ForMultipleChoice")
FIGURES = ("scores", "rollout-flow", "heads", "alignment")
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html
LITTLE = 0.1  # share of y below which the summed magnitude of contributions is noted
LONGEST_NAME = 255  # longest file name; longer texts cannot be files
FLOW_LIMIT = 256  # tokens; the time for all flows grows at least with the cube of the length


@dataclass(frozen=True)
class Explanation:
    """The scores of one example, and the output they explain."""

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
        """The explained output, then the tokens with the scores of largest magnitude, special tokens included."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        scores, tokens = self.scores.tolist(), self.example.tokens
        rows = [f"{self.number(scores[index]):>10}  {shortened(tokens[index])}" for index in order]
        return "\n".join([self.explained, *self.notes, f"{self.caption(self.method)}. Largest magnitude first:", *rows])

    def number(self, score: float) -> str:
        """A score as text, with a sign if the method has signs."""
        return signed(score) if METHODS[self.method].signed else f"{score:.2g}"

    def headings(self) -> dict[str, str]:
        """The headings of the figures by names of `FIGURES`.

        Rollout and flow need attention between tokens; the grid of heads needs more than one head.
        """
        found = {"scores": self.caption(self.method)}
        if self.traced:
            found["rollout-flow"] = " and ".join(self.traced).capitalize()
        if self.heads.numel() > 1:
            found["heads"] = "Contribution of each layer and head"
        return found

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """The figures by names of `FIGURES`, each with its heading."""
        headings, drawn = self.headings(), {"scores": _draw(self, [self.method])}
        if "rollout-flow" in headings:
            drawn["rollout-flow"] = _draw(self, list(self.traced))
        if "heads" in headings:
            reading = (
                f"How to read: {METHODS['contributions'].how_to_read}; {_scale_of(self.heads).sentence('all heads')}."
            )
            caption = f"Contributions, summed over all tokens. {self.explained} {reading}"
            drawn["heads"] = layer_head_grid(self.heads, unit="a · ∂y/∂a", caption=caption)
        return {name: (headings[name], figure) for name, figure in drawn.items()}

    def page(self, pictures: Mapping[str, bytes] | None = None) -> str:
        """The figures as a web page, with a text as HTML instead of its picture.

        Args:
            pictures: the figures as PNG by file name; by default they are drawn.
        """
        if pictures is None:
            pictures = {name: png_of(figure) for name, (_, figure) in self.figures().items()}
        headings, blocks, scale = self.headings(), [], self.scale()
        if self.example.grid is None:
            del headings["scores"]
            tokens, scores = self.shown(self.scores)
            row = {self.caption(self.method): scores}
            blocks = text_blocks(tokens, row, METHODS[self.method].unit, scale.has_signs, scale.limit)
        by_heading = {heading: pictures[name] for name, heading in headings.items()}
        caption = " ".join(filter(None, [*self.notes, self.hidden(), self.reading()]))
        return html_page(self.explained, blocks=blocks, pictures=by_heading, caption=caption)

    def shown(self, scores: Tensor) -> tuple[list[str], Tensor]:
        """Tokens and scores to draw: all but special tokens, whose scores would dominate the colour scale."""
        kept = [index for index, special in enumerate(self.example.special) if not special]
        return [self.example.tokens[index] for index in kept], scores[kept]

    def hidden(self) -> str:
        """The special tokens that are not drawn, with their scores, as a sentence; empty if there are none."""
        numbers = zip(self.example.tokens, self.example.special, self.scores.tolist(), strict=True)
        named = [f"{token} ({self.number(score)})" for token, special, score in numbers if special]
        return f"Not drawn: {', '.join(named)}." if named else ""

    def scale(self) -> Scale:
        """The colour scale of the scores. The grid of heads has its own: sums over all tokens can be much larger."""
        return _scale_of(self.shown(self.scores)[1])

    def reading(self) -> str:
        """One sentence on how to read the scores, with their colour scale."""
        return f"How to read: {METHODS[self.method].how_to_read}; {self.scale().sentence('all scores')}."


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
    """Explain the prediction of a checkpoint, signed or softmax, for a text or an image file.

    Args:
        source: as in `load_checkpoint`, or its result.
        method, position, layer, head: as in `token_scores`. The default position is that of the mask for masked
            language models, and the last one for causal ones.
        target: a class by name or index; for language models, a word of the vocabulary.
        continuation, new_tokens: for causal language models, explain each token of a given continuation, or of
            `new_tokens` generated tokens, instead of the next token alone.

    Returns:
        The scores of tokens; for generated text or a continuation, its alignment with the source.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint`, `read_text`, `read_image` and `token_scores`; a file
            for a text model, or an option that does not apply to the model.
    """
    check_method(method, layer, head)
    model, processor = source if isinstance(source, tuple) else load_checkpoint(source)
    _check_not_a_file(model, text_or_image)
    generation = {"continuation": continuation, "new_tokens": new_tokens}
    chosen: dict[str, Any] = {"target": target, "position": position}
    where: dict[str, Any] = {"method": method, "layer": layer, "head": head}
    if model.config.is_encoder_decoder:
        other_method = None if method == "contributions" else method
        _check_left_out(model, **chosen, **where | {"method": other_method}, **generation)
        return align(model, processor, text_or_image)
    if not any(value is not None for value in generation.values()):
        return _explain_prediction(model, processor, text_or_image, **chosen, **where)
    if not _is_causal(model):
        raise ValueError(f"{type(model).__name__} does not generate text; leave out --continuation and --new-tokens.")
    if None not in generation.values():
        raise ValueError("expected --continuation (explain a given text) or --new-tokens (generate one), got both.")
    _check_left_out(model, **chosen)
    options = where | {"new_tokens": new_tokens} if new_tokens is not None else where
    return explain_continuation(model, processor, text_or_image, continuation, **options)


def _explain_prediction(model: PreTrainedModel, processor, text_or_image: str, target, position, method, layer, head):
    """The explanation of one prediction."""
    example = _read(model, processor, text_or_image)
    notes = _notes(model, example, method)
    if type(model).__name__.endswith(SEVERAL_OUTPUTS):
        notes.append(f"{type(model).__name__} has no single output to explain; its encoder is explained instead.")
        model = model.base_model
    target, position = _token_level(model, processor, example, target, position)
    chosen: dict[str, Any] = {"target": target, "position": position}

    def scores_by(name: str) -> Tensor:
        found = token_scores(model, example.inputs, name, layer=layer, head=head, **chosen)
        return example.by_token(found[0], METHODS[name].additive)

    traced = {"rollout", *(["flow"] if len(example.token_of_piece) <= FLOW_LIMIT else [])}
    scores = {name: scores_by(name) for name in sorted({method, *traced.intersection(methods_of(model))})}
    heads = contributions(model, example.inputs, **chosen)[0].sum(-1)
    explained, value = _explained(model, processor, example, **chosen)
    if (method, layer, head) == ("contributions", None, None) and scores[method].abs().sum() < LITTLE * abs(value):
        notes.append(
            "y hardly changes with small changes of the attention here (saturation), so these scores and their signs "
            "say little. --method erasure removes whole tokens instead."
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


def _is_causal(model: PreTrainedModel) -> bool:
    return names_tokens(model) and "MaskedLM" not in type(model).__name__


def _check_left_out(model: PreTrainedModel, **choices) -> None:
    """Raise ValueError for options that do not apply to generated text."""
    named = [f"--{name.replace('_', '-')}" for name, value in choices.items() if value is not None]
    if named:
        what = "generated token" if model.config.is_encoder_decoder else "token that follows"
        raise ValueError(f"{type(model).__name__} is explained for each {what}; leave out {', '.join(named)}.")


def _check_not_a_file(model: PreTrainedModel, text: str) -> None:
    if not reads_images(model) and len(text) < LONGEST_NAME and Path(text).is_file():
        raise ValueError(
            f"expected a text in quotation marks, got the file {text}; {type(model).__name__} takes the text itself."
        )


def _read(model: PreTrainedModel, processor, text_or_image: str) -> Example:
    videos = hasattr(model.config, "num_frames")
    if reads_images(model) and not videos:
        return read_image(model, processor, text_or_image)
    if model.main_input_name != "input_ids" or hasattr(model.config, "vision_config") or videos:
        raise ValueError(f"expected a model of one text or one image; {type(model).__name__} takes other inputs.")
    example = read_text(processor, text_or_image, text_limit(model, processor))
    if _is_causal(model):
        check_prompt(model, example)
    return example


def write_explanation(explanation: Explanation | Alignment, folder: str | Path) -> list[Path]:
    """Write the figures as PNG, and index.html, a page with all of them, into `folder`.

    Replaces an earlier explanation. Everything is drawn first, then each file is written beside its target and renamed.

    Raises:
        FileExistsError: as in `holds_explanation`.
    """
    folder = Path(folder)
    holds_explanation(folder)
    pictures = {name: png_of(figure) for name, (_, figure) in explanation.figures().items()}
    contents = {PAGE: explanation.page(pictures).encode()}  # first, because it marks the folder as an explanation
    contents |= {f"{name}.png": png for name, png in pictures.items()}
    for name, content in contents.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)
    for name in {f"{name}.png" for name in FIGURES} - contents.keys():
        (folder / name).unlink(missing_ok=True)  # from an earlier explanation of another kind of model
    return [*(folder / f"{name}.png" for name in pictures), folder / PAGE]


def holds_explanation(folder: str | Path) -> bool:
    """Whether `folder` holds an earlier explanation; False if it is missing or empty. Hidden files do not count.

    Raises:
        FileExistsError: `folder` is a file, or holds anything else.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"expected a folder for the figures, {folder} is a file; choose another --output.")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.exists() else set()
    foreign = sorted(names - {PAGE, *(f"{name}.png" for name in FIGURES)})
    page = (folder / PAGE).read_text(encoding="utf-8", errors="replace") if (folder / PAGE).is_file() else ""
    if names and not foreign and PAGE_MARK not in page:
        foreign = [PAGE] if PAGE in names else sorted(names)
    if foreign:
        raise FileExistsError(
            f"expected an empty folder or an earlier explanation, {folder} holds {foreign[0]}; choose another --output."
        )
    return bool(names)


def _scale_of(scores: Tensor) -> Scale:
    return Scale.of(as_array(scores))


def _draw(explanation: Explanation, methods: list[str]) -> Figure:
    """Draw the text once per method, or the image, without special tokens."""
    example, known = explanation.example, {explanation.method: explanation.scores} | explanation.traced
    scores = {name: explanation.shown(known[name])[1] for name in methods}
    units = {name: METHODS[name].unit for name in methods}
    if methods == [explanation.method]:
        hidden, reading = " ".join([explanation.hidden(), *explanation.notes]), explanation.reading()
        limit = explanation.scale().limit
    else:  # rollout and flow, which have different units
        scores = {name: values / values.abs().max().clamp_min(1e-12) for name, values in scores.items()}
        units, hidden, limit = dict.fromkeys(methods, "share of the largest"), "", 1.0
        same = "each is divided by its largest score, so all are on one colour scale, 0 to 1"
        reading = f"How to read: {METHODS[methods[0]].how_to_read}; {same}."
    captions = "; ".join(explanation.caption(name) for name in methods)
    caption = " ".join(filter(None, [f"{captions[0].upper()}{captions[1:]}.", hidden, explanation.explained, reading]))
    if example.grid is None:
        words, _ = explanation.shown(explanation.scores)
        return text_heatmap(words, scores, unit=units, caption=caption, limit=limit)
    grids = torch.stack([values.unflatten(0, example.grid) for values in scores.values()])
    grids = torch.cat([torch.zeros_like(grids[:1]), grids])  # the first panel shows the image alone
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    titles, unit = [f"the image in grey, {images.shape[3]} x {images.shape[2]}", *methods], units[methods[0]]
    figure: Any = image_heatmap(images, grids, titles=titles, unit=unit, caption=caption, limit=limit)
    return figure


def _token_level(model, processor, example: Example, target, position) -> tuple[str | int | None, int | None]:
    """Target and position for language models: a token of the vocabulary, at the mask or after the text."""
    if not names_tokens(model):
        return target, position
    if position is None and _is_causal(model):
        position = example.inputs["input_ids"].shape[1] - 1
    if position is None:
        masks = (example.inputs["input_ids"][0] == processor.mask_token_id).nonzero().flatten().tolist()
        if not masks:
            raise ValueError(
                f"expected {processor.mask_token} in the text of a masked language model, or --position; got neither."
            )
        position = masks[0]
    return None if target is None else _word_piece(processor, target), position


def _word_piece(tokenizer, word: str) -> int:
    """The id of a word as spelled in a text, or of a word piece."""
    if not word.strip():
        raise ValueError(f"expected a word of the vocabulary as target, got {word!r}.")
    spellings = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word.lstrip()}", word)]
    for pieces in spellings:
        if len(pieces) == 1 and (pieces[0] != tokenizer.unk_token_id or word == tokenizer.unk_token):
            return pieces[0]
    token = tokenizer.convert_tokens_to_ids(word)
    if token is None or token == tokenizer.unk_token_id:
        known = [piece for piece in spellings[0] if piece != tokenizer.unk_token_id]
        parts = " + ".join(repr(tokenizer.decode([piece])) for piece in known)
        whole = " Or explain all of them with --continuation."
        split = f", but {parts}; choose one of them" if len(known) > 1 else ""
        raise ValueError(f"target {word!r} is not one token of the vocabulary{split}.{whole if split else ''}")
    return token


@torch.inference_mode()
def _explained(model: PreTrainedModel, processor, example: Example, target, position) -> tuple[str, float]:
    """The prediction and the explained number y in words, and y itself."""
    inputs = prepared_inputs(model, example.inputs)
    outputs, coefficients = record_coefficients(model, inputs)
    read = read_position(coefficients[-1], keep_mask_of(inputs, coefficients[-1].shape[-1]))
    readout = choose_readout(model, outputs, target, position, read)
    value = readout(outputs).item()
    if "logits" not in outputs:
        place = readout.positions[0].item()  # type: ignore[index]  # hidden states have a position
        y = f"y, the hidden state of token {place} projected on its own direction, {signed(value)}"
        return f"{type(model).__name__} has no head. Explained: {y}.", value
    logits = outputs.logits[0] if position is None else outputs.logits[0, position]
    if len(logits) == 1:
        return f"Prediction, and explained: y = {signed(value)}.", value
    explained, predicted = readout.weights[0].argmax().item(), logits.argmax().item()
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)
    name = _name_of(model, processor)
    mean = " minus the mean of all tokens" if names_tokens(model) else ""
    y = f"y, the logit of {name(explained)}{mean}, {signed(value)}"
    other = f" (probability {probabilities[explained]:.1%})" if explained != predicted else ""
    return f"Prediction: {name(predicted)} ({probabilities[predicted]:.1%}). Explained: {y}{other}.", value


def _name_of(model: PreTrainedModel, processor):
    if names_tokens(model):
        return lambda index: f'"{_token(processor, index)}"'
    return lambda index: model.config.id2label[index]


def _token(tokenizer, index: int) -> str:
    """The token as spelled in a text, or the piece itself if that is empty, or its id if the tokenizer has none."""
    return visible(tokenizer.decode([index])) or tokenizer.convert_ids_to_tokens(index) or f"token {index}"


def _notes(model: PreTrainedModel, example: Example, method: str) -> list[str]:
    notes = []
    if example.truncated:
        notes.append(f"The text is too long for the model; its last {example.truncated} word pieces were left out.")
    if METHODS[method].oriented and signs_are_free(model):
        notes.append(
            f"{method} needs oriented heads: without hf_bidir.explain.orient_heads the sign of each head is arbitrary."
        )
    if len(example.token_of_piece) > FLOW_LIMIT:
        notes.append(f"Flow is left out of the figures for over {FLOW_LIMIT} tokens; --method flow computes it.")
    return notes
