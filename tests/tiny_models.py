"""One tiny model of each kind, with weights large enough that its attention is far from uniform."""

import sys
from typing import Any

import torch
import transformers
from transformers import BertTokenizer, PreTrainedModel

from hf_bidir import signed

VOCABULARY, LENGTHS = 60, (9, 6, 2)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
IMAGES = {"image_size": 8, "patch_size": 2, "num_channels": 3, "initializer_range": 0.3}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "init_std": 0.3, "max_position_embeddings": 64,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
STOCK = {  # by family, the class of a model and the fields of its config
    "bert": (transformers.BertForSequenceClassification, SHAPE | TEXT),
    "roberta": (transformers.RobertaForSequenceClassification, SHAPE | TEXT),
    "vit": (transformers.ViTForImageClassification, SHAPE | IMAGES),
    "dinov2": (transformers.Dinov2ForImageClassification, SHAPE | IMAGES),
    "gpt2": (transformers.GPT2LMHeadModel, TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": (transformers.LlamaForCausalLM, SHAPE | TEXT | {"num_key_value_heads": 2}),
    "bart": (transformers.BartForConditionalGeneration, TEXT | BART),
    "t5": (
        transformers.T5ForConditionalGeneration,
        TEXT | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "this", "example", "is", "."]
ENCODERS, DECODERS, IMAGE_MODELS = ("bert", "roberta"), ("gpt2", "llama"), ("vit", "dinov2")
# the first versions of transformers compute some of them outside the attention interface
FAMILIES = [
    family for family, (head, _) in STOCK.items() if "ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[head.__module__])
]


def word_tokenizer() -> BertTokenizer:
    """A tokenizer of WORDS, for models of texts of at most 16 tokens."""
    return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}, model_max_length=16)


def stock_model(family: str, **fields) -> PreTrainedModel:
    """A stock model with random weights, always the same ones, in evaluation mode."""
    model_class, shape = STOCK[family]
    torch.manual_seed(0)
    return model_class(model_class.config_class(**shape | fields)).eval()


def signed_model(family: str, mass: Any = 1.0, **fields) -> PreTrainedModel:
    return signed(stock_model(family, **fields), mass)


def random_model(name: str, **fields) -> PreTrainedModel:
    """A model of this class of transformers with large random weights, always the same ones, in evaluation mode."""
    made = getattr(transformers, name)
    torch.manual_seed(0)
    model = made(made.config_class(**fields)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def sliding_window_model(window: int = 4, **fields) -> PreTrainedModel:
    """A causal model whose tokens attend to the last few, in evaluation mode."""
    torch.manual_seed(0)
    shape = SHAPE | TEXT | {"num_key_value_heads": 2, "sliding_window": window} | fields
    return transformers.MistralForCausalLM(transformers.MistralConfig(**shape)).eval()


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    """Three images, or three texts of 9, 6 and 2 tokens, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    if family in IMAGE_MODELS:
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    keep = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    inputs = {"input_ids": torch.randint(3, VOCABULARY, keep.shape, generator=generator) * keep, "attention_mask": keep}
    if family in ("bart", "t5"):
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, 4), generator=generator)
    return inputs


def logits_of(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **options) -> torch.Tensor:
    """The logits, without those at padding, which mean nothing."""
    logits = model(**inputs, **options).logits
    keep = inputs.get("attention_mask")
    return logits if keep is None or logits.shape[:2] != keep.shape else logits[keep.bool()]
