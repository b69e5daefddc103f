"""Explanations and alignments as figures, as a page, and as a folder with both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.colors import Scale
from hf_bidir.explain.draw.figures import alignment_grid, image_heatmap, layer_head_grid
from hf_bidir.explain.draw.page import TextBlock, png_of, rendered
from hf_bidir.explain.draw.photo import photo_heatmap
from hf_bidir.explain.draw.text import text_blocks, text_heatmap
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Alignment, Explanation

SMOOTH = 10  # rows of patches from which an image is drawn as a photograph under a smooth map
FIGURES = ("scores", "rollout-flow", "heads", "alignment")
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html


def draw(explanation: Explanation, methods: list[str]) -> Figure:
    """Draw the text once per method, or the image, without special tokens."""
    example, known = explanation.example, {explanation.method: explanation.scores} | explanation.traced
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


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _reading(result: Explanation | Alignment) -> str:
    """How to read the scores, of an alignment the first ones, with their colour scale."""
    if isinstance(result, Alignment):
        how, scale = result.how_to_read, Scale.of(next(iter(result.scores.values()))).sentence("all rows")
    else:
        how, scale = METHODS[result.method].how_to_read, result.scale().sentence("all scores")
    return f"How to read: {how}; {scale}."


def _headings(result: Explanation | Alignment) -> dict[str, str]:
    """The headings of the figures by names of `FIGURES`."""
    if isinstance(result, Alignment):
        return {"alignment": "Rows: generated tokens. Columns: source tokens."}
    headings = {"scores": result.caption(result.method)}
    if result.traced:
        headings["rollout-flow"] = " and ".join(result.traced).capitalize()
    if result.heads is not None and result.heads.numel() > 1:
        headings["heads"] = "Contribution of each layer and head"
    return headings


def figures_of(result: Explanation | Alignment) -> dict[str, tuple[str, Figure]]:
    return {name: (heading, _figure(result, name)) for name, heading in _headings(result).items()}


def _figure(result: Explanation | Alignment, name: str) -> Figure:
    if isinstance(result, Alignment):
        caption = f"{_sentence(result.what)} {result.explained.rstrip('.')}. {_reading(result)}"
        return alignment_grid(result.rows, result.source, result.scores, caption=caption)
    if name == "heads" and result.heads is not None:
        scale = Scale.of(result.heads).sentence("all heads")
        reading = f"How to read: {METHODS['contributions'].how_to_read}; {scale}."
        caption = f"Contributions, summed over all tokens. {result.explained} {reading}"
        return layer_head_grid(result.heads, unit="a · ∂y/∂a", caption=caption)
    return draw(result, [result.method] if name == "scores" else list(result.traced))


def page_of(result: Explanation | Alignment, pictures: Mapping[str, bytes] | None = None) -> str:
    if pictures is None:
        pictures = {name: png_of(figure) for name, (_, figure) in figures_of(result).items()}
    blocks, headings = _blocks(result), _headings(result)
    drawn = {heading: pictures[name] for name, heading in headings.items() if name != "scores" or not blocks}
    return rendered("page.html", title=result.explained, blocks=blocks, pictures=drawn, caption=_caption(result))


def fragment_of(result: Explanation | Alignment) -> str:
    """The scores as HTML for a notebook."""
    blocks, drawn = _blocks(result), {}
    if isinstance(result, Explanation) and not blocks:  # an image
        drawn = {result.caption(result.method): png_of(result.plot())}
    return rendered(
        "fragment.html", blocks=blocks, pictures=drawn, caption=" ".join([result.explained, _caption(result)])
    )


def _caption(result: Explanation | Alignment) -> str:
    if isinstance(result, Alignment):
        return f"{result.what}. {_reading(result)}"
    return " ".join(filter(None, [*result.notes, result.hidden(), result.sums(), _reading(result)]))


def _blocks(result: Explanation | Alignment) -> list[TextBlock]:
    """The texts with their scores, a row for each generated token; none for an image."""
    if isinstance(result, Alignment):
        unit, rows = next(iter(result.scores.items()))
        scale, whole = Scale.of(rows), result.first_length == len(result.source)
        lengths = [result.first_length + (0 if whole else step) for step in range(len(rows))]
        steps = zip(result.rows, rows, lengths, strict=True)
        named = [(f"→ {word}", result.source[:length], row[:length]) for word, row, length in steps]
    elif result.example.grid is None:
        unit, scale = METHODS[result.method].unit, result.scale()
        named = [(result.caption(result.method), *result.shown(result.scores))]
    else:
        return []
    return [
        block
        for heading, tokens, scores in named
        for block in text_blocks(tokens, {heading: scores}, unit, scale.has_signs, scale.limit)
    ]


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
