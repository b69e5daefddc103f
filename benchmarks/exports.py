"""Does an exported graph compute what the model computes, and is onnxruntime as fast as torch?

BERT, RoBERTa, ViT, DINOv2 and GPT-2 with random weights, six layers of width 384, TanhMax and softmax (λ = 0): the
largest difference of an output as `hf-bidir export` measures it, and the time of a forward pass in onnxruntime as a
ratio to torch in eager mode, on a CPU, interleaved, with the same number of threads.

    python benchmarks/exports.py
    python benchmarks/exports.py --models BERT --batch 1
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import onnxruntime
import torch
import transformers
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from benchmarks.measure import interleaved_medians, options_of, write_table
from hf_bidir import signed
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.deploy.graph import export_checkpoint

SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
WIDE = SHAPE | {"intermediate_size": 1536}
MODELS = {
    "BERT": ("BertForSequenceClassification", "BertConfig", WIDE),
    "RoBERTa": ("RobertaForSequenceClassification", "RobertaConfig", WIDE),
    "ViT": ("ViTForImageClassification", "ViTConfig", WIDE),
    "DINOv2": ("Dinov2ForImageClassification", "Dinov2Config", SHAPE | {"image_size": 224}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 384, "n_layer": 6, "n_head": 6}),
}
MASSES = {"softmax": 0.0, "TanhMax": 1.0}


def main() -> None:
    models = {"nargs": "+", "choices": MODELS, "default": [*MODELS]}
    options = options_of(__doc__, "exports", models=models, batch=8, length=128, repeats=9)
    rows = []
    for name in tqdm(options.models, unit="model"):
        for attention, mass in MASSES.items():
            rows.append([name, attention, *measured(name, mass, options)])
    notes = (
        f"Six layers of width 384, fp32, batches of {options.batch}, texts of {options.length} tokens, images of 224 "
        f"pixels; onnxruntime {onnxruntime.__version__}, {torch.get_num_threads()} threads each; medians of "
        f"{options.repeats} interleaved runs. A ratio below 1 means that onnxruntime is faster."
    )
    header = ["model", "attention", "largest difference", "torch, s", "onnxruntime, s", "ratio"]
    write_table(options.output, "Exported graphs", notes, header, rows, "cpu")


def measured(name: str, mass: float, options: argparse.Namespace) -> list[str]:
    head, config, shape = MODELS[name]
    torch.manual_seed(0)
    stock = getattr(transformers, head)(getattr(transformers, config)(**shape))
    with tempfile.TemporaryDirectory() as folder:
        signed(stock, negative_mass=mass).save_pretrained(Path(folder, "model"))
        difference = export_checkpoint(Path(folder, "model"), Path(folder, "graph"))
        model, session = open_checkpoint(Path(folder, "model")).model(), session_of(Path(folder, "graph/model.onnx"))
        model.config.use_cache = False  # the graph has no cache either
        inputs = inputs_of(model, options)
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        medians = interleaved_medians(
            {"torch": partial(forward, model, inputs), "onnxruntime": lambda: session.run(["logits"], arrays)},
            options.repeats,
        )
    ratio = medians["onnxruntime"] / medians["torch"]
    return [f"{difference:.1e}", *(f"{seconds:.3f}" for seconds in medians.values()), f"{ratio:.2f}"]


def session_of(graph: Path) -> onnxruntime.InferenceSession:
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(graph, threads, providers=["CPUExecutionProvider"])


def inputs_of(model: PreTrainedModel, options: argparse.Namespace) -> dict[str, Tensor]:
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(options.batch, 3, 224, 224)}
    shape = (options.batch, options.length)
    return {"input_ids": torch.randint(3, 30000, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}


@torch.inference_mode()
def forward(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    model(**inputs)


if __name__ == "__main__":
    main()
