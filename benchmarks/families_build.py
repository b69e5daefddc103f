"""A tiny random model of any model type of transformers: its class, a small config and weights.

Sizes are found by the names of the config's fields, in the configs of its parts too. Every width becomes 64 and every
layer has 4 heads of 16, so that all divisibility constraints hold. If that does not build or run, only depth, experts
and vocabularies are reduced (`shallow`).
"""

import importlib
import inspect
import math
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel

from benchmarks.families_inputs import EXCEPTIONS
from hf_bidir.modeling.compat import stock_heads

WIDTH, HEADS, HEAD_DIM, VOCABULARY = 64, 4, 16, 160
GENERATIVE = (
    "CausalLM", "Seq2SeqLM", "ImageTextToText", "MultimodalLM", "SpeechSeq2Seq", "Vision2Seq", "TextToWaveform",
)  # fmt: skip
SHRINKS = ("tiny", "images")  # images of the default size
# full field name -> a size, or a function of the default; the first match counts
SHALLOW: list[tuple[str, Any]] = [
    (r"(.*_)?(vocab_size|vocabulary_size)(_per_layer_input)?", lambda size: min(size, VOCABULARY)),
    (r"(num_hidden_|(num_)?(encoder|decoder|text|speech_encoder|t2u_(en|de)coder)_(num_)?(hidden_)?|num_|n_)?layers?"
     r"|(.*_)?(num_layers|num_hidden_layers|depth|hidden_layers|decoder_layers|encoder_layers)"
     r"|n_layer|[lxr]_layers|num_self_attends_per_block|num_blocks", 2),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|zero_expert_num|num_moe_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|num_selected_experts", lambda size: min(size, 2)),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"first_k_dense_replace", lambda size: min(size, 1)),
    (r"max_source_positions", 64),
    (r"num_queries", 12),
    (r"(.*_)?(max_position_embeddings|n_positions|max_seq_len|n_ctx|context_length)", lambda size: min(size, 256)),
]  # fmt: skip
TINY = [
    (r"(.*_)?(head_dim|d_kv|kv_channels|dim_head|d_head|attention_head_dim|rotary_dim)", HEAD_DIM),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|d_inner|mlp_dim|n_inner|ffn_hidden_size|dim_feedforward|feedforward_dim"
     r"|dff|dim_ff|intermediate_dim)(_mlp)?", 2 * WIDTH),
    (r"(.*_)?(num_attention_heads|attention_heads|num_heads|n_heads?|num_(self|cross)_attention_heads)", HEADS),
    (r"(q_lora_rank|kv_lora_rank)", 32),
    (r"(index_topk|sliding_window)", 16),
    (r"mm_tokens_per_image", 4),
    (r"num_kv_shared_layers", 0),
    (r"hidden_size_per_layer_input", 8),
    (r"(.*_)?(hidden_size|hidden_dim|d_model|embed_dim|n_embd|embedding_size|emb_dim|embedding_dim)", WIDTH),
    (r"(dim|hidden_size_global|word_embed_proj_dim|bottleneck_size|d_embed|dim_model|output_channels)", WIDTH),
    (r"(.*_)?(projection_dim|projection_size|proj_dim)", WIDTH),
    (r"post_conv_in_channels", WIDTH),
    (r"num_pos_feats", WIDTH // 2),
]  # fmt: skip
WHERE_NONE = {"head_dim": HEAD_DIM, "num_experts_per_tok": 2, "vocab_size": VOCABULARY, "prediction_length": 4}
FIXED: dict[str, dict[str, Any]] = EXCEPTIONS["configs"]
# Swin v2 and Swin2SR add 16 * sigmoid(x) to scores: near 0, the negative part of signed attention vanishes.
POSITIVE_BIASES = "continuous_position_bias_mlp.2.weight"
SIZES_OF_TEXT = re.compile(r".*(vocab|position|token|length|_id|_index|sampling|rate).*")


def model_class(model_type: str) -> type[PreTrainedModel] | None:
    """The class of a model type: that of AutoModel, or of the first head, or one with its config."""
    heads = stock_heads(model_type)
    names = [heads[auto] for auto in ("AutoModel", *heads) if auto in heads] + _own_classes(CONFIG_MAPPING[model_type])
    classes = (getattr(transformers, name, None) for name in names)
    return next((each for each in classes if isinstance(each, type) and issubclass(each, PreTrainedModel)), None)


def generative_class(model_type: str) -> type[PreTrainedModel] | None:
    """The class of a model type that generates text, or None."""
    heads = stock_heads(model_type)
    classes = (getattr(transformers, heads.get(f"AutoModelFor{task}", ""), None) for task in GENERATIVE)
    return next((each for each in classes if each is not None and each.can_generate()), None)


