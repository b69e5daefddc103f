"""Explanations as coloured words, patches and heads: values and HTML for the components of the page."""

import base64
import io
from collections.abc import Iterable
from html import escape

import numpy as np
from matplotlib.colors import to_hex
from PIL import Image

from hf_bidir.explain.draw.colors import Scale, as_array, text_color_on
from hf_bidir.explain.draw.figures import MARKED_SHARE
from hf_bidir.explain.inputs.text import shortened
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Alignment, Explanation

PREDICTED = "the prediction"  # as a target, in place of a name
IN_USE = 0.8  # share of the colour map used; black text is unreadable on its ends
NUMBERED = 8  # maximum heads per row with a printed number; with more, a cell shows its number on hover
# a click on a button of an HTML component arrives in Python as its select event
SELECT = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button && !button.disabled) trigger("select", { index: JSON.parse(button.value), value: button.textContent });
});"""


def common_scale(tables: Iterable) -> Scale:
    """One colour scale for several tables of scores."""
    return Scale.of(np.concatenate([np.empty(0), *(as_array(table).ravel() for table in tables)]))


def _color(scale: Scale, value: float) -> str:
    return to_hex(scale.color(IN_USE * value))


def drawn(explanation: Explanation) -> tuple[list[str], np.ndarray]:
    """Tokens and their scores, without special tokens, whose large scores would hide the others."""
    tokens, scores = explanation.shown(explanation.scores)
    return tokens, as_array(scores)


def words(explanation: Explanation, scale: Scale) -> dict:
    """Value and colours of a `gr.HighlightedText`, with each word's number as its label."""
    tokens, scores = drawn(explanation)
    labels = [scale.number(score) for score in scores]
    return {
        "value": [(shortened(token), label) for token, label in zip(tokens, labels, strict=True)],
        "color_map": {label: _color(scale, score) for label, score in zip(labels, scores, strict=True)},
    }


def patches(explanation: Explanation, scale: Scale) -> str:
    """The image in grey with a coloured cell over each patch; strong patches carry their sign."""
    tokens, scores = drawn(explanation)
    rows, columns = explanation.example.grid
    cells = []
    for token, score in zip(tokens, scores, strict=True):
        strength = abs(score) / scale.limit
        mark = ("+" if score > 0 else "−") if scale.has_signs and strength >= MARKED_SHARE else ""
        opacity = round(0.85 * strength**0.5, 3)  # 0 shows the image
        cells.append(
            f'<span class="patch" title="{token}: {scale.number(score)}">'
            f'<i style="background: {_color(scale, score)}; opacity: {opacity}"></i><b>{mark}</b></span>'
        )
    pixels = as_array(explanation.example.inputs["pixel_values"])[0].mean(0)
    grey = np.uint8(255 * (pixels - pixels.min()) / max(np.ptp(pixels), 1e-12))
    png = io.BytesIO()
    Image.fromarray(grey).save(png, format="PNG")
    style = (
        f"--rows: {rows}; --columns: {columns}; aspect-ratio: {columns} / {rows}; background-image: url({_data(png)})"
    )
    return f'<div class="patches" style="{style}">{"".join(cells)}</div>'


def alignment(explained: Alignment) -> str:
    """The grid of an encoder-decoder's generated text and its source."""
    png = io.BytesIO()
    explained.figures()["alignment"][1].savefig(png, format="png", dpi=110)
    return f'<img alt="alignment" src="{_data(png)}"><p>{escape(explained.what)}.</p>'


def _data(png: io.BytesIO) -> str:
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode('ascii')}"


def legend(scale: Scale, unit: str, of_words: bool = False) -> str:
    """The colours from one end of the scale to the other; paler for words, as gradio draws them."""
    ends = scale.ends
    colors = ", ".join(_color(scale, value) for value in np.linspace(*ends, 9))
    return (
        f'<div class="legend">{scale.number(ends[0])}<i class="{"pale" if of_words else ""}" '
        f'style="background: linear-gradient(to right, {colors})"></i>{scale.number(ends[1])} '
        f"<span>{escape(unit)}</span></div>"
    )


def sentence(explanation: Explanation, target: str) -> str:
    """One sentence on how to read the words or patches."""
    method = METHODS[explanation.method]
    quoted = target if target == PREDICTED else f"“{target}”"
    things = "words" if explanation.example.grid is None else "patches"
    if not method.signed:
        meaning = f"the darker the {things}, the larger"
    elif method.oriented:
        meaning = f"red {things} have positive values, blue ones negative values"
    else:
        meaning = f"red {things} support {quoted}, blue ones oppose it"
    example = explanation.example
    hidden = [token for token, special in zip(example.tokens, example.special, strict=True) if special]
    without = f" ({', '.join(dict.fromkeys(hidden))} not shown)" if hidden else ""
    caption = explanation.caption(explanation.method)
    return f"<p>{escape(caption[0].upper() + caption[1:])}: {escape(meaning + without)}.</p>"


def heads(explanation: Explanation, scale: Scale) -> str:
    """A button per layer and head in the colour of its contribution, the bottom layer at the bottom; or nothing."""
    if explanation.heads is None:
        return "<p>Heads of a text in several windows cannot be chosen; a shorter text has a grid of heads.</p>"
    if explanation.heads.numel() == 1:
        return "<p>This model has one attention head, so there is no head to choose.</p>"
    choosable = METHODS[explanation.method].takes_head
    where = (explanation.layer, explanation.head)
    disabled = "" if choosable else " disabled"
    rows = []
    for layer, values in reversed(list(enumerate(as_array(explanation.heads)))):
        rows.append(f"<span><em>layer </em>{layer}</span>")
        for head, value in enumerate(values):
            pressed = str(where == (layer, head)).lower()
            colors = f"background: {_color(scale, value)}; color: {text_color_on(scale.color(IN_USE * value))}"
            rows.append(
                f'<button type="button" value="[{layer}, {head}]" aria-label="layer {layer}, head {head}" '
                f'aria-pressed="{pressed}" title="layer {layer}, head {head}: {scale.number(value)}" '
                f'style="{colors}"{disabled}>{scale.number(value)}</button>'
            )
    if not choosable:
        text = f"Each cell sums one head's contributions; {explanation.method} takes all heads together."
    elif explanation.head is None:
        text = "Each cell sums one head's contributions over all tokens; click a cell to see that head alone."
    else:
        text = f"Layer {where[0]}, head {where[1]} alone is shown above."
    every = "" if explanation.head is None else '<button type="button" class="every" value="[]">Show all heads</button>'
    count = explanation.heads.shape[1]
    narrow = " narrow" if count > NUMBERED else ""
    grid = f'<div class="grid{narrow}" style="--heads: {count}">{"".join(rows)}</div>'
    return f"<h4>Layers and heads</h4>{grid}{legend(scale, 'a · ∂y/∂a')}<p>{text} {every}</p>"
