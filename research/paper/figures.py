"""Figures of the first seeds: coefficients of words by polarity, and explanations over images."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from hf_bidir.explain import load_checkpoint, token_scores
from hf_bidir.explain.draw.figures import COLORS, Scale, as_array, overlay
from hf_bidir.explain.inputs.image import patch_grid
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from research import save_figure
from research.paper.data import sample
from research.paper.experiments import Experiment
from research.paper.measures import NEUTRAL_GRADE, TRAINING_TEXTS, Classifier
from research.synthetic import SETS

POLAR_FROM = 0.5  # minimum mean distance from the neutral grade
SHOWN = ("softmax", "tanhmax")
IMAGES, OVERLAYS = 6, ("contributions", "rollout")
POLARITIES = {0: ("neutral", "0.7", "."), 1: ("positive", COLORS(0.95), "+"), -1: ("negative", COLORS(0.05), "_")}


def draw(
    experiment: Experiment, runs: Mapping[str, Path], files: Mapping[str, Path], graded: Path | None, folder: Path
) -> None:
    """Save NAME-polarity.png or NAME-overlays.png of the models in `runs`, by variant, if the experiment has one."""
    runs = {variant: runs[variant] for variant in SHOWN}
    if experiment.kind == "images":
        save_figure(overlays(runs, files["test"]), folder / f"{experiment.name}-overlays.png", dpi=90)
    elif not experiment.deep and (polarity := polarity_of_words(experiment, graded)):
        words = {name: words_of(run, files) for name, run in runs.items()}
        save_figure(scatter(experiment.title, words, polarity), folder / f"{experiment.name}-polarity.png", dpi=90)


def polarity_of_words(experiment: Experiment, graded: Path | None) -> dict[str, int]:
    """1 or -1 for every polar word, by construction or by people; other words are neutral. Empty if unknown.

    `graded` is a file with the columns `tokens` and `token_labels`, 0 to 4, or None.
    """
    if experiment.synthetic:
        words = SETS[experiment.synthetic].words()
        return {word: 1 if word.startswith("pos") else -1 for word in words if not word.startswith("word")}
    if graded is None:
        return {}
    grades = defaultdict(list)
    for row in read_table(str(graded)):
        for word, label in zip(row["tokens"], row["token_labels"], strict=True):
            grades[word.lower()].append(label - NEUTRAL_GRADE)
    means = {word: np.mean(values) for word, values in grades.items()}
    return {word: int(np.sign(mean)) for word, mean in means.items() if abs(mean) >= POLAR_FROM}


def words_of(run: Path, files: Mapping[str, Path]) -> pd.DataFrame:
    """The mean score and oriented coefficient of every word of the test texts."""
    model, tokenizer = load_checkpoint(run)
    train, test = (read_table(str(files[split])) for split in ("train", "test"))
    classifier = Classifier(model.requires_grad_(False), tokenizer)
    sign, _ = classifier.orientation(sample(train, TRAINING_TEXTS)["text"][:])
    words = replace(classifier, sign=sign).words(test["text"][:])
    return words.drop(index=tokenizer.all_special_tokens, errors="ignore").groupby(level=0).mean()


def scatter(title: str, models: Mapping[str, pd.DataFrame], polarity: Mapping[str, int]) -> Figure:
    """Draw each word at its mean score and its mean oriented coefficient, softmax beside TanhMax."""
    figure = Figure(figsize=(5 * len(models), 3.6), layout="constrained")
    for panel, (variant, words) in zip(figure.subplots(1, len(models)), models.items(), strict=True):
        signs = np.array([polarity.get(word, 0) for word in words.index])
        for sign, (kind, color, marker) in POLARITIES.items():
            shown = words[signs == sign]
            panel.scatter(shown["score"], shown["a"], s=25, color=color, marker=marker, label=f"{kind} words")
        panel.axhline(0, color="black", linewidth=0.5)
        panel.set(title=f"{title}, {variant}", xlabel="mean score", ylabel="mean oriented coefficient, g · a")
        panel.legend(fontsize=7)
    return figure


def overlays(runs: Mapping[str, Path], test: Path) -> Figure:
    """Draw explanations over the first test images, a row per model and method, each image on its own scale."""
    examples = list(read_table(str(test)).select(range(IMAGES)))
    figure = Figure(figsize=(1.6 * IMAGES + 1.2, 2.4 * len(runs) * len(OVERLAYS)), layout="constrained")
    rows = iter(figure.subfigures(len(runs) * len(OVERLAYS), 1, squeeze=False)[:, 0])
    for variant, run in runs.items():
        model, processor = load_checkpoint(run)
        pixels = ImageCollator(processor)(examples)["pixel_values"]
        patches = torch.Size(patch_grid(model, pixels))
        predicted, names = model(pixel_values=pixels).logits.argmax(-1), model.config.id2label
        titles = []
        for guess, example in zip(predicted.tolist(), examples, strict=True):
            right = guess == example["label"]
            titles.append(names[guess] if right else f"{names[guess]}\n(true: {names[example['label']]})")
        for method in OVERLAYS:
            scores = token_scores(model, {"pixel_values": pixels}, method, predicted).detach()
            grids = scores[:, -patches.numel() :].unflatten(1, patches)
            row = next(rows)
            row.suptitle(f"{variant}: {method}; predicted class, and the true one where it differs", fontsize=9)
            # scores of different images differ by orders of magnitude: on one scale most would look blank
            grids = as_array(grids / grids.abs().amax((1, 2), keepdim=True).clamp_min(1e-30))
            scale, panels = Scale.of(grids), row.subplots(1, IMAGES)
            for panel, image, grid, title in zip(panels, pixels.mean(1).numpy(), grids, titles, strict=True):
                overlay(panel, image, grid, scale)
                panel.set_title(title, fontsize=9)
            scale.draw(row, "share of the\nimage's largest", ax=list(panels), shrink=0.9)
    return figure
