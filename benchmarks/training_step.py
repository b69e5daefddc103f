"""What does signed attention cost in a whole training step? TanhMax over the stock softmax model, interleaved.

A step is zero_grad, forward with loss, backward and AdamW, on random data: BERT-base (batch 8, length 128) and
ViT-base (batch 8, 197 tokens), each against the stock transformers model on its default backend (sdpa).

    python benchmarks/training_step.py
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from measure import interleaved_medians, write_table
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of BERT")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "training_step.md")
    options = parser.parse_args()
    rows = []
    for name, models, batch in (*bert_cases(options), vit_case(options)):
        batch = {field: tensor.to(options.device) for field, tensor in batch.items()}
        models = {label: model.to(options.device) for label, model in models.items()}
        steps = {label: partial(training_step, model, optimizer(model), batch) for label, model in models.items()}
        medians = interleaved_medians(steps, options.repeats, warm_up=2)
        stock, signed = medians["stock softmax"], medians["TanhMax"]
        rows.append([name, f"{signed / stock:.3f}", f"{stock:.2f}", f"{signed:.2f}"])
        print(rows[-1], flush=True)
    notes = (
        f"Batch {options.batch}, {options.layers} layers, fp32, medians of {options.repeats} interleaved steps "
        "(zero_grad, forward, backward, AdamW). The ratio is TanhMax over the stock softmax model on sdpa."
    )
    header = ["model", "ratio", "stock softmax, s", "TanhMax, s"]
    write_table(options.output, "A whole training step", notes, header, rows, options.device)


def bert_cases(options):
    """BERT-base with its default dropout of 0.1 on the coefficients, and without (where torch has a fused kernel)."""
    batch = {
        "input_ids": torch.randint(1, 30522, (options.batch, options.length)),
        "attention_mask": torch.ones(options.batch, options.length, dtype=torch.long),
        "labels": torch.randint(2, (options.batch,)),
    }
    for dropout in (0.1, 0.0):
        config = {"num_hidden_layers": options.layers, "attention_probs_dropout_prob": dropout}
        models = {
            "stock softmax": BertForSequenceClassification(BertConfig(**config)).train(),
            "TanhMax": BidirBertForSequenceClassification(BidirBertConfig(**config)).train(),
        }
        yield f"BERT-base, length {options.length}, attention dropout {dropout}", models, batch


def vit_case(options):
    batch = {"pixel_values": torch.randn(options.batch, 3, 224, 224), "labels": torch.randint(2, (options.batch,))}
    models = {
        "stock softmax": ViTForImageClassification(ViTConfig(num_hidden_layers=options.layers)).train(),
        "TanhMax": BidirViTForImageClassification(BidirViTConfig(num_hidden_layers=options.layers)).train(),
    }
    return "ViT-base, 197 tokens", models, batch


def optimizer(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


def training_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()


if __name__ == "__main__":
    main()
