"""`hf-bidir demo`: train a small model on synthetic texts and explain its predictions."""

import json
from pathlib import Path

from hf_bidir.explain import contributions, load_checkpoint, read_text, text_heatmap
from hf_bidir.explain.record import record_coefficients
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.folder import RESULTS, is_finished
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification

SETTINGS = {
    **{"embedding_size": 32, "hidden_size": 16, "max_length": 12, "num_train_epochs": 5, "learning_rate": 1e-2},
    **{"per_device_train_batch_size": 32, "logging_steps": 0.2},
}


def text_demo(folder: Path, attn_activation: str = "tanhmax", seed: int = 0) -> str:
    """Train on the small synthetic set of the TanhMax paper and draw the scores of one text of each class.

    Args:
        folder: output folder; a finished run in it is reused.
        attn_activation: activation of the model.
        seed: seed of the initial weights.

    Returns:
        A printable summary: the test accuracy, and the coefficient and contribution of every polar word.
    """
    splits, run = SETS["small"].split(), folder / "run"
    if not is_finished(run):
        files = {f"{name}_file": file for name, file in write_splits(splits, folder / "data").items()}
        chosen = {"attn_activation": attn_activation, "seed": seed, "output_dir": run}
        recurrent_classification(SETTINGS | files | chosen)
    accuracy = json.loads((run / RESULTS).read_text(encoding="utf-8"))["test_accuracy"]
    lines = [f"Test accuracy of {attn_activation} on {len(splits['test']):,} texts: {accuracy:.4f}", ""]
    model, tokenizer = load_checkpoint(run)
    for label, name in enumerate(splits["test"].features["label"].names):
        text = next(row["text"] for row in splits["test"] if row["label"] == label)
        example = read_text(tokenizer, text, model.config.max_position_embeddings)
        coefficients = record_coefficients(model, example.inputs)[1][0][0, 0, 0].detach()
        added = contributions(model, example.inputs, target="positive")[0].sum((0, 1))
        picture = folder / f"{name}.png"
        units = {"coefficient": "a", "contribution to positive": "a · ∂y/∂a"}
        scores = dict(zip(units, (coefficients, added), strict=True))
        text_heatmap(
            example.tokens, scores, unit=units, caption="signs of coefficients may be swapped all at once", path=picture
        )
        lines.append(f"A {name} text ({picture}):")
        for word, coefficient, contribution in zip(example.tokens, coefficients, added, strict=True):
            if not word.startswith("word"):
                lines.append(
                    f"  {word:<8} coefficient {coefficient:+.3f}, contribution to positive {contribution:+.3f}"
                )
    return "\n".join(lines)
