"""How exact are the implementations? The largest absolute differences of outputs that must be equal, on BERT-base and
ViT-base shapes.

python benchmarks/exactness.py
"""

import copy

import torch
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

from benchmarks.measure import options_of, write_table
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, bidir_attention, signed


def main() -> None:
    options = options_of(__doc__, "exactness")
    torch.manual_seed(0)
    rows = [*softmax_mode(), *implementations(), padding_of_a_batch()]
    table = [[name, f"{difference:.1e}", f"{bound:.0e}"] for name, difference, bound in rows]
    notes = "Largest absolute differences."
    write_table(options.output, "Exactness, fp32", notes, ["compared", "largest difference", "to reach"], table, "cpu")


def softmax_mode():
    """Logits of the stock model beside those of the bidir model with `attn_activation="softmax"`, same weights."""
    cases = {
        "BERT-base": (BertForSequenceClassification(BertConfig()), sentences()),
        "ViT-base": (ViTForImageClassification(ViTConfig()), {"pixel_values": torch.randn(2, 3, 224, 224)}),
    }
    for name, (stock, inputs) in cases.items():
        bidir = signed(copy.deepcopy(stock.eval()), attn_activation="softmax").eval()
        difference = largest([logits(stock, inputs)], [logits(bidir, inputs)])
        yield f"{name} in softmax mode and the stock model, logits", difference, 1e-6


def sentences() -> dict[str, torch.Tensor]:
    keep = (torch.arange(128) < torch.tensor([[128], [80], [31], [5]])).long()
    return {"input_ids": torch.randint(1, 30522, (4, 128)) * keep, "attention_mask": keep}


def implementations():
    """Context and gradients of each implementation beside the eager path's, with padding."""
    inputs = [torch.randn(4, 197, 12, 64).transpose(1, 2).detach().requires_grad_() for _ in range(3)]
    upstream = torch.randn(4, 12, 197, 64)
    keep = (torch.arange(197) < torch.tensor([[197], [120], [50], [3]]))[:, None, None]
    for mass in (1.0, 0.3):
        results = {}
        for name in ("eager", "chunked", "lift"):
            context, _ = bidir_attention(*inputs, keep, negative_mass=mass, implementation=name)
            results[name] = context, *torch.autograd.grad(context, inputs, upstream)
        for name in ("chunked", "lift"):
            compared = f"{name} and eager at negative mass {mass}, context and gradients of query, key and value"
            yield compared, largest(results[name], results["eager"]), 1e-5


def padding_of_a_batch():
    """Logits of padded sentences beside those of each sentence alone."""
    model = BidirBertForSequenceClassification(BidirBertConfig()).eval()
    batch = sentences()
    alone = [
        logits(model, {"input_ids": row[: keep.sum()].unsqueeze(0)})
        for row, keep in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    difference = largest([logits(model, batch)], [torch.cat(alone)])
    return "TanhMax BERT-base, padded batch and single sentences, logits", difference, 1e-5


@torch.no_grad()
def logits(model, inputs) -> torch.Tensor:
    return model(**inputs).logits


def largest(first, second) -> float:
    return max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
