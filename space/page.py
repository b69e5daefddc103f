"""The page and its events: a model and its counterpart, an input, and both explanations side by side."""

import base64
from collections.abc import Iterable
from html import escape
from importlib.util import find_spec
from pathlib import Path

import gradio as gr
from models import (
    ACTIVATIONS,
    DEFAULT,
    EXAMPLES,
    LONGEST,
    NO_IMAGE,
    NO_TEXT,
    PREDICTED,
    counterpart_of,
    examples_of,
    explanations,
    loaded,
    offered_models,
    takes_head,
    takes_images,
    verdict,
)
from pictures import SELECT, alignment, coefficients, grids, meaning, pictures
from tools import add_tools

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.explain.request import default_method, methods_of
from hf_bidir.explain.result import Alignment, Explanation

HERE = Path(__file__).resolve().parent
LARGEST = "10mb"  # size of an image file
KEPT = 3600  # seconds until an upload is deleted
LAUNCH = {
    "theme": gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),  # none from other servers
    "css_paths": HERE / "style.css",
    "max_file_size": LARGEST,
    "allowed_paths": [str(EXAMPLES)],
    "footer_links": ["gradio", "settings"],
    "mcp_server": find_spec("mcp") is not None,  # serves tools.py
}
INTRODUCTION = """# Signed attention
Softmax attention can only add what it attends to. Signed attention (TanhMax) can also subtract it. Choose a model and
an input: you see what **supports each model's own prediction (red)** and what **opposes it (blue)**, for the signed
model and its softmax counterpart, on one colour scale. Click a head to see it alone, with its coefficients."""
SIDE = ("column", "title", "picture", "heads")  # components of one model
OUTPUTS = ("message", "results", *(f"{part} {side}" for side in (0, 1) for part in SIDE))
CHOICES = ("text", "image", "examples", "method", "target", "chosen")
Properties = dict[str, dict]  # component properties by name
SHOWN, GONE = {"visible": True}, {"visible": False}
HIDDEN = {name: GONE if name.startswith("column") else {"value": ""} for name in OUTPUTS[2:]}


