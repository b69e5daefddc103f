"""See what a checkpoint attends to, for and against, beside its softmax twin.

    make space                                        # the checkpoints of model_cards/ and runs/checkpoints/
    python space/app.py FOLDER_OR_NAME ... --port 7861

On a Space, the variable HF_BIDIR_CHECKPOINTS names them, with blanks between. Where both NAME-tanhmax and NAME-softmax
are there, each is the other's twin.
"""

import argparse
import os
import tempfile
from functools import lru_cache, partial
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from hf_bidir.explain import load_checkpoint
from hf_bidir.explain.methods import METHODS, methods_of
from hf_bidir.explain.readout import names_tokens
from hf_bidir.explain.report import FIGURES, explain_checkpoint
from hf_bidir.finetune.data.image_files import read_digits
from hf_bidir.modeling.signed_layers import signed_layers

ROOT = Path(__file__).resolve().parent.parent
WHERE = ("model_cards", "runs/checkpoints")
TWINS = ("tanhmax", "softmax")
SENTENCE = "a charming film with a weak ending"
LONGEST, LARGEST = 2000, "10mb"  # of a text, in letters, and of an image
KEPT = 3600  # seconds that an upload stays
LOADED = 4  # checkpoints that stay in memory
DEFAULT, PREDICTED, ALL = "contributions", "the answer", "all"
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}  # none from other servers
INTRODUCTION = """# Signed attention
A TanhMax coefficient can be negative: a word or patch can speak **against** an answer as well as for it. Choose a
checkpoint and a method. Contributions need no further care; raw signs (signed-attention, signed-rollout, signed-flow)
mean something only where a checkpoint's heads are oriented."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", help="folders, or names on the Hub")
    parser.add_argument("--port", type=int, help="by default the first free one from 7860 on")
    options = parser.parse_args()
    checkpoints = options.checkpoints or os.environ.get("HF_BIDIR_CHECKPOINTS", "").split() or found_here()
    if not checkpoints:
        parser.error("there is no checkpoint here; name some, or make some with `make checkpoints`")
    theme = gr.themes.Default(**FONTS)
    page(checkpoints).launch(server_port=options.port, theme=theme, max_file_size=LARGEST)


def found_here() -> list[str]:
    """The checkpoints of the repository that have weights, one per name."""
    weights = [file for place in WHERE for file in sorted(ROOT.glob(f"{place}/*/model.safetensors"))]
    found = {file.parent.name: str(file.parent) for file in weights}
    return [
        found[name] for name in sorted(found, key=lambda name: (TWINS[0] not in name, name))
    ]  # the signed ones first


def twin_of(checkpoint: str, checkpoints: list[str]) -> str | None:
    """The checkpoint that differs in the attention alone, by its name, if it is among them."""
    for one, other in (TWINS, TWINS[::-1]):
        head, found, tail = Path(checkpoint).name.rpartition(one)
        if found:
            twins = [name for name in checkpoints if Path(name).name == head + other + tail]
            # of the same owner or folder, where there is a choice
            return next(
                (name for name in twins if Path(name).parent == Path(checkpoint).parent), next(iter(twins), None)
            )
    return None


@lru_cache(LOADED)
def loaded(checkpoint: str) -> tuple[PreTrainedModel, object]:
    return load_checkpoint(checkpoint)


def takes_images(checkpoint: str) -> bool:
    return loaded(checkpoint)[0].main_input_name == "pixel_values"


def page(checkpoints: list[str]) -> gr.Blocks:
    """The whole page, for some checkpoints."""
    names = [(Path(checkpoint).name, checkpoint) for checkpoint in checkpoints]
    with gr.Blocks(title="Signed attention", analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            checkpoint = gr.Dropdown(names, value=checkpoints[0], label="Checkpoint")
            method = gr.Dropdown(list(METHODS), value=DEFAULT, label="Method")
            target = gr.Dropdown([PREDICTED], value=PREDICTED, label="Explain")
            layer = gr.Dropdown([ALL], value=ALL, label="Layer")
            head = gr.Dropdown([ALL], value=ALL, label="Head")
        text = gr.Textbox(label="Text", lines=2, max_length=LONGEST)
        image = gr.Image(label="Image", type="filepath", height=240)
        with gr.Row():
            example = gr.Button("An example")
            go = gr.Button("Explain", variant="primary")
        with gr.Row():
            outputs = [output for _ in range(2) for output in _column()]
        choices = [text, image, method, target, layer, head]
        # always_last: a checkpoint chosen while the page still loads is not left out
        gr.on([blocks.load, checkpoint.change], offered, checkpoint, choices, trigger_mode="always_last")
        # in the browser: from the server, the blanks could come after the next answer and wipe it out
        checkpoint.change(None, None, outputs, js=f"() => Array({len(outputs)}).fill(null)")
        example.click(example_of, checkpoint, [text, image])
        inputs = [checkpoint, method, target, layer, head, text, image]
        gr.on([go.click, text.submit], partial(explained, checkpoints), inputs, outputs)
    return blocks


def _column() -> list[gr.components.Component]:
    """Where one checkpoint's answer goes: words, then a picture each for scores, rollout and flow, and heads."""
    with gr.Column():
        return [
            gr.Textbox(label="Answer", lines=14, interactive=False),
            *(gr.Plot(show_label=False) for _ in FIGURES),
        ]


