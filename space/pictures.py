"""Explanations as coloured words, patches and heads: HTML for the components of the page."""

import base64
import io
import math
from collections.abc import Sequence
from html import escape

import numpy as np
import torch
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from hf_bidir.explain.draw.figures import MARKED_SHARE, Scale, as_array, text_color_on
from hf_bidir.explain.draw.page import COEFFICIENT, Bar, TextBlock
from hf_bidir.explain.inputs.text import Example, shortened
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Alignment, Explanation

TURNED = 8  # heads per row above which their labels are turned
# a click on a button of an HTML component arrives in Python as its select event
SELECT = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) trigger("select", { index: JSON.parse(button.value), value: button.textContent });
});"""


def pictures(found: Sequence[Explanation], meanings: Sequence[str]) -> list[str]:
    """The scores of each explanation, on one colour scale, above a sentence that ends with their meaning."""
    captions = [
        f"{one.caption(one.method)}: {means}. {one.hidden()}" for one, means in zip(found, meanings, strict=True)
    ]
    return _drawn(found, [one.scores for one in found], METHODS[found[0].method].unit, captions)


def coefficients(found: Sequence[Explanation]) -> list[str]:
    """The coefficients of the head that belongs to each explanation, on one colour scale, with their meaning."""
    heads = [one.coefficients for one in found]
    captions = [f"{of.heading}. {of.caption} {one.hidden(of.values)}" for one, of in zip(found, heads, strict=True)]
    return _drawn(found, [of.values for of in heads], COEFFICIENT, captions)


def meaning(explanation: Explanation, aim: str) -> str:
    """What the colours mean where red supports the aim."""
    method = METHODS[explanation.method]
    things = "words" if explanation.example.grid is None else "patches"
    if not method.explains_output:
        return f"the darker the {things}, the larger"
    return f"red {things} support {aim}, blue ones oppose it"


def _drawn(found: Sequence[Explanation], rows: Sequence[Tensor], unit: str, captions: Sequence[str]) -> list[str]:
    """Words or patches, their legend and their caption, without special tokens, whose scores would hide the others."""
    shown = [one.shown(values) for one, values in zip(found, rows, strict=True)]
    scale, drawn = Scale.of(torch.cat([values for _, values in shown])), []
    for one, (tokens, values), caption in zip(found, shown, captions, strict=True):
        block = TextBlock("", list(map(shortened, tokens)), as_array(values), unit, scale)
        cells = _words(block) if one.example.grid is None else _patches(block, one.example)
        text = f"<p>{escape(caption[0].upper() + caption[1:])}</p>"
        drawn.append(f"{cells}{_legend(block.bar)}{text}")
    return drawn


def _words(block: TextBlock) -> str:
    """The words with their numbers."""
    words = [
        f'<span class="word" style="background: {background}; color: {color}"><b>{escape(word)}</b>{number}</span>'
        for word, number, background, color in block.words
    ]
    return f'<div class="words">{"".join(words)}</div>'


def _patches(block: TextBlock, example: Example) -> str:
    """The image in grey with a coloured cell over each patch; strong patches carry their sign."""
    rows, columns = example.grid
    cells = []
    for (token, number, background, _), score in zip(block.words, block.scores, strict=True):
        strength = abs(score) / block.scale.limit
        mark = ("+" if score > 0 else "−") if block.scale.has_signs and strength >= MARKED_SHARE else ""
        opacity = round(0.85 * strength**0.5, 3)  # 0 shows the image
        cells.append(
            f'<span class="patch" title="{token}: {number}">'
            f'<i style="background: {background}; opacity: {opacity}"></i><b>{mark}</b></span>'
        )
    pixels = as_array(example.inputs["pixel_values"])[0].mean(0)
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
    explained.plot().savefig(png, format="png", dpi=110)
    return f'<img alt="alignment" src="{_data(png)}"><p>{escape(explained.what)}.</p>'


def _data(png: io.BytesIO) -> str:
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode('ascii')}"


def _legend(bar: Bar) -> str:
    """The colours from one end of the scale to the other."""
    return (
        f'<div class="legend">{bar.start}<i style="background: linear-gradient(to right, {bar.gradient})"></i>'
        f"{bar.end} <span>{escape(bar.unit)}</span></div>"
    )


def grids(found: Sequence[Explanation], asked: str) -> list[str]:
    """For each model a button per layer and head in the colour of its contribution, on one scale.

    Args:
        asked: the method asked for. Where it takes all heads together, the chosen head was explained by another one.
    """
    scale = Scale.of(np.concatenate([as_array(one.heads).ravel() for one in found]))
    return [_heads(one, scale, asked) for one in found]


def _heads(explanation: Explanation, scale: Scale, asked: str) -> str:
    if explanation.heads.numel() == 1:
        return "<p>This model has a single attention head.</p>"
    chosen = explanation.head is not None
    unit = 10.0 ** (math.floor(math.log10(1.006 * scale.limit)) - 1)  # numbers of two digits fit on a phone
    grid = f"<h4>Layers and heads</h4>{_grid(explanation, scale, unit)}{_legend(Bar.of(scale, 'a · ∂y/∂a'))}"
    text = f"A cell sums the contributions of a head over all tokens, in units of {unit:g}. " + (
        "" if chosen else "Click one to see the coefficients and contributions of that head."
    )
    if chosen:
        text += f"Layer {explanation.layer}, head {explanation.head} alone is shown above"
        text += f" by {explanation.method}; {asked} takes all heads together. " if asked != explanation.method else ". "
        text += f'<button type="button" class="every" value="[]">Show all heads by {asked}</button>'
    return f"{grid}<p>{text}</p>"


def _grid(explanation: Explanation, scale: Scale, unit: float) -> str:
    """The buttons under labels of heads and beside labels of layers, the bottom layer at the bottom."""
    table = as_array(explanation.heads)
    count = table.shape[1]
    cells = ["<span></span>", *(f'<span class="head">head {head}</span>' for head in range(count))]
    for layer, values in reversed(list(enumerate(table))):
        cells.append(f"<span>layer {layer}</span>")
        for head, value in enumerate(values):
            pressed = (explanation.layer, explanation.head) == (layer, head)
            name, color = f"layer {layer}, head {head}", scale.color(value)
            style = f"background: {to_hex(color)}; color: {text_color_on(color)}"
            cells.append(
                f'<button type="button" value="{[] if pressed else [layer, head]}" aria-label="{name}" '
                f'aria-pressed="{str(pressed).lower()}" title="{name}: {scale.number(value)}" '
                f'style="{style}">{scale.number(round(value / unit))}</button>'
            )
    turned = " turned" if count > TURNED else ""
    return f'<div class="grid{turned}" style="--heads: {count}">{"".join(cells)}</div>'
