"""Real pretrained models, made signed: does λ = 0 equal stock, and what does λ > 0 cost without healing?

    python -m benchmarks.real_models HuggingFaceTB/SmolLM2-135M-Instruct openai/whisper-base ...

Models are folders or names on the Hub: language models, encoders of texts or images, and Whisper. Measured are λ = 0
against stock in fp32 on a padded batch, and the cost of λ = 0.01 and 1 without training. Each model becomes a row of
results/real_models.csv, and one that has a row is not measured again; `make tables` makes the table.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from pandas import DataFrame
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoProcessor, PreTrainedModel

from benchmarks.measure import RESULTS, ROOT, command_line, run_grid
from benchmarks.runs import markdown
from hf_bidir import signed
from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.layer_hooks import at_tokens

CSV = RESULTS / "real_models.csv"
COLUMNS = [
    "model", "class", "million parameters", "λ = 0 − stock, fp32", "measure", "stock", "λ = 0.01", "λ = 1",
]  # fmt: skip
GREEDY = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
Measure = Callable[[PreTrainedModel], str]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folders or names on the Hub")
    sources = {Path(source).name: source for source in parser.parse_args().models}
    run_grid(CSV, [{"model": name} for name in sources], lambda model: (measured(sources[model]), []))


def table(runs: DataFrame) -> str:
    """One row a model."""
    return markdown(COLUMNS, runs[COLUMNS].fillna("").astype(str).to_numpy().tolist())


def measured(source: str) -> dict[str, Any]:
    """The row of one model."""
    model_class = getattr(transformers, AutoConfig.from_pretrained(source).architectures[0])
    stock = model_class.from_pretrained(source, dtype=torch.float32).eval()
    inputs = batch_of(stock, AutoProcessor.from_pretrained(source))
    model = signed(copy.deepcopy(stock), 0.0)
    label, measure = measure_of(stock, inputs)
    row = {
        "class": type(stock).__name__,
        "million parameters": f"{stock.num_parameters() / 1e6:.1f}",
        "λ = 0 − stock, fp32": difference(outputs_of(model, inputs), outputs_of(stock, inputs)),
        "measure": label,
        "stock": measure(stock),
    }
    for mass in (0.01, 1.0):
        model.config.attn_negative_mass = mass
        row[f"λ = {mass:g}"] = measure(model)
    return row


def batch_of(model: PreTrainedModel, processor: Any) -> dict[str, Tensor]:
    """Eight padded paragraphs of docs/, ten crops of photographs, or four sounds."""
    if model.main_input_name == "pixel_values":
        photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
        crops = [whole.crop((80 * i, 20 * i, 80 * i + 320, 20 * i + 320)) for whole in photographs for i in range(5)]
        return {"pixel_values": processor(crops, return_tensors="pt")["pixel_values"]}
    if model.main_input_name == "input_features":
        features = processor(audio=sounds(), sampling_rate=16000, return_tensors="pt")["input_features"]
        return {"input_features": features, "decoder_input_ids": model.generate(features, **GREEDY)}
    processor.padding_side = "left" if kind_of(model).causal else "right"
    processor.pad_token = processor.pad_token or processor.eos_token
    blocks = [block for page in sorted(ROOT.glob("docs/*.md")) for block in page.read_text("utf-8").split("\n\n")]
    texts = [" ".join(block.split()) for block in blocks if len(block) > 200 and block[0].isalpha()]
    inputs = processor(texts[:8], padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def sounds() -> list[np.ndarray]:
    """Four synthetic sounds of three seconds: harmonics of a falling pitch, with noise."""
    time, noise = np.arange(48000) / 16000, np.random.default_rng(0)
    pitches = [pitch * (1 - 0.1 * time) for pitch in (110, 150, 200, 240)]
    tones = [sum(np.sin(2 * np.pi * n * pitch * time) / n for n in range(1, 8)) for pitch in pitches]
    return [(0.1 * tone + 0.01 * noise.standard_normal(len(time))).astype(np.float32) for tone in tones]


@torch.no_grad()
def outputs_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits or the last hidden state, without padding."""
    outputs = model(**inputs)
    states = outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]
    return at_tokens(states, inputs.get("attention_mask")) if states.dim() == 3 else states


def difference(outputs: Tensor, expected: Tensor) -> str:
    """The largest one, relative to the largest expected number."""
    return f"{((outputs - expected).abs().max() / expected.abs().max()).item():.1e}"


def measure_of(stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[str, Measure]:
    """What is compared, and a function that measures it: perplexity, predictions or embeddings."""
    if kind_of(stock).causal:
        predicted = inputs["attention_mask"][:, :-1] * inputs["attention_mask"][:, 1:] == 1
        labels = inputs["input_ids"][:, 1:][predicted]

        @torch.no_grad()
        def perplexity(model: PreTrainedModel) -> str:
            return f"{F.cross_entropy(model(**inputs).logits[:, :-1][predicted], labels).exp():.3g}"

        return "perplexity", perplexity
    if stock.can_generate():
        predicted = outputs_of(stock, inputs).argmax(-1)
        return (
            "predictions as stock",
            lambda model: f"{(outputs_of(model, inputs).argmax(-1) == predicted).float().mean():.1%}",
        )
    expected = embedded(stock, inputs)
    cosine = "cosine of embeddings to stock"
    return cosine, lambda model: f"{F.cosine_similarity(embedded(model, inputs), expected).mean():.3f}"


@torch.no_grad()
def embedded(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The class token of images, the mean state of texts."""
    states = model(**inputs).last_hidden_state
    if "pixel_values" in inputs:
        return states[:, 0]
    keep = inputs["attention_mask"][..., None]
    return (states * keep).sum(1) / keep.sum(1)


if __name__ == "__main__":
    main()
