"""The picture of a run's losses."""

from PIL import Image

from hf_bidir.finetune.curves import save_loss_curve

LOSSES = [{"epoch": 0.5, "loss": 2.0}, {"epoch": 1.0, "loss": 1.0}, {"epoch": 1.0, "eval_loss": 1.2}]


def test_a_run_without_accuracy_has_no_empty_panel(tmp_path):
    save_loss_curve(LOSSES, tmp_path / "losses.png")
    save_loss_curve([*LOSSES, {"epoch": 1.0, "eval_accuracy": 0.5}], tmp_path / "both.png")
    widths = [Image.open(tmp_path / name).width for name in ("losses.png", "both.png")]
    assert 2 * widths[0] == widths[1]