def _own_classes(config_class: type[PretrainedConfig]) -> list[str]:
    """The names of the model classes in the module of a config class that use it, shortest first."""
    try:
        module = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return []
    classes = {name: each for name, each in vars(module).items() if isinstance(each, type)}
    return sorted(
        (
            name
            for name, each in classes.items()
            if issubclass(each, PreTrainedModel) and each.config_class is config_class
            if not name.endswith("PreTrainedModel")
        ),
        key=len,
    )


def tiny_config(config_class: type[PretrainedConfig], shrink: str = "tiny") -> PretrainedConfig:
    """The default config of a class with small sizes, and small configs of its parts; `shrink` is one of `SHRINKS`."""
    return _shrunk(_default(config_class), shrink)


def _default(config_class: type[PretrainedConfig]) -> PretrainedConfig:
    try:
        return config_class()
    except Exception:  # some fields need values that differ from their defaults
        return config_class(**FIXED.get(config_class.model_type, {}))


def _shrunk(default: PretrainedConfig, shrink: str) -> PretrainedConfig:
    config_class, fixed = type(default), FIXED.get(default.model_type, {})
    fixed = fixed | FIXED.get(getattr(default, "architecture", ""), {})  # of timm
    rules = SHALLOW if "decoder_in_channels" in vars(default) else SHALLOW + TINY  # widths of several levels, in lists
    changed: dict[str, Any] = {}
    for name, value in vars(default).items():
        if name in fixed:
            continue
        if isinstance(value, PretrainedConfig):
            changed[name] = _shrunk(value, shrink)
        elif isinstance(value, int) and not isinstance(value, bool):
            changed[name] = _small(name, value, rules)
        elif value is None and name in WHERE_NONE:
            changed[name] = WHERE_NONE[name]
    _stages(default, changed)
    _key_heads(default, changed)
    if {"qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"} <= set(changed):
        changed["qk_head_dim"] = changed["qk_nope_head_dim"] + changed["qk_rope_head_dim"]
    _follow_widths(default, changed)
    _layer_kinds(default, changed)
    _token_ids(default, changed)
    _rotary(default, changed)
    if shrink == "tiny":
        _image_sizes(default, changed)
    known = set(inspect.signature(config_class.__init__).parameters) | {"out_indices", "out_features"}
    fresh = _default(config_class)
    by_parent = {
        n: v for n, v in vars(default).items() if _set_by_parent(fresh, n, v) and (n in known or isinstance(v, bool))
    }
    return config_class(**by_parent | {name: value for name, value in changed.items() if name in known} | fixed)


