"""`hf-bidir demo`: train a small model on synthetic texts and explain its predictions."""

import json
from pathlib import Path
from typing import Any

from transformers import DataCollatorWithPadding, set_seed

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from hf_bidir.common.errors import as_input_error
from hf_bidir.explain import contributions, load_checkpoint, read_text, text_heatmap
from hf_bidir.explain.record import record_coefficients
from hf_bidir.finetune.arguments import RunArguments, TextDataArguments
from hf_bidir.finetune.data.synthetic import SETS, write_splits
from hf_bidir.finetune.data.text_data import read_texts, tokenize
from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import label_fields
from hf_bidir.finetune.record import RESULTS, is_finished
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer

LENGTH = 12  # words
SHAPE: dict[str, Any] = {"embedding_size": 32, "hidden_size": 16}
TRAINING: dict[str, Any] = {
    "num_train_epochs": 5,
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 32,
    "logging_steps": 0.2,
}
SETTINGS = SHAPE | TRAINING | {"max_length": LENGTH}  # as options of training/recurrent_classification.py


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
        _train(write_splits(splits, folder / "data"), run, attn_activation, seed)
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


def _train(files: dict[str, Path], folder: Path, attn_activation: str, seed: int) -> None:
    """Train attention over word embeddings, as training/recurrent_classification.py does."""
    options: dict[str, Any] = {f"{name}_file": str(file) for name, file in files.items()}
    data = TextDataArguments(**options, max_length=LENGTH)
    args = RunArguments(str(folder), seed=seed, **TRAINING)
    args.typed = SETTINGS | {"attn_activation": attn_activation, "seed": seed, "output_dir": str(folder)}
    texts = read_texts(data)
    tokenizer = train_words(texts.train["text"], vocab_size=8000, max_length=LENGTH)
    with as_input_error():
        config = BidirRnnConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            dropout=0.5,
            attn_activation=attn_activation,
            **SHAPE,
            **label_fields(texts.names),
        )
    set_seed(seed)
    model, texts = BidirRnnForSequenceClassification(config), tokenize(texts, tokenizer, LENGTH)
    run = Run("text-classification", model, texts, data, args)
    run.train(
        SignedTrainer,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=classification_metrics(texts.names),
        preprocess_logits_for_metrics=predicted_classes,
    )
