"""`hf-bidir demo`: train a small model on synthetic texts and explain its predictions, without any data."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bidir.cli.app import app, slow_imports

LENGTH = 12  # words
SHAPE: dict[str, Any] = {"embedding_size": 32, "hidden_size": 16}
TRAINING: dict[str, Any] = {
    "num_train_epochs": 5, "learning_rate": 1e-2, "per_device_train_batch_size": 32, "logging_steps": 0.2,
}  # fmt: skip
BOTH_SIGNS = "\nThe coefficients have both signs: the values of some words are added, those of others subtracted."
ONE_SIGN = (
    "\nAll these coefficients have one sign: the values of the words separate the classes here. The signs of "
    "contributions follow the class with any coefficients."
)
SETTINGS = SHAPE | TRAINING | {"max_length": LENGTH}  # as options of training/recurrent_classification.py


@app.command()
def demo(
    attn_activation: Annotated[str, typer.Option(help="Activation: tanhmax, softmax or tanh.")] = "tanhmax",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Output folder; by default runs/demo-text-ACTIVATION-SEED.")
    ] = None,
) -> None:
    """Train a small model on synthetic texts and explain it.

    Two words in every twelve determine the class. Prints and draws the coefficient and contribution of each. Downloads
    nothing.

    \b
    hf-bidir demo
    hf-bidir demo --attn-activation softmax
    """
    with slow_imports("explain", "train"):
        from hf_bidir.finetune.data.synthetic import SETS, write_splits
        from hf_bidir.finetune.record import RESULTS, is_finished

        folder = output or Path(f"runs/demo-text-{attn_activation}-{seed}")
        splits, run = SETS["small"].split(), folder / "run"
        if not is_finished(run):
            _train(write_splits(splits, folder / "data"), run, attn_activation, seed)
        accuracy = json.loads((run / RESULTS).read_text(encoding="utf-8"))["test_accuracy"]
        typer.echo(f"Test accuracy of {attn_activation} on {len(splits['test']):,} texts: {accuracy:.4f}\n")
        signs = set()
        for label, name in enumerate(splits["test"].features["label"].names):
            text = next(row["text"] for row in splits["test"] if row["label"] == label)
            typer.echo(f"A {name} text ({folder / name}.png):")
            for word, coefficient, contribution in _explained(run, text, folder / f"{name}.png"):
                typer.echo(f"  {word:<8} coefficient {coefficient:+.3f}, contribution to positive {contribution:+.3f}")
                signs.add(coefficient > 0)
        typer.echo(BOTH_SIGNS if len(signs) > 1 else ONE_SIGN)


def _explained(run: Path, text: str, picture: Path) -> list[tuple[str, float, float]]:
    """Every polar word with its coefficient and contribution; draws those of all words."""
    from hf_bidir.explain import contributions, load_checkpoint, read_text, text_heatmap
    from hf_bidir.explain.record import record_coefficients

    model, tokenizer = load_checkpoint(run)
    example = read_text(tokenizer, text, LENGTH)
    coefficients = record_coefficients(model, example.inputs)[1][0][0, 0, 0].detach()
    added = contributions(model, example.inputs, target="positive")[0].sum((0, 1))
    units = {"coefficient": "a", "contribution to positive": "a · ∂y/∂a"}
    scores = dict(zip(units, (coefficients, added), strict=True))
    caption = "signs of coefficients may be swapped all at once"
    text_heatmap(example.tokens, scores, unit=units, caption=caption, path=picture)
    rows = zip(example.tokens, coefficients.tolist(), added.tolist(), strict=True)
    return [row for row in rows if not row[0].startswith("word")]


def _train(files: dict[str, Path], folder: Path, attn_activation: str, seed: int) -> None:
    """Train attention over word embeddings, as training/recurrent_classification.py does."""
    from transformers import DataCollatorWithPadding, set_seed

    from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
    from hf_bidir.common.errors import as_input_error
    from hf_bidir.finetune.arguments import RunArguments, TextDataArguments
    from hf_bidir.finetune.data.text_data import read_texts, tokenize
    from hf_bidir.finetune.data.tokenizer import train_words
    from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
    from hf_bidir.finetune.models import label_fields
    from hf_bidir.finetune.run import Run
    from hf_bidir.finetune.trainer import SignedTrainer

    options: dict[str, Any] = {f"{name}_file": str(file) for name, file in files.items()}
    data = TextDataArguments(**options, max_length=LENGTH)
    args = RunArguments(str(folder), seed=seed, **TRAINING)
    args.typed = SETTINGS | {"attn_activation": attn_activation, "seed": seed, "output_dir": str(folder)}
    texts = read_texts(data)
    tokenizer = train_words(texts.train["text"], vocab_size=8000, max_length=LENGTH)
    shape = SHAPE | {"vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, "dropout": 0.5}
    shape |= {"pad_token_id": tokenizer.pad_token_id, "attn_activation": attn_activation}
    with as_input_error():
        config = BidirRnnConfig(**shape, **label_fields(texts.names))
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
