"""Converts timm's VisionTransformer to transformers' ViT, if the architectures are equal."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification, ViTImageProcessor, ViTModel

from hf_bidir.common.extras import extra

from .examples import example_inputs, largest_difference, outputs_of, rounding_tolerance
from .module_hooks import evaluation_mode

TIMM_PREFIX = "timm:"
NAMES = {  # parts of the names of weights, and what transformers' checkpoints have in their place
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
    "blocks.": "encoder.layer.",
    "norm1.": "layernorm_before.",
    "norm2.": "layernorm_after.",
    "attn.proj.": "attention.output.dense.",
    "mlp.fc1.": "intermediate.dense.",
    "mlp.fc2.": "output.dense.",
    "norm.": "layernorm.",
    "head.": "classifier.",
}


def read_timm(source: str, weights: str | Path | None) -> nn.Module:
    """Load the model "timm:NAME" with its published weights, or with those of a file; errors name what is missing."""
    with extra("vision"):
        import timm
    name = source.removeprefix(TIMM_PREFIX)
    if weights is not None and not Path(weights).is_file():
        raise FileNotFoundError(f"expected a file of weights at {weights}; there is none.")
    try:
        return timm.create_model(name, pretrained=weights is None, checkpoint_path=str(weights or ""))
    except (RuntimeError, SafetensorError, UnpicklingError, EOFError) as error:
        # an unknown name or tag, weights of another architecture, or an incomplete file
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"timm cannot build {name} with {weights or 'its published weights'}: {reason}") from error


def vit_from_timm(model: nn.Module) -> tuple[PreTrainedModel, ViTImageProcessor]:
    """The same network as a stock transformers ViT, and its preprocessing.

    The model classifies by its class token; without a classifier (`num_classes=0`) the result is a ViTModel.

    Raises:
        ValueError: not the plain ViT of Dosovitskiy et al. 2021, by its class, its weights or its outputs.
    """
    if type(model).__name__ != "VisionTransformer":
        raise ValueError(f"expected a timm VisionTransformer, got {type(model).__name__}.")
    block, classes = model.blocks[0], model.num_classes
    config = ViTConfig(
        hidden_size=model.embed_dim,
        num_hidden_layers=len(model.blocks),
        num_attention_heads=block.attn.num_heads,
        intermediate_size=block.mlp.fc1.out_features,
        layer_norm_eps=block.norm1.eps,
        image_size=list(model.patch_embed.img_size),
        patch_size=model.patch_embed.patch_size[0],
        num_channels=model.patch_embed.proj.in_channels,
        qkv_bias=block.attn.qkv.bias is not None,
        num_labels=classes or 2,
    )
    head = ViTForImageClassification if classes else ViTModel
    options = {} if classes else {"add_pooling_layer": False}
    weights = _renamed(model.state_dict(), "vit." if classes else "")
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    # from_pretrained finds the names of weights in this version of transformers
    vit, report = head.from_pretrained(None, config=config, state_dict=weights, **options)
    unfit = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if unfit:
        names = ", ".join(sorted(map(str, unfit)))
        raise ValueError(f"transformers' ViT does not support this timm model: {names}.")
    _check_equal(vit.eval(), model)
    return vit, _image_processor(model)


@torch.inference_mode()
def _check_equal(vit: PreTrainedModel, model: nn.Module) -> None:
    """Raise ValueError if the logits, or without a classifier the hidden states, of random images differ."""
    inputs = example_inputs(vit)
    with evaluation_mode(model):
        expected = (model if model.num_classes else model.forward_features)(inputs["pixel_values"])
    difference = largest_difference([expected], outputs_of(vit, inputs), inputs)
    if not difference <= (accepted := rounding_tolerance(vit.dtype)):
        raise ValueError(
            f"the converted model's outputs differ from the source's by {difference:.1e}, more than {accepted:.0e}; "
            "nothing saved."
        )


def _renamed(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """timm's weights under the names of transformers' checkpoints; those that have no place there keep theirs."""
    renamed = {}
    for name, tensor in weights.items():
        for part, new_part in NAMES.items():
            name = name.replace(part, new_part)
        if not name.startswith("classifier."):
            name = prefix + name
        if "attn.qkv" not in name:
            renamed[name] = tensor
            continue
        for projection, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            renamed[name.replace("attn.qkv", f"attention.attention.{projection}")] = rows.contiguous()
    return renamed


def _image_processor(model: nn.Module) -> ViTImageProcessor:
    """The preprocessing of the timm model's evaluation, except for its centre crop."""
    settings = getattr(model, "pretrained_cfg", None) or {}
    height, width = model.patch_embed.img_size
    return ViTImageProcessor(
        size={"height": height, "width": width},
        resample=3 if settings.get("interpolation") == "bicubic" else 2,
        image_mean=list(settings.get("mean", (0.5,) * 3)),
        image_std=list(settings.get("std", (0.5,) * 3)),
    )
