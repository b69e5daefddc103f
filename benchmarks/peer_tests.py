"""transformers' own tests of models, on stock classes and on their signed counterparts; collected by `peer.py`.

The environment variable PEER_TESTS names the folder of transformers' tests.
"""

import importlib
import os
import sys
import unittest
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, set_seed

import hf_bidir

_folder = Path(os.environ["PEER_TESTS"])
sys.path.insert(0, str(_folder.parent))
common = importlib.import_module(f"{_folder.name}.test_modeling_common")

BATCH, TOKENS, HIDDEN, LAYERS, HEADS, IMAGE, PATCH = 13, 7, 32, 2, 4, 16, 4
TEXT = {"vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 37}
IMAGES = SIZES | {"image_size": IMAGE, "patch_size": PATCH, "num_labels": 10}
SIDES = {  # of an encoder-decoder
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 37))
}


@dataclass(frozen=True)
class Family:
    """The classes `name` + one of `heads`, the fields of a small config, attributes for the tests, and the image size.

    A test that is set to None is skipped for stock and signed classes.
    """

    name: str
    heads: str
    fields: dict[str, Any] = field(default_factory=lambda: SIZES | TEXT)
    attributes: dict[str, Any] = field(default_factory=dict)
    image_size: int | None = None


NO_TOKENS = {"test_resize_embeddings": False, "test_inputs_embeds": None, "test_model_get_set_embeddings": None}
# of stages with other lengths and widths, for which transformers' own tests of these models have other versions
STAGES = NO_TOKENS | {"test_attention_outputs": None, "test_hidden_states_output": None,
                      "test_retain_grad_hidden_states_attentions": None}  # fmt: skip
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 2,
           "mlp_ratio": 2.0, "encoder_stride": 4, "num_labels": 10}  # fmt: skip
PYRAMID = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32], "num_labels": 10,
           "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
           "decoder_hidden_size": 32}  # fmt: skip
MELS, FRAMES = 16, 60
SPEECH = {"d_model": HIDDEN, "num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "max_target_positions": 64,
          "decoder_start_token_id": 2}  # fmt: skip
ENCODER_DECODER = {"is_encoder_decoder": True, "test_missing_keys": False, "test_inputs_embeds": None}
# the tests make no labels for speech, and need texts where they resize embeddings
NO_TEXT = ENCODER_DECODER | dict.fromkeys(
    ("test_training", "test_resize_embeddings_untied", "test_resize_tokens_embeddings",
     *(f"test_training_gradient_checkpointing{how}" for how in ("", "_use_reentrant_false", "_use_reentrant_true")))
)  # fmt: skip
NO_GRADIENT = NO_TOKENS | {"test_all_params_have_gradient": False}
VISION = "Model ForImageClassification"
TEXT_HEADS = "ForSequenceClassification ForTokenClassification ForQuestionAnswering"
FAMILIES = [
    Family("Bert", f"Model LMHeadModel ForMaskedLM ForMultipleChoice ForNextSentencePrediction {TEXT_HEADS}"),
    Family("Roberta", f"Model ForCausalLM ForMaskedLM ForMultipleChoice {TEXT_HEADS}"),
    Family("DistilBert", f"Model ForMaskedLM ForMultipleChoice {TEXT_HEADS}"),
    Family(
        "DebertaV2",
        f"Model ForMaskedLM ForMultipleChoice {TEXT_HEADS}",
        SIZES | TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    Family("MPNet", f"Model ForMaskedLM ForMultipleChoice {TEXT_HEADS}"),
    Family("ViT", f"{VISION} ForMaskedImageModeling", IMAGES | {"encoder_stride": PATCH}, NO_TOKENS, image_size=IMAGE),
    Family("Dinov2", f"{VISION} Backbone", IMAGES | {"use_swiglu_ffn": True}, NO_GRADIENT, image_size=IMAGE),
    Family("SiglipVision", "Model", IMAGES, NO_GRADIENT, image_size=IMAGE),
    Family("Swin", f"{VISION} Backbone", WINDOWS, STAGES, image_size=32),
    Family("Swinv2", f"{VISION} Backbone", WINDOWS, STAGES, image_size=32),
    Family("Segformer", f"{VISION} ForSemanticSegmentation", PYRAMID, STAGES, image_size=32),
    Family("Whisper", "Model ForConditionalGeneration", TEXT | SIDES | SPEECH, NO_TEXT),
    Family("GPT2", f"Model LMHeadModel {TEXT_HEADS}", attributes={"test_missing_keys": False}),
    Family("Llama", f"Model ForCausalLM {TEXT_HEADS}", SIZES | TEXT | {"num_key_value_heads": 2}),
    Family(
        "Bart",
        "Model ForConditionalGeneration ForSequenceClassification ForQuestionAnswering",
        TEXT | SIDES | {"d_model": HIDDEN},
        ENCODER_DECODER,
    ),
]


class Tester:
    """Provides the small config and inputs; the tests define the names."""

    batch_size, is_training, num_choices = BATCH, True, 3
    hidden_size, num_hidden_layers, num_attention_heads = HIDDEN, LAYERS, HEADS
    image_size, patch_size = IMAGE, PATCH

    def __init__(self, family: Family, config_class: type[PretrainedConfig]):
        self.family, self.config_class = family, config_class
        patches = ((family.image_size or IMAGE) // family.fields.get("patch_size", PATCH)) ** 2
        self.num_masks, self.mask_length = patches // 2, patches
        self.seq_length = TOKENS
        if family.image_size:
            self.seq_length = patches + (family.name in ("ViT", "Dinov2"))  # the class token
        if "num_mel_bins" in family.fields:
            self.encoder_seq_length, self.decoder_seq_length = FRAMES // 2, TOKENS

    def get_config(self) -> PretrainedConfig:
        return self.config_class(**self.family.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[PretrainedConfig, dict[str, torch.Tensor]]:
        if size := self.family.image_size:
            return self.get_config(), {"pixel_values": torch.rand(BATCH, 3, size, size)}
        ids = torch.randint(3, TEXT["vocab_size"], (BATCH, TOKENS))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.family.attributes.get("is_encoder_decoder"):
            inputs["input_ids"][:, -1] = TEXT["eos_token_id"]
            inputs |= {"decoder_input_ids": ids.flip(1), "decoder_attention_mask": torch.ones_like(ids)}
        if "num_mel_bins" in self.family.fields:
            del inputs["input_ids"], inputs["attention_mask"]
            inputs["input_features"] = torch.rand(BATCH, MELS, FRAMES)
        return self.get_config(), inputs


def _setup(test: unittest.TestCase) -> None:
    set_seed(0)
    test.model_tester = Tester(test.family, test.config_class)


def suite(family: Family, signed: bool) -> type[unittest.TestCase]:
    """The tests of transformers for a family's stock or signed classes."""
    library, prefix = (hf_bidir, "Bidir") if signed else (transformers, "")
    classes = tuple(getattr(library, f"{prefix}{family.name}{head}") for head in family.heads.split())
    attributes = {
        "family": family,
        "config_class": classes[0].config_class,
        "all_model_classes": classes,
        "test_can_init_all_missing_weights_before_2023": True,
        "setUp": _setup,
        "__module__": __name__,
    } | family.attributes
    generate = any(model_class.can_generate() for model_class in classes)
    bases = (common.ModelTesterMixin, *([common.GenerationTesterMixin] if generate else []), unittest.TestCase)
    return type(f"{'Signed' if signed else 'Stock'}{family.name}", bases, attributes)


globals().update({made.__name__: made for family in FAMILIES for made in (suite(family, False), suite(family, True))})
