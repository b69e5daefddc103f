"""Figures of run.py: coefficients of trained models, and scores over the length of the source."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from benchmarks.runs import where
from hf_bidir.explain import explain, load_checkpoint, read_text, score_grid
from hf_bidir.explain.forward import forward_pass
from hf_bidir.finetune.data.sources import read_table
from research import save_figure
from research.mechanisms.data import LEVELS
from research.runs import is_finished

DAY, NUMBERS = "the 5th of March 1998", "42 7 93 7 18 60 5 71"
MIXED = "word1109 word310 word1204 pos88 word451 neg68 word294 word349 word776 word261 word959 word1511"
CLASSIFIERS = ("per_token", "feed_forward", "positional_feed_forward", "learned query", "hard per_token", "window")


def draw_coefficients(name: str, run: Path, picture: Path) -> None:
    """The coefficients of one model on one example; `name` is a mechanism, or "sorting"."""
    model, tokenizer = load_checkpoint(run)
    caption = f"{name}: coefficients of TanhMax; their common sign is arbitrary."
    if name not in CLASSIFIERS:
        alignment = explain(model, tokenizer, NUMBERS if name == "sorting" else DAY)
        generated = (" " if name == "sorting" else "").join(token for token in alignment.written if token != "[EOS]")
        target = "5 7 7 18 42 60 71 93" if name == "sorting" else "1998-03-05"
        caption += f" Generated: {generated} ({'correct' if generated == target else f'wrong; correct: {target}'})."
        unit, scores = [*alignment.scores.items()][-1]  # the coefficients
        figure = score_grid(scores, alignment.written, alignment.source, unit=unit, caption=caption)
    else:
        example = read_text(tokenizer, MIXED, model.config.max_position_embeddings)
        layers = forward_pass(model, example.inputs).coefficients
        queries = example.tokens if name == "window" else ["query"]
        figure = score_grid(layers[0][0, 0], queries, example.tokens, unit="coefficient a", caption=caption)
    save_figure(figure, picture, dpi=90)


def draw_pixels(task: str, mechanisms: Sequence[str], runs: Path, picture: Path) -> None:
    """The coefficients of every mechanism and activation on the first test image, if all first seeds are there."""
    folders = {
        (mechanism, activation): runs / task / f"{mechanism}-{activation}-0"
        for activation in ("tanhmax", "softmax")
        for mechanism in mechanisms
    }
    if not all(map(is_finished, folders.values())):
        return
    row = read_table(str(runs / "data" / task / "test.parquet"))[0]
    grey = np.array([int(word.removeprefix("grey")) for word in row["text"].split()])
    side = int(len(grey) ** 0.5)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(2, 1 + len(mechanisms))
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    for panel in panels[:, 0]:
        panel.imshow(grey.reshape(side, side), cmap="gray", vmin=0, vmax=LEVELS)
        panel.set_title("image")
    for panel, ((mechanism, activation), folder) in zip(panels[:, 1:].flat, folders.items(), strict=True):
        model, tokenizer = load_checkpoint(folder)
        example = read_text(tokenizer, row["text"], model.config.max_position_embeddings)
        output, layers, _ = forward_pass(model, example.inputs)
        coefficients = layers[0][0, 0, 0].detach().numpy().reshape(side, side)
        largest = abs(coefficients).max()
        shown = panel.imshow(coefficients, cmap="RdBu_r", vmin=-largest, vmax=largest)
        figure.colorbar(shown, ax=panel, shrink=0.7)
        predicted = output.logits.argmax(-1).item()
        right = "correct" if predicted == row["label"] else "wrong"
        title = f"{activation}, {mechanism}\nprediction {model.config.id2label[predicted]} ({right})"
        panel.set_title(title, fontsize=9)
    figure.supxlabel("coefficient of each pixel; every panel has its own scale, and its common sign is arbitrary")
    save_figure(figure, picture, dpi=90)


def draw_lengths(runs: DataFrame, lengths: Mapping[str, int], picture: Path) -> None:
    """Exact match over the words of the source, with attention and without, mean ± standard deviation over seeds."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    data = dict.fromkeys(task.split("-")[0] for task in lengths)
    for panel, name in zip(figure.subplots(1, len(data), sharey=True), data, strict=True):
        tasks = {task: length for task, length in lengths.items() if task.startswith(name)}
        for activation, label in (("tanhmax", "TanhMax"), ("softmax", "softmax"), ("none", "no attention")):
            scores = [100 * where(runs, task=task, activation=activation)["score"] for task in tasks]
            middle, deviation = [seeds.mean() for seeds in scores], [seeds.std() for seeds in scores]
            panel.errorbar([*tasks.values()], middle, deviation, marker="o", capsize=2, label=label)
        panel.set(title=name, xlabel="words of the source", xticks=[*tasks.values()], ylim=(-3, 103))
    figure.axes[0].set_ylabel("exact match in percent")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    save_figure(figure, picture, dpi=90)