def offered(checkpoint: str) -> list:
    """What can be chosen and given for a checkpoint."""
    model, images = loaded(checkpoint)[0], takes_images(checkpoint)
    answers = list(model.config.id2label.values()) if "Classification" in type(model).__name__ else []
    layers = signed_layers(model)
    heads = layers[0].config.num_attention_heads
    return [
        gr.Textbox(visible=not images),
        gr.Image(visible=images),
        gr.Dropdown(methods_of(model), value=DEFAULT),
        gr.Dropdown([PREDICTED, *answers], value=PREDICTED, allow_custom_value=names_tokens(model)),
        gr.Dropdown([ALL, *map(str, range(len(layers)))], value=ALL),
        gr.Dropdown([ALL, *map(str, range(heads))], value=ALL),
    ]


def example_of(checkpoint: str) -> tuple[str | None, str | None]:
    """A sentence, or one of the digits that scikit-learn carries."""
    if not takes_images(checkpoint):
        return SENTENCE, None
    return None, _digit()


@lru_cache
def _digit() -> str:
    with tempfile.NamedTemporaryFile(suffix=".png", delete=False) as file:
        read_digits()["test"][0]["image"].save(file)
    return file.name


def explained(
    checkpoints: list[str],
    checkpoint: str,
    method: str,
    target: str,
    layer: str,
    head: str,
    text: str | None,
    image: str | None,
) -> list:
    """Words and pictures for the checkpoint, then for its twin."""
    # the limit is for those who do not come through the page; the blank makes a text never the name of a file
    given = image if takes_images(checkpoint) else f" {(text or '').strip()[:LONGEST]}"
    chosen = {
        "method": method,
        "target": None if target == PREDICTED else target,
        "layer": None if layer == ALL else int(layer),
        "head": None if head == ALL else int(head),
    }
    twin = twin_of(checkpoint, checkpoints)
    beside = (
        _answer(twin, given, chosen)
        if twin
        else [gr.Textbox("It has no twin here.", label="Twin"), *[None] * len(FIGURES)]
    )
    return [*_answer(checkpoint, given, chosen), *beside]


def _answer(checkpoint: str, given: str | None, chosen: dict) -> list[gr.Textbox | Figure | None]:
    label = Path(checkpoint).name
    if given is None or not given.strip():
        return [gr.Textbox("Give a text or an image first, or press An example.", label=label), *[None] * len(FIGURES)]
    try:
        explanation = explain_checkpoint(loaded(checkpoint), given, **chosen)
    except (ValueError, OSError) as error:
        where = str(error).replace(given, Path(given).name)  # a visitor need not know where uploads are kept
        return [gr.Textbox(f"error: {where}", label=label), *[None] * len(FIGURES)]
    figures = explanation.figures()
    shown = [figures[name][1] if name in figures else None for name in FIGURES]
    return [gr.Textbox(explanation.summary(), label=label), *shown]


if __name__ == "__main__":
    main()
