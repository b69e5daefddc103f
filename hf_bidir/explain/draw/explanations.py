"""Explanations and alignments as figures, as a page, and as a folder with both."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.colors import Scale
from hf_bidir.explain.draw.figures import UNNUMBERED_SHARE, alignment_grid, image_heatmap, layer_head_grid
from hf_bidir.explain.draw.page import Content, TextBlock, png_of, rendered
from hf_bidir.explain.draw.photo import photo_heatmap
from hf_bidir.explain.draw.text import check_scores, text_heatmap
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Alignment, Explanation

SMOOTH = 10  # rows of patches from which an image is drawn as a photograph under a smooth map
COEFFICIENT = "a"  # unit of a coefficient
FIGURES = ("coefficients", "scores", "rollout-flow", "heads", "alignment")
AS_TEXT = ("coefficients", "scores")  # figures of a text that a page has as HTML
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html


def draw(explanation: Explanation, methods: list[str]) -> Figure:
    """Draw the text once per method, or the image, without special tokens."""
    known = {explanation.method: explanation.scores} | explanation.traced
    scores = {name: explanation.shown(known[name])[1] for name in methods}
    units = {name: METHODS[name].unit for name in methods}
    if methods == [explanation.method]:
        hidden, reading = " ".join([explanation.hidden(), *explanation.notes]), _reading(explanation)
        limit = explanation.scale().limit
    else:  # rollout and flow, which have different units
        scores = {name: values / values.abs().max().clamp_min(1e-12) for name, values in scores.items()}
        units, hidden, limit = dict.fromkeys(methods, "share of the largest"), "", 1.0
        same = "each is divided by its largest score, so all are on one colour scale, 0 to 1"
        reading = f"How to read: {METHODS[methods[0]].how_to_read}; {same}."
    captions = _sentence("; ".join(explanation.caption(name) for name in methods))
    caption = " ".join(filter(None, [captions, hidden, explanation.explained, reading]))
    return _drawn(explanation, scores, units, caption, limit)


def _drawn(
    explanation: Explanation, rows: dict[str, Tensor], units: dict[str, str], caption: str, limit: float | None = None
) -> Figure:
    """The text with one or several rows of scores by name, or the image beside them."""
    example = explanation.example
    if example.grid is None:
        words, _ = explanation.shown(explanation.scores)
        return text_heatmap(words, rows, unit=units, caption=caption, limit=limit)
    maps = {name: values.unflatten(0, example.grid) for name, values in rows.items()}
    if example.photo is not None and example.grid[0] >= SMOOTH:
        return photo_heatmap(example.photo, maps, units=units, caption=caption, with_photo=True, limit=limit)
    grids = torch.stack(list(maps.values()))
    grids = torch.cat([torch.zeros_like(grids[:1]), grids])  # the first panel shows the image alone
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    titles, unit = [f"the image in grey, {images.shape[3]} x {images.shape[2]}", *rows], next(iter(units.values()))
    figure: Any = image_heatmap(images, grids, titles=titles, unit=unit, caption=caption, limit=limit)
    return figure


def _sentence(text: str, end: str = ".") -> str:
    return f"{text[0].upper()}{text[1:]}{end}"


def _reading(result: Explanation | Alignment) -> str:
    """How to read the scores, of an alignment the first ones, with their colour scale."""
    if isinstance(result, Alignment):
        unit, rows = next(iter(result.scores.items()))
        how, scale = result.how_to_read, Scale.of(rows, limit=result.limit(unit)).sentence("all rows")
    else:
        how, scale = METHODS[result.method].how_to_read, result.scale().sentence("all scores")
    return f"How to read: {how}; {scale}."


def _headings(result: Explanation | Alignment) -> dict[str, str]:
    """The headings of the figures by names of `FIGURES`."""
    if isinstance(result, Alignment):
        return {"alignment": "Rows: {}s. Columns: {}s.".format(*result.axes)}
    headings = {} if result.coefficients is None else {"coefficients": result.coefficients.heading}
    headings["scores"] = _sentence(result.caption(result.method), end="")
    if result.traced:
        headings["rollout-flow"] = " and ".join(result.traced).capitalize()
    if result.heads is not None and result.heads.numel() > 1:
        headings["heads"] = "Contribution of each layer and head"
    return headings


def figures_of(result: Explanation | Alignment) -> dict[str, tuple[str, Figure]]:
    return {name: (heading, _figure(result, name)) for name, heading in _headings(result).items()}


def _figure(result: Explanation | Alignment, name: str) -> Figure:
    if isinstance(result, Alignment):
        captions = [_sentence(result.what), f"{result.explained.rstrip('.')}.", *result.notes, _reading(result)]
        limits = {unit: result.limit(unit) for unit in result.scores}
        caption = " ".join(captions)
        return alignment_grid(
            result.rows, result.source, result.scores, limits=limits, axes=result.axes, caption=caption
        )
    if name == "coefficients" and (of := result.coefficients) is not None:
        row = {f"layer {of.layer}, head {of.head}": result.shown(of.values)[1]}
        caption = " ".join([f"{of.heading}.", of.caption, result.hidden(of.values), result.explained])
        return _drawn(result, row, dict.fromkeys(row, COEFFICIENT), caption)
    if name == "heads" and result.heads is not None:
        scale = Scale.of(result.heads).sentence("all heads")
        reading = f"How to read: {METHODS['contributions'].how_to_read}; {scale}."
        numbers = f"A cell without a number is closer to 0 than {UNNUMBERED_SHARE:.0%} of the largest."
        caption = f"Contributions, summed over all tokens. {result.explained} {reading} {numbers}"
        return layer_head_grid(result.heads, unit="a · ∂y/∂a", caption=caption)
    return draw(result, [result.method] if name == "scores" else list(result.traced))


def page_of(result: Explanation | Alignment, pictures: Mapping[str, bytes] | None = None) -> str:
    if pictures is None:
        pictures = {name: png_of(figure) for name, (_, figure) in figures_of(result).items()}
    blocks, headings = _blocks(result), _headings(result)
    drawn = {heading: pictures[name] for name, heading in headings.items() if name not in AS_TEXT or not blocks}
    content = Content(result.explained, result.notes, _caption(result), blocks, drawn)
    return rendered("page.html", content=content)


def fragment_of(results: Sequence[Explanation | Alignment], more: str = "") -> str:
    """The scores as HTML for a notebook; how to read them is said once for several results."""
    reading = ""
    if len(results) > 1:
        meanings = dict.fromkeys(METHODS[one.method].how_to_read for one in results if isinstance(one, Explanation))
        reading = f"How to read: {'; '.join(meanings)}. Each has a colour scale of its own."
    return rendered(
        "fragment.html", contents=[_content(one, not reading) for one in results], reading=reading, more=more
    )


def _content(result: Explanation | Alignment, with_reading: bool) -> Content:
    """The part of a result that a notebook shows."""
    blocks, drawn = _blocks(result), {}
    if not blocks:  # an image
        drawn = {head: png_of(_figure(result, name)) for name, head in _headings(result).items() if name in AS_TEXT}
    caption = " ".join([result.explained, _caption(result, with_reading)])
    return Content("", result.notes, caption, blocks, drawn)


def _caption(result: Explanation | Alignment, with_reading: bool = True) -> str:
    reading = _reading(result) if with_reading else ""
    if isinstance(result, Alignment):
        return f"{_sentence(result.what)} {reading}"
    return " ".join(filter(None, [result.hidden(), result.sums(), reading]))


def _blocks(result: Explanation | Alignment) -> list[TextBlock]:
    """The texts with their scores, those of a generated token below each other; none for an image."""
    if isinstance(result, Alignment):
        return list(_rows(result))
    if result.example.grid is not None:
        return []
    method, of = METHODS[result.method], result.coefficients
    heading, scale = _headings(result)["scores"], result.scale()
    blocks = [_block(heading, *result.shown(result.scores), method.unit, scale)]
    if of is None:
        return blocks
    words, values = result.shown(of.values)
    caption = f"{of.caption} {result.hidden(of.values)}"
    scale = Scale.of(values, has_signs=bool((of.values < 0).any()))
    return [_block(of.heading, words, values, COEFFICIENT, scale, caption=caption), *blocks]


def _rows(result: Alignment) -> Iterator[TextBlock]:
    """A text for each generated token and unit, the unit that ranks last, below the attention."""
    scales = {unit: Scale.of(rows, limit=result.limit(unit)) for unit, rows in result.scores.items()}
    whole, several = result.first_length == len(result.source), len(scales) > 1
    for step, word in enumerate(result.rows):
        length = result.first_length + (0 if whole else step)
        heading = f"→ {word}"
        for unit, scale in reversed(scales.items()):
            row = result.scores[unit][step, :length]
            yield _block(heading, result.source[:length], row, unit, scale, label=unit if several else "")
            heading = ""


def _block(heading: str, tokens: Sequence[str], scores: Tensor, unit: str, scale: Scale, **more: str) -> TextBlock:
    return TextBlock(heading, tokens, check_scores(tokens, {heading: scores})[heading], unit, scale, **more)


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