def page(checkpoints: list[str]) -> gr.Blocks:
    """The whole page. It opens with the first model's first example, already explained."""
    models = offered_models(checkpoints)
    first = opened(checkpoints, models[0][1])
    with gr.Blocks(title="Signed attention", analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                model = gr.Dropdown(models, value=models[0][1], label="Model")
                parts = {
                    "text": gr.Textbox(label="Text", lines=3, max_length=LONGEST, **first["text"]),
                    "image": gr.Image(
                        label="Image", type="filepath", format="png", image_mode=None, height=200,
                        sources=["upload", "clipboard"], buttons=[], elem_classes="image-input", **first["image"],
                    ),
                }  # fmt: skip
                go = gr.Button("Explain", variant="primary")
                parts["examples"] = gr.HTML(js_on_load=SELECT, apply_default_css=False, **first["examples"])
                with gr.Accordion("Method and target", open=False):
                    parts["method"] = gr.Dropdown(label="Method", **first["method"])
                    parts["target"] = gr.Dropdown(label="Explain", **first["target"])
            with gr.Column(scale=3, min_width=300):
                parts["message"] = gr.HTML(elem_classes="message", **first["message"])
                with gr.Row(**first["results"]) as parts["results"]:
                    for side in (0, 1):
                        parts |= _side(side, first)
        parts["chosen"] = gr.State(first["chosen"])
        _connect(checkpoints, model, go, parts)
        add_tools(checkpoints)
    return blocks


def _side(side: int, first: Properties) -> dict[str, gr.blocks.Block]:
    """The components of one model."""
    made = {}
    with gr.Column(elem_classes="card", min_width=300, **first[f"column {side}"]) as made[f"column {side}"]:
        for part in SIDE[1:]:
            name = f"{part} {side}"
            made[name] = gr.HTML(js_on_load=SELECT, apply_default_css=False, elem_classes=part, **first[name])
    return made


def _connect(checkpoints: list[str], model: gr.Dropdown, go: gr.Button, parts: dict) -> None:
    """The events after a choice. All share one queue, so the page ends with the result of the last one."""

    def explain_again(checkpoint, method, target, chosen, text, image):
        return _updates(explained(checkpoints, checkpoint, method, target, chosen, text, image), OUTPUTS)

    def open_model(checkpoint):
        try:
            new = opened(checkpoints, checkpoint)
        except (ValueError, OSError, ImportError) as error:
            new = refused(str(error))
        return _updates(new, (*CHOICES, *OUTPUTS))

    def pick_head(event: gr.SelectData, checkpoint, method, target, text, image):
        chosen = event.index or None
        new = explained(checkpoints, checkpoint, method, target, chosen, text, image)
        return _updates(new | {"chosen": chosen}, ("chosen", *OUTPUTS))

    def pick_method(checkpoint, method, target, chosen, text, image):
        chosen = chosen if takes_head(method) else None
        new = explained(checkpoints, checkpoint, method, target, chosen, text, image)
        return _updates(new | {"chosen": chosen}, ("chosen", *OUTPUTS))

    def pick_example(event: gr.SelectData, checkpoint, method, chosen):
        given = "image" if takes_images(checkpoint) else "text"
        example = {given: examples_of(checkpoint)[event.index]}
        shown = explained(checkpoints, checkpoint, method, PREDICTED, chosen, example.get("text"), example.get("image"))
        new = shown | {given: {"value": example[given]}, "target": {"value": PREDICTED}}
        return _updates(new, ("text", "image", "target", *OUTPUTS))

    def listen(events, function, inputs, names) -> None:
        listed = [model if name == "model" else parts[name] for name in inputs]
        outputs = [parts[name] for name in names]
        gr.on(
            events, function, listed, outputs, concurrency_id="page", trigger_mode="always_last",
            show_progress="minimal", show_progress_on=[parts["title 0"], parts["title 1"]], api_visibility="private",
        )  # fmt: skip

    given = ("model", "method", "target", "chosen", "text", "image")
    listen(
        [go.click, parts["text"].submit, parts["image"].upload, parts["target"].input], explain_again, given, OUTPUTS
    )
    listen([parts["method"].input], pick_method, given, ("chosen", *OUTPUTS))
    # not its input event, which fires again when the box loses focus and would discard text typed since
    listen([model.change], open_model, ("model",), (*CHOICES, *OUTPUTS))
    grids = [parts["heads 0"].select, parts["heads 1"].select]
    listen(grids, pick_head, ("model", "method", "target", "text", "image"), ("chosen", *OUTPUTS))
    example = ("model", "method", "chosen")
    listen([parts["examples"].select], pick_example, example, ("text", "image", "target", *OUTPUTS))


def _updates(new: Properties, names: tuple[str, ...]) -> list:
    """The new properties in the order of an event's outputs; the state takes its plain value."""
    return [new.get(name) if name == "chosen" else gr.update(**new.get(name, {})) for name in names]


def opened(checkpoints: list[str], checkpoint: str) -> Properties:
    """The choices on the page for a checkpoint, and the explanation of its first example."""
    model, images = loaded(checkpoint)[0], takes_images(checkpoint)
    examples = examples_of(checkpoint)
    text, image = (None, examples[0]) if images else (examples[0], None)
    labels = list(model.config.id2label.values()) if "Classification" in type(model).__name__ else []
    words_of_vocabulary = kind_of(model).names_tokens and not model.config.is_encoder_decoder
    return {
        "text": {"value": text} | (GONE if images else SHOWN),
        "image": {"value": image} | (SHOWN if images else GONE),
        "examples": {"value": _buttons(examples, images)},
        "method": {"choices": [(f"default ({default_method(model)})", DEFAULT), *methods_of(model)], "value": DEFAULT},
        "target": {
            "choices": [PREDICTED, *labels],
            "value": PREDICTED,
            "allow_custom_value": words_of_vocabulary,
            "info": "or a word of the vocabulary" if words_of_vocabulary else "",
            "visible": bool(labels) or words_of_vocabulary,
        },
        "chosen": None,
    } | explained(checkpoints, checkpoint, DEFAULT, PREDICTED, None, text, image)


def _buttons(examples: list[str], images: bool) -> str:
    """A button per example: the text, or the image as a thumbnail."""
    buttons = []
    for index, example in enumerate(examples):
        shown = escape(example)
        if images:
            data = base64.b64encode(Path(example).read_bytes()).decode("ascii")
            shown = f'<img alt="{escape(Path(example).stem)}" src="data:image/png;base64,{data}">'
        buttons.append(f'<button type="button" value="{index}">{shown}</button>')
    return f'<div class="examples"><span>Examples</span>{"".join(buttons)}</div>'


def explained(
    checkpoints: list[str],
    checkpoint: str,
    method: str,
    target: str,
    chosen: list[int] | None,
    text: str | None,
    image: str | None,
) -> Properties:
    """The explanation by a checkpoint and its counterpart, or one line with the error."""
    other = counterpart_of(checkpoint, checkpoints)
    names = [checkpoint, other] if other else [checkpoint]
    try:
        # also limits requests that bypass the page; with a leading space, a text cannot name a file
        images = takes_images(checkpoint)
        given = image if images else f" {(text or '').strip()[:LONGEST]}"
        if not given or not given.strip():
            return refused(NO_IMAGE if images else NO_TEXT)
        sides = explained_sides(names, given, method, target, chosen)
    except (ValueError, OSError) as error:
        reason = str(error)
        return refused(reason.replace(image, Path(image).name) if image else reason)  # the folder is not the visitor's
    return HIDDEN | {"message": {"value": ""} | GONE, "results": SHOWN} | sides


def explained_sides(names: list[str], given: str, method: str, target: str, chosen: list[int] | None) -> Properties:
    """Each model's explanation, drawn on common scales."""
    found, aims, classes = explanations(names, given, method, target, chosen)
    if isinstance(found[0], Alignment):
        return _properties(_titles(names, found), map(alignment, found), [""] * len(names))
    drawn = pictures(found, list(map(meaning, found, aims)))
    asked = default_method(loaded(names[0])[0]) if method == DEFAULT else method
    return _properties(_titles(names, found, verdict(classes)), _under_coefficients(found, drawn), grids(found, asked))


def _under_coefficients(found: list[Explanation], drawn: list[str]) -> list[str]:
    """The pictures of a chosen or single head, each below the coefficients of that head; others as they are."""
    one = found[0]
    single = one.heads.numel() == 1
    if not (single or one.head is not None):
        return drawn
    pairs = zip(coefficients(found), drawn, strict=True)
    return [f"<h4>Coefficients</h4>{above}<h4>{one.method.capitalize()}</h4>{picture}" for above, picture in pairs]


def refused(reason: str) -> Properties:
    message = {"value": f"<p>{escape(reason)}</p>"} | SHOWN
    return HIDDEN | {"message": message, "results": GONE}


def _titles(names: list[str], found: list[Explanation | Alignment], said_of_both: str = "") -> list[str]:
    """Kind and name of each model, its prediction, and what limits the explanation."""
    titles = []
    for path, one in zip(names, found, strict=True):
        name = Path(path).name
        kind = next((title for activation, title in ACTIVATIONS.items() if activation in name), "Model")
        said = "".join(f"<p>{escape(line)}</p>" for line in (one.explained, said_of_both) if line)
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in getattr(one, "notes", []))
        titles.append(f"<h3>{kind}<small>{escape(name)}</small></h3>{said}{notes}")
    return titles


def _properties(*parts: Iterable[str]) -> Properties:
    """The values of title, picture and heads of each model, which become visible."""
    shown = {}
    for side, values in enumerate(zip(*parts, strict=True)):
        shown |= {f"{part} {side}": {"value": value} for part, value in zip(SIDE[1:], values, strict=True)}
        shown[f"column {side}"] = SHOWN
    return shown