def _stages(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Models with stages keep their widths and get one or two layers per stage; backbones output their last layers."""
    stages = next(
        (n for n in ("depths", "num_heads", "hidden_sizes") if isinstance(vars(default).get(n), list | tuple)), None
    )
    if stages:
        for name in ("embed_dim", "hidden_size", "num_layers", "num_hidden_layers"):
            changed.pop(name, None)
        if stages == "depths":
            changed["depths"] = type(default.depths)(min(depth, 2) for depth in default.depths)
    outs = vars(default).get("_out_indices")
    if outs and "num_hidden_layers" in changed and len(default.stage_names) == default.num_hidden_layers + 1:
        changed["num_hidden_layers"] = max(2, len(outs))
        changed["out_indices"] = list(range(changed["num_hidden_layers"] + 1))[-len(outs) :]
    elif outs:
        name = "out_features" if hasattr(default, "_out_features") else "out_indices"
        changed[name] = list(getattr(default, name))


def _set_by_parent(fresh: PretrainedConfig, name: str, value: Any) -> bool:
    """Whether a parent config changed this value from the default."""
    plain = isinstance(value, bool | int | float | str | list | tuple | dict)
    return plain and not name.startswith("_") and vars(fresh).get(name) != value


def _image_sizes(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Image sizes of four by four patches, or slightly more."""
    size, patch = vars(default).get("image_size"), vars(default).get("patch_size") or 16
    patch = max(patch) if isinstance(patch, list | tuple) else patch
    if size and isinstance(patch, int):
        small = patch * max(4, math.ceil(64 / patch))
        changed["image_size"] = type(size)([small] * len(size)) if isinstance(size, list | tuple) else min(size, small)


def _small(name: str, value: int, rules: list) -> int:
    for pattern, size in rules:
        if value > 0 and re.fullmatch(pattern, name):
            return size(value) if callable(size) else min(size, value)
    return value


def _key_heads(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Key heads stay equal to the heads, stay one, or become half of the heads."""
    for name in [n for n in changed if re.fullmatch(r"(.*_)?(num_key_value_heads|num_kv_heads|n_kv_heads?)", n)]:
        counts = (n for n in changed if n.endswith(("num_attention_heads", "n_heads", "num_heads")))
        heads = next((n for n in counts if n.split("_")[0] == name.split("_")[0]), None)
        if heads and changed[heads] != vars(default)[heads] and (size := vars(default)[name]) > 1:
            changed[name] = changed[heads] if size == vars(default)[heads] else max(1, changed[heads] // 2)


def _follow_widths(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Change other fields that had the value of a changed width in the same way."""
    widths = {vars(default)[name] for name, value in changed.items() if isinstance(value, int) and value == WIDTH}
    for name, value in changed.items():
        if isinstance(value, int) and value >= 128 and value in widths and not SIZES_OF_TEXT.fullmatch(name):
            changed[name] = WIDTH


def _layer_kinds(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Each kind of layer once and at least two layers, if the config lists them; other per-layer lists are cut."""
    layers = next((n for n in ("num_hidden_layers", "num_layers", "n_layer") if n in changed), None)
    if layers is None:
        return
    before = vars(default)[layers]
    lists = {n: v for n, v in vars(default).items() if isinstance(v, list | tuple) and len(v) == before}
    lists.pop("stage_names", None)
    kinds = next((v for n, v in lists.items() if n in ("layer_types", "layers_block_type")), [])
    first = [list(kinds).index(kind) for kind in dict.fromkeys(kinds)]
    first += [index for index in range(before) if index not in first][: max(0, changed[layers] - len(first))]
    changed[layers] = len(first)
    changed.update({name: type(value)(value[index] for index in sorted(first)) for name, value in lists.items()})


def _token_ids(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Special tokens beyond the small vocabulary get ids at its end, one per name, the same in every config."""
    for name, value in vars(default).items():
        if not re.fullmatch(r".*(token|tokens|bos|eos|start|end|pad)(_id|_index|_ids)|.*_id", name):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value >= 100:
            changed[name] = VOCABULARY - 1 - sum(map(ord, re.sub("index$", "id", name))) % 50
        elif isinstance(value, list | tuple) and any(isinstance(x, int) and x >= 100 for x in value):
            changed[name] = type(value)(VOCABULARY - 1 - index for index in range(len(value)))


def _rotary(default: PretrainedConfig, changed: dict[str, Any]) -> None:
    """Scale sections of rotary positions, from the config or else from the code, in proportion."""
    rope = vars(default).get("rope_parameters")
    if not isinstance(rope, dict) or not (sections := rope.get("mrope_section") or _default_sections(type(default))):
        return
    heads, width = (changed.get(n) for n in ("num_attention_heads", "hidden_size"))
    head_dim = changed.get("head_dim") or (width // heads if heads and width else HEAD_DIM)
    half = int(head_dim * (factor := rope.get("partial_rotary_factor", 1.0))) // 2
    if half < len(sections):
        half, factor = head_dim // 4, 0.5
    small = [max(1, size * half // sum(sections)) for size in sections]
    small[0] += half - sum(small)
    changed["rope_parameters"] = (
        rope | {"mrope_section": small} | ({"partial_rotary_factor": factor} if factor != 1 else {})
    )


@lru_cache
def _default_sections(config_class: type[PretrainedConfig]) -> list[int] | None:
    spec = find_spec(config_class.__module__.replace(".configuration_", ".modeling_"))
    source = Path(spec.origin).read_text(encoding="utf-8") if spec else ""
    written = re.search(r'"mrope_section", \[([\d, ]+)\]', source)
    if written is None or "vision" in config_class.__name__.lower():
        return None
    return [int(size) for size in written[1].split(",")]


@torch.no_grad()
def built(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A random model in evaluation mode with non-uniform attention, in which every part has an effect.

    Parameters that are initialised small (0.02, gates of 0) are scaled to magnitudes of trained ones.
    """
    torch.manual_seed(0)
    model = model_class._from_config(config) if hasattr(model_class, "_from_config") else model_class(config)
    modules = list(model.eval().modules())
    kernels = {x for module in modules if isinstance(module, nn.Conv1d) for x in module.parameters()}
    scales = {module.weight for module in modules if isinstance(module, nn.BatchNorm2d)}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        if parameter.dim() < 2:
            wanted, size = 0.2, parameter.abs().mean()
        else:  # the first dimension is that of outputs, or of experts before inputs and outputs
            experts = parameter.dim() == 3 and parameter not in kernels
            fan_in = max(1, parameter.shape[1] if experts else parameter[0].numel())
            wanted, size = 1 / math.sqrt(fan_in), parameter.std()
        if not parameter.isfinite().all() or size < wanted:
            parameter.normal_(0.5 * (parameter in scales), wanted)
        if name.endswith(POSITIVE_BIASES):
            parameter.copy_(-parameter.abs())
    return model
