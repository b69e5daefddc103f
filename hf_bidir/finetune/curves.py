"""The loss curve of a run, as a picture."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hf_bidir.common.files import save_figure


def save_loss_curve(log_history: list[dict], path: Path, title: str = "") -> None:
    """Draw training and validation loss, and validation accuracy (or exact match) if there is any, over epochs.

    Args:
        log_history: `trainer.state.log_history`.
        path: the PNG to write; the drawing needs no display.
        title: the heading of the picture.
    """
    losses = {"loss": "training", "eval_loss": "validation"}
    accuracies = {"eval_accuracy": "validation", "eval_exact_match": "validation, exact match"}
    panels = {"loss": losses, "accuracy": accuracies}
    if not any(accuracies.keys() & entry.keys() for entry in log_history):
        del panels["accuracy"]
    figure = Figure(figsize=(4.5 * len(panels), 3.5), layout="constrained")
    FigureCanvasAgg(figure)  # rather than pyplot, whose figures are global state
    for axes, (name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for key, label in curves.items():
            points: dict[float, float] = {}
            for entry in log_history:
                if key in entry:
                    # the evaluation after training is of the best checkpoint, but logged at the last epoch
                    points.setdefault(entry["epoch"], entry[key])
            if points:
                axes.plot(list(points), list(points.values()), marker="." if len(points) < 30 else None, label=label)
                axes.legend()
        axes.set(xlabel="epoch", ylabel=name)
    figure.suptitle(title)
    save_figure(figure, path, dpi=120)
