"""The loss curve of a run, as a picture."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing


def save_loss_curve(log_history: list[dict], path: Path, title: str = "") -> None:
    """Draw training and validation loss, and validation accuracy (or exact match), over epochs.

    Args:
        log_history: `trainer.state.log_history`.
        path: the PNG to write; the drawing needs no display.
        title: the heading of the picture.
    """
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasAgg(figure)  # rather than pyplot, whose figures are global state
    left, right = figure.subplots(1, 2)
    for axes, key, label in (
        (left, "loss", "training"),
        (left, "eval_loss", "validation"),
        (right, "eval_accuracy", "validation"),
        (right, "eval_exact_match", "validation, exact match"),
    ):
        points: dict[float, float] = {}
        for entry in log_history:
            if key in entry:
                # the evaluation after training is of the best checkpoint, but logged at the last epoch: keep the first
                points.setdefault(entry["epoch"], entry[key])
        if points:
            axes.plot(list(points), list(points.values()), marker="." if len(points) < 30 else None, label=label)
            axes.legend()
    left.set(xlabel="epoch", ylabel="loss")
    right.set(xlabel="epoch", ylabel="accuracy")
    figure.suptitle(title)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
