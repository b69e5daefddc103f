"""The page and its events: a model and its counterpart, an input, and both explanations side by side."""

import base64
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from models import (
    DEFAULT,
    EXAMPLES,
    LONGEST,
    NO_IMAGE,
    PREDICTED,
    attention_of,
    examples_of,
    explanations,
    loaded,
    offered_models,
    read_text,
    takes_images,
    verdict,
    with_counterpart,
)
from tools import add_tools

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.explain.alignment import Alignment
from hf_bidir.explain.draw.figures import Scale
from hf_bidir.explain.draw.page import fragment_of, scale_of
from hf_bidir.explain.request import default_method, methods_of
from hf_bidir.explain.result import Explanation

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
an input: you see what **supports the prediction (red)** and what **opposes it (blue)**, for the signed model and its
softmax counterpart, on one colour scale."""
# a click on a button of an HTML component arrives in Python as its select event
SELECT = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) trigger("select", { index: JSON.parse(button.value), value: button.textContent });
});"""
ALL_HEADS = ""  # in place of a layer and a head
OUTPUTS = ("message", "side 0", "side 1")
CHOICES = ("text", "image", "examples", "method", "target", "head")
GIVEN = ("model", "method", "target", "head", "text", "image")
PICKED = ("text", "image", "target", *OUTPUTS)  # what an example changes
Properties = dict[str, dict[str, Any]]  # component properties by name
SHOWN, GONE = {"visible": True}, {"visible": False}


