"""What does signed attention cost in a training step? TanhMax relative to the stock softmax model, interleaved.

A step is zero_grad, forward with loss, backward and AdamW, on random data: BERT-base (batch 8, length 128), ViT-base
(batch 8, 197 tokens), and small shapes (6 layers of width 384) of RoBERTa, ModernBERT and DINOv2, each against the
stock model of transformers on its default backend (sdpa).

    python benchmarks/training_step.py
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch
import transformers
from transformers import PreTrainedModel

from benchmarks.measure import interleaved_medians, options_of, write_table
from hf_bidir import signed

SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


def main() -> None:
    options = options_of(__doc__, "training_step", on_device=True, repeats=7, batch=8, length=128, layers=12)
    rows = []
    for name, stock in cases(options):
        batch = {field: tensor.to(options.device) for field, tensor in batch_of(stock, options).items()}
        models = {"stock softmax": stock, "TanhMax": signed(copy.deepcopy(stock))}
        steps = {
            label: training_step_of(model.train().to(options.device), batch, options) for label, model in models.items()
        }
        medians = interleaved_medians(steps, options.repeats, warm_up=2)
        softmax, tanhmax = medians["stock softmax"], medians["TanhMax"]
        rows.append([name, f"{tanhmax / softmax:.3f}", f"{softmax:.3g}", f"{tanhmax:.3g}"])
        print(rows[-1], flush=True)
    precision = "fp32 weights, bf16 by autocast" if options.dtype == "bfloat16" else "fp32"
    notes = (
        f"Batch {options.batch}, base shapes with {options.layers} layers, {precision}, medians of "
        f"{options.repeats} interleaved steps (zero_grad, forward, backward, AdamW). The ratio is over the stock model "
        "on sdpa."
    )
    header = ["model", "ratio", "stock softmax, s", "TanhMax, s"]
    write_table(options.output, "A whole training step", notes, header, rows, options.device)


def cases(options) -> Iterator[tuple[str, PreTrainedModel]]:
    """Stock models; BERT with its default dropout of coefficients, and without (where torch has a fused kernel)."""
    base = {"num_hidden_layers": options.layers}
    for dropout in (0.1, 0.0):
        config = transformers.BertConfig(**base, attention_probs_dropout_prob=dropout)
        name = f"BERT-base, length {options.length}, attention dropout {dropout}"
        yield name, transformers.BertForSequenceClassification(config)
    yield "ViT-base, 197 tokens", transformers.ViTForImageClassification(transformers.ViTConfig(**base))
    for family in ("Roberta", "ModernBert"):
        config = getattr(transformers, f"{family}Config")(**SMALL)
        model = getattr(transformers, f"{family}ForSequenceClassification")(config)
        yield f"{family} small, length {options.length}", model
    dino = {name: value for name, value in SMALL.items() if name != "intermediate_size"} | {"image_size": 224}
    yield "DINOv2 small, 257 tokens", transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**dino))


def batch_of(model: PreTrainedModel, options) -> dict[str, torch.Tensor]:
    """Random inputs and labels; a decoder learns the tokens themselves."""
    labels = {"labels": torch.randint(2, (options.batch,))}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(options.batch, 3, 224, 224), **labels}
    shape = (options.batch, options.length)
    tokens = torch.randint(3, model.config.vocab_size, shape)
    labels = {"labels": tokens} if model.can_generate() else labels
    return {"input_ids": tokens, "attention_mask": torch.ones(shape, dtype=torch.long), **labels}


def training_step_of(model: PreTrainedModel, batch: dict[str, torch.Tensor], options) -> partial:
    autocast = torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=options.device == "cuda")
    return partial(training_step, model, optimizer, batch, autocast)


def training_step(model, optimizer, batch, autocast) -> None:
    optimizer.zero_grad()
    with autocast:
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    main()
