"""Explanations as figures, as a page, and as a folder with both."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.colors import Scale
from hf_bidir.explain.draw.figures import alignment_grid, image_heatmap, layer_head_grid
from hf_bidir.explain.draw.page import TextBlock, html_fragment, html_page, png_of
from hf_bidir.explain.draw.photo import photo_heatmap
from hf_bidir.explain.draw.text import text_blocks, text_heatmap
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Explanation

if TYPE_CHECKING:
    from hf_bidir.explain.generation import Alignment

SMOOTH = 10  # rows of patches from which an image is drawn as a photograph under a smooth map
FIGURES = ("scores", "rollout-flow", "heads", "alignment")
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html
ROWS_AND_COLUMNS = "Rows: generated tokens. Columns: source tokens."


def draw(explanation: Explanation, methods: list[str]) -> Figure:
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
    if example.photo is not None and example.grid[0] >= SMOOTH:
        maps = {name: values.unflatten(0, example.grid) for name, values in scores.items()}
        return photo_heatmap(example.photo, maps, units=units, caption=caption, with_photo=True)
    grids = torch.stack([values.unflatten(0, example.grid) for values in scores.values()])
    grids = torch.cat([torch.zeros_like(grids[:1]), grids])  # the first panel shows the image alone
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    titles, unit = [f"the image in grey, {images.shape[3]} x {images.shape[2]}", *methods], units[methods[0]]
    figure: Any = image_heatmap(images, grids, titles=titles, unit=unit, caption=caption, limit=limit)
    return figure


def _headings(explanation: Explanation) -> dict[str, str]:
    """The headings of the figures by names of `FIGURES`."""
    found = {"scores": explanation.caption(explanation.method)}
    if explanation.traced:
        found["rollout-flow"] = " and ".join(explanation.traced).capitalize()
    if explanation.heads is not None and explanation.heads.numel() > 1:
        found["heads"] = "Contribution of each layer and head"
    return found


def figures_of(explanation: Explanation) -> dict[str, tuple[str, Figure]]:
    headings, drawn = _headings(explanation), {"scores": draw(explanation, [explanation.method])}
    if "rollout-flow" in headings:
        drawn["rollout-flow"] = draw(explanation, list(explanation.traced))
    if explanation.heads is not None and "heads" in headings:
        scale = Scale.of(explanation.heads).sentence("all heads")
        reading = f"How to read: {METHODS['contributions'].how_to_read}; {scale}."
        caption = f"Contributions, summed over all tokens. {explanation.explained} {reading}"
        drawn["heads"] = layer_head_grid(explanation.heads, unit="a · ∂y/∂a", caption=caption)
    return {name: (headings[name], figure) for name, figure in drawn.items()}


def page_of(explanation: Explanation, pictures: Mapping[str, bytes] | None = None) -> str:
    if pictures is None:
        pictures = {name: png_of(figure) for name, (_, figure) in figures_of(explanation).items()}
    headings, blocks = _headings(explanation), []
    if explanation.example.grid is None:
        del headings["scores"]
        blocks = _blocks(explanation)
    by_heading = {heading: pictures[name] for name, heading in headings.items()}
    notes = [*explanation.notes, explanation.hidden(), explanation.sums(), explanation.reading()]
    return html_page(explanation.explained, blocks=blocks, pictures=by_heading, caption=" ".join(filter(None, notes)))


def fragment_of(explanation: Explanation) -> str:
    """The scores as HTML for a notebook."""
    notes = [explanation.explained, *explanation.notes, explanation.hidden(), explanation.sums(), explanation.reading()]
    caption = " ".join(filter(None, notes))
    if explanation.example.grid is not None:
        pictures = {explanation.caption(explanation.method): png_of(explanation.plot())}
        return html_fragment(pictures=pictures, caption=caption)
    return html_fragment(blocks=_blocks(explanation), caption=caption)


def _blocks(explanation: Explanation) -> list[TextBlock]:
    tokens, scores = explanation.shown(explanation.scores)
    scale, row = explanation.scale(), {explanation.caption(explanation.method): scores}
    return text_blocks(tokens, row, METHODS[explanation.method].unit, scale.has_signs, scale.limit)


def figures_of_alignment(alignment: "Alignment") -> dict[str, tuple[str, Figure]]:
    what = f"{alignment.what[0].upper()}{alignment.what[1:]}"
    caption = f"{what}. {alignment.explained.rstrip('.')}. {_reading(alignment)}"
    grid = alignment_grid(alignment.rows, alignment.source, alignment.scores, caption=caption)
    return {"alignment": (ROWS_AND_COLUMNS, grid)}


def page_of_alignment(alignment: "Alignment", pictures: Mapping[str, bytes] | None = None) -> str:
    if pictures is None:
        pictures = {name: png_of(figure) for name, (_, figure) in figures_of_alignment(alignment).items()}
    unit, rows = next(iter(alignment.scores.items()))
    source, first, scale, blocks = alignment.source, alignment.first_length, Scale.of(rows), []
    for step, (word, row) in enumerate(zip(alignment.rows, rows, strict=True)):
        length = len(source) if first == len(source) else first + step
        blocks += text_blocks(source[:length], {f"→ {word}": row[:length]}, unit, scale.has_signs, scale.limit)
    caption = f"{alignment.what}. {_reading(alignment)}"
    return html_page(
        alignment.explained, blocks=blocks, pictures={ROWS_AND_COLUMNS: pictures["alignment"]}, caption=caption
    )


def _reading(alignment: "Alignment") -> str:
    """One sentence on how to read the first panel and the page, with their common colour scale."""
    scale = Scale.of(next(iter(alignment.scores.values())))
    return f"How to read: {alignment.how_to_read}; {scale.sentence('all rows')}."


def write_explanation(explanation: "Explanation | Alignment", folder: str | Path) -> list[Path]:
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
