"""What does a sign add to attention? One sentence under softmax and under TanhMax: the picture of docs/index.md.

    python -m research.paper.signed_attention

The models are model_cards/sst2-rnn-softmax and sst2-rnn-tanhmax: one query attends to the word embeddings, in one
layer, so the picture shows all coefficients of the model. The sentence is the example of every text card in
this repository; it was fixed before this picture was made.

The overall sign of a TanhMax head is arbitrary. Oriented on the 6,920 training sentences of SST-2 (`orientation` of
measures.py), the committed checkpoint keeps its sign, so its coefficients are drawn unchanged.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.measure import ROOT
from hf_bidir.explain import load_checkpoint, read_text
from hf_bidir.explain.draw.figures import text_color_on
from hf_bidir.explain.forward import forward_pass
from research import save_figure
from research.runs import command_line

SENTENCE = "a charming film with a weak ending"
HEADINGS = {
    "softmax": "softmax: every word is added",
    "tanhmax": "TanhMax: a word is added (+) or subtracted (−)",
}
WIDTH, HEIGHT, DPI = 9.0, 3.3, 120  # inches
BOX, GAP = 1.12, 0.07  # inches
COLORS = colormaps["PuOr_r"]  # not those of support and opposition


class Row(NamedTuple):
    """One model on the sentence: words, and coefficients `[words]`."""

    words: list[str]
    coefficients: np.ndarray
    prediction: str
    probability: float


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/signed-attention.png")
    options = parser.parse_args()
    rows = {name: explain(ROOT / f"model_cards/sst2-rnn-{name}") for name in HEADINGS}
    save_figure(draw(rows), options.picture, DPI, facecolor="white")


def explain(folder: Path) -> Row:
    model, tokenizer = load_checkpoint(folder)
    model.requires_grad_(False)
    example = read_text(tokenizer, SENTENCE, model.config.max_position_embeddings)
    ((attended,),) = forward_pass(model, example.inputs).coefficients  # of one layer and one text
    coefficients = example.by_token(attended[0, 0].detach()).numpy()
    probabilities = model(**example.inputs).logits[0].softmax(-1)
    prediction = model.config.id2label[probabilities.argmax().item()]
    return Row(example.tokens, coefficients, prediction, probabilities.max().item())


def draw(rows: dict[str, Row]) -> Figure:
    """The sentence once per model, coefficients as colours on one scale and as numbers."""
    limit = max(np.abs(row.coefficients).max() for row in rows.values())
    figure = Figure(figsize=(WIDTH, HEIGHT))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    panel.axis("off")
    scale = Normalize(-limit, limit)
    centred = {"va": "center", "ha": "center", "parse_math": False}
    for (name, row), top in zip(rows.items(), (HEIGHT - 0.1, HEIGHT - 1.45), strict=True):
        left = (WIDTH - len(row.words) * (BOX + GAP) + GAP) / 2
        panel.text(left, top - 0.2, HEADINGS[name], fontsize=14, fontweight="bold", va="center")
        probability = f"predicts {row.prediction} ({row.probability:.2f})"
        panel.text(WIDTH - left, top - 0.2, probability, fontsize=11, color="0.35", va="center", ha="right")
        for index, (word, value) in enumerate(zip(row.words, row.coefficients, strict=True)):
            x, color = left + index * (BOX + GAP), COLORS(scale(value))
            box = {"facecolor": color, "edgecolor": "0.75", "linewidth": 0.8}
            panel.add_patch(Rectangle((x, top - 0.9), BOX, 0.48, **box))
            panel.text(x + BOX / 2, top - 0.66, word, fontsize=15, color=text_color_on(color), **centred)
            number = f"{value:+.2f}".replace("-", "−") if row.coefficients.min() < 0 else f"{value:.2f}"
            panel.text(x + BOX / 2, top - 1.03, number, fontsize=12, **centred)
    bar = figure.add_axes((0.3, 0.5 / HEIGHT, 0.4, 0.12 / HEIGHT))
    figure.colorbar(ScalarMappable(scale, COLORS), cax=bar, orientation="horizontal")
    bar.tick_params(labelsize=11)
    bar.set_xlabel("attention coefficient", fontsize=11, labelpad=1)
    return figure


if __name__ == "__main__":
    main()