def page(checkpoints: list[str]) -> gr.Blocks:
    """The whole page. It opens with the first model's first example, already explained."""
    models = offered_models(checkpoints)
    first = opened(checkpoints, models[0][1])
    parts: dict[str, Any] = {}
    html = {"apply_default_css": False, "js_on_load": SELECT}
    with gr.Blocks(title="Signed attention", analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                parts["model"] = gr.Dropdown(models, value=models[0][1], label="Model")
                parts["text"] = gr.Textbox(label="Text", lines=3, max_length=LONGEST, **first["text"])
                parts["image"] = gr.Image(
                    label="Image", type="filepath", format="png", image_mode=None, height=200,
                    sources=["upload", "clipboard"], buttons=[], elem_classes="image-input", **first["image"],
                )  # fmt: skip
                go = gr.Button("Explain", variant="primary")
                parts["examples"] = gr.HTML(**html, **first["examples"])
                with gr.Accordion("Method, target and head", open=False):
                    parts["method"] = gr.Dropdown(label="Method", **first["method"])
                    parts["target"] = gr.Dropdown(label="Explain", **first["target"])
                    parts["head"] = gr.Dropdown(label="Head", **first["head"])
            with gr.Column(scale=3, min_width=300):
                parts["message"] = gr.HTML(elem_classes="message", **first["message"])
                with gr.Row():
                    for side in OUTPUTS[1:]:
                        parts[side] = gr.HTML(elem_classes="card", **html, **first[side])
        _connect(checkpoints, go, parts)
        add_tools(checkpoints)
    return blocks


def _connect(checkpoints: list[str], go: gr.Button, parts: dict[str, Any]) -> None:
    """The events after a choice. All share one queue, so the page ends with the result of the last one."""

    def explain_again(checkpoint, method, target, head, text, image):
        text_or_image = image if takes_images(checkpoint) else text
        return _updates(explained(checkpoints, checkpoint, method, target, head, text_or_image), OUTPUTS)

    def open_model(checkpoint):
        try:
            new = opened(checkpoints, checkpoint)
        except (ValueError, OSError, ImportError) as error:
            new = refused(str(error))
        return _updates(new, (*CHOICES, *OUTPUTS))

    def pick_example(event: gr.SelectData, checkpoint, method, head):
        example = examples_of(checkpoint)[event.index]
        new = explained(checkpoints, checkpoint, method, PREDICTED, head, example)
        box = "image" if takes_images(checkpoint) else "text"
        return _updates(new | {box: {"value": example}, "target": {"value": PREDICTED}}, PICKED)

    def listen(events, function, inputs, outputs) -> None:
        gr.on(
            events, function, [parts[name] for name in inputs], [parts[name] for name in outputs],
            concurrency_id="page", trigger_mode="always_last", show_progress="minimal",
            show_progress_on=[parts[name] for name in OUTPUTS[1:]], api_visibility="private",
        )  # fmt: skip

    changes = [parts[name].input for name in ("method", "target", "head")]
    listen([go.click, parts["text"].submit, parts["image"].upload, *changes], explain_again, GIVEN, OUTPUTS)
    # not its input event, which fires again when the box loses focus and would discard text typed since
    listen([parts["model"].change], open_model, ("model",), (*CHOICES, *OUTPUTS))
    listen([parts["examples"].select], pick_example, ("model", "method", "head"), PICKED)


def _updates(new: Properties, names: tuple[str, ...]) -> list:
    """The new properties in the order of an event's outputs."""
    return [gr.update(**new.get(name, {})) for name in names]


def opened(checkpoints: list[str], checkpoint: str) -> Properties:
    """The choices on the page for a checkpoint, and the explanation of its first example."""
    model, images = loaded(checkpoint)[0], takes_images(checkpoint)
    examples = examples_of(checkpoint)
    shown, gone = {"value": examples[0]} | SHOWN, {"value": None} | GONE
    labels = list(model.config.id2label.values()) if "Classification" in type(model).__name__ else []
    words_of_vocabulary = kind_of(model).names_tokens and not model.config.is_encoder_decoder
    heads = _heads(model.config)
    choices = {
        "text": gone if images else shown,
        "image": shown if images else gone,
        "examples": {"value": _buttons(examples, images)},
        "method": {"choices": [(f"default ({default_method(model)})", DEFAULT), *methods_of(model)], "value": DEFAULT},
        "target": {
            "choices": [PREDICTED, *labels],
            "value": PREDICTED,
            "allow_custom_value": words_of_vocabulary,
            "info": "or a word of the vocabulary" if words_of_vocabulary else "",
            "visible": bool(labels) or words_of_vocabulary,
        },
        "head": {"choices": heads, "value": ALL_HEADS, "visible": len(heads) > 2},
    }
    return choices | explained(checkpoints, checkpoint, DEFAULT, PREDICTED, ALL_HEADS, examples[0])


def _heads(config: Any) -> list[tuple[str, str]]:
    """The choices of a layer and a head, and both as numbers."""
    choices = [("all heads", ALL_HEADS)]
    for layer in range(getattr(config, "num_hidden_layers", 1)):
        for head in range(getattr(config, "num_attention_heads", 1)):
            choices.append((f"layer {layer}, head {head}", f"{layer} {head}"))
    return choices


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
    checkpoints: list[str], checkpoint: str, method: str, target: str, head: str, text_or_image: str | None
) -> Properties:
    """The explanation of a text or an image file by a checkpoint and its counterpart, or one line with the error."""
    names = with_counterpart(checkpoint, checkpoints)
    images = takes_images(checkpoint)
    if images and not text_or_image:
        return refused(NO_IMAGE)
    try:
        if not images:  # also limits requests that bypass the page
            text_or_image = read_text(text_or_image or "")
        layer_and_head = [int(index) for index in head.split()]
        results, classes = explanations(names, text_or_image, method, target, layer_and_head)
    except (ValueError, OSError) as error:
        reason = str(error)
        if images:  # the folder of an upload is not the visitor's
            reason = reason.replace(text_or_image, Path(text_or_image).name)
        return refused(reason)
    return dict.fromkeys(OUTPUTS, GONE) | _sides(names, results, verdict(classes))


def _sides(names: list[str], results: list[Explanation | Alignment], agreement: str) -> Properties:
    """Each model's explanation under its name, on a common colour scale."""
    scale = _common_scale(results)
    sides = {}
    for side, name, result in zip(OUTPUTS[1:], names, results, strict=False):
        subtitle = escape(Path(name).name)
        title = f"<h3>{attention_of(name)}<small>{subtitle}</small></h3><p>{escape(agreement)}</p>"
        sides[side] = {"value": title + fragment_of([result], scale=scale)} | SHOWN
    return sides


def _common_scale(results: list[Explanation | Alignment]) -> Scale | None:
    """One colour scale for the scores of both models."""
    explained = [result for result in results if isinstance(result, Explanation)]
    if not explained:
        return None
    scores = torch.cat([result.listing.shown for result in explained])
    return scale_of(explained[0], scores)


def refused(reason: str) -> Properties:
    """One line in place of the explanations."""
    message = {"value": f"<p>{escape(reason)}</p>"} | SHOWN
    return dict.fromkeys(OUTPUTS, GONE) | {"message": message}
