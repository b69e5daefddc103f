"""What does a sign add to attention? One sentence under softmax and under TanhMax: the README's first picture.

    python -m research.paper.signed_attention                             # draws the picture
    python -m research.paper.signed_attention --train-file train.parquet  # also orients the heads, writes the table

The models are model_cards/sst2-rnn-softmax and sst2-rnn-tanhmax: one query attends to the word embeddings, in one
layer, so the picture shows all coefficients of the model. The sentence is the example of every text card in
this repository; it was fixed before this picture was made.

The overall sign of a TanhMax head is arbitrary. With --train-file it is oriented on those texts: coefficients are
multiplied by g = sign Σ |a| u, where u = ∂y/∂a and y is the logit of "positive" minus that of "negative". The
committed checkpoint has g = 1 on the 6,920 training sentences of SST-2, so without the file its coefficients are drawn
unchanged. The picture goes to docs/signed-attention.png, the table to runs/.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.measure import ROOT, write_table
from hf_bidir.common.files import save_figure
from hf_bidir.explain import load_checkpoint, read_text, token_scores
from hf_bidir.explain.draw.figures import Scale, text_color_on
from hf_bidir.explain.forward import record_coefficients
from hf_bidir.finetune.data.sources import read_table
from research.paper.measures import Classifier
from research.runs import command_line

SENTENCE = "a charming film with a weak ending"
POSITIVE = "positive"
HEADINGS = {
    "softmax": "softmax: every word is added",
    "tanhmax": "TanhMax: a word is added (+) or subtracted (−)",
}
WIDTH, HEIGHT, DPI = 9.0, 3.3, 120  # inches
BOX, GAP = 1.12, 0.07  # inches


class Row(NamedTuple):
    """One model on the sentence: words, oriented coefficients and contributions to "positive" `[words]`."""

    words: list[str]
    coefficients: np.ndarray
    contributions: np.ndarray
    prediction: str
    probability: float
    orientation_share: float | None


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--train-file", type=Path, help="training texts that orient the heads, with a column text")
    parser.add_argument("--sentence", default=SENTENCE)
    parser.add_argument("--cards", type=Path, default=ROOT / "model_cards", help="holds sst2-rnn-{softmax,tanhmax}")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/signed-attention.png")
    parser.add_argument("--output", type=Path, default=ROOT / "runs/signed_attention.md")
    options = parser.parse_args()
    texts = read_table(str(options.train_file))["text"][:] if options.train_file else None
    rows = {name: explain(options.cards / f"sst2-rnn-{name}", options.sentence, texts) for name in HEADINGS}
    save_figure(draw(rows), options.picture, DPI, facecolor="white")
    if texts is not None:
        write_results(rows, options)


def explain(folder: Path, sentence: str, texts: list[str] | None) -> Row:
    model, tokenizer = load_checkpoint(folder)
    model.requires_grad_(False)
    sign, share = Classifier(model, tokenizer).orientation(texts) if texts else (1.0, None)
    sign = sign if model.config.attn_activation == "tanhmax" else 1.0  # softmax coefficients are already positive
    example = read_text(tokenizer, sentence, model.config.max_position_embeddings)
    ((attended,),) = record_coefficients(model, example.inputs)[1]  # of one layer and one text
    supported = token_scores(model, example.inputs, "contributions", POSITIVE)[0]
    rows = (attended[0, 0], supported)  # of one head and one query
    coefficients, contributions = (example.by_token(row.detach()).numpy() for row in rows)
    probabilities = model(**example.inputs).logits[0].softmax(-1)
    prediction = model.config.id2label[probabilities.argmax().item()]
    return Row(example.tokens, sign * coefficients, contributions, prediction, probabilities.max().item(), share)


def draw(rows: dict[str, Row]) -> Figure:
    """The sentence once per model, coefficients as colours on one scale and as numbers."""
    limit = max(np.abs(row.coefficients).max() for row in rows.values())
    figure = Figure(figsize=(WIDTH, HEIGHT))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    panel.axis("off")
    scale = Scale.of(np.array([-limit, limit]))
    for (name, row), top in zip(rows.items(), (HEIGHT - 0.1, HEIGHT - 1.45), strict=True):
        left = (WIDTH - len(row.words) * (BOX + GAP) + GAP) / 2
        centred = {"va": "center", "ha": "center", "parse_math": False}
        panel.text(left, top - 0.2, HEADINGS[name], fontsize=14, fontweight="bold", va="center")
        probability = f"predicts {row.prediction} ({row.probability:.2f})"
        panel.text(WIDTH - left, top - 0.2, probability, fontsize=11, color="0.35", va="center", ha="right")
        for index, (word, value) in enumerate(zip(row.words, row.coefficients, strict=True)):
            x, color = left + index * (BOX + GAP), scale.color(value)
            box = {"facecolor": color, "edgecolor": "0.75", "linewidth": 0.8}
            panel.add_patch(Rectangle((x, top - 0.9), BOX, 0.48, **box))
            panel.text(x + BOX / 2, top - 0.66, word, fontsize=15, color=text_color_on(color), **centred)
            number = f"{value:+.2f}".replace("-", "−") if row.coefficients.min() < 0 else f"{value:.2f}"
            panel.text(x + BOX / 2, top - 1.03, number, fontsize=12, **centred)
    bar = figure.add_axes((0.3, 0.5 / HEIGHT, 0.4, 0.12 / HEIGHT))
    scale.bar(figure, "", cax=bar, orientation="horizontal")
    bar.tick_params(labelsize=11)
    bar.set_xlabel("attention coefficient", fontsize=11, labelpad=1)
    return figure


def write_results(rows: dict[str, Row], options: argparse.Namespace) -> None:
    words = next(iter(rows.values())).words
    lines = [
        [word, *(f"{values[index]:+.3f}" for row in rows.values() for values in (row.coefficients, row.contributions))]
        for index, word in enumerate(words)
    ]
    facts = "; ".join(
        f"{name} predicts {row.prediction} ({row.probability:.2f}), orientation share {row.orientation_share:.3f}"
        for name, row in rows.items()
    )
    notes = (
        f'"{options.sentence}", the example of every text card; model_cards/sst2-rnn-softmax and sst2-rnn-tanhmax. '
        "a: attention coefficient; a·u: its contribution to the logit of positive. Orientation share: the part of "
        "Σ |a u| over the training texts in which u has the sign of the orientation; 1 if every + supports positive, "
        f"0.5 if signs carry no information. {facts}. Contributions have signs in both models and need no orientation."
    )
    header = ["word", "softmax a", "softmax a·u", "TanhMax a", "TanhMax a·u"]
    write_table(options.output, "What a sign adds: one sentence", notes, header, lines, "cpu")


if __name__ == "__main__":
    main()
