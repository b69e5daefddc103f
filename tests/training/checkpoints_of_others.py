"""Tiny stock checkpoints with tokenizers or image processors, of families other than BERT and ViT."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_bidir.finetune.data.image_data import new_image_processor

TEXTS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 60}
IMAGES = {k: v for k, v in TEXTS.items() if k != "vocab_size"} | {"image_size": 8, "patch_size": 4}
WRITING = {"vocab_size": 60, "d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2} | {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHAPES = {
    "Roberta": TEXTS | SPECIAL,
    "DistilBert": {"vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "Electra": TEXTS | SPECIAL | {"embedding_size": 8},
    "ModernBert": TEXTS | SPECIAL,
    "GPT2": {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
    "Llama": TEXTS | SPECIAL | {"pad_token_id": None, "num_key_value_heads": 1},
    "Bart": WRITING | SPECIAL,
    "T5": {
        "vocab_size": 60,
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
        "d_ff": 32,
        "d_kv": 8,
        "decoder_start_token_id": 0,
    },
    "Dinov2": IMAGES,
    "CLIP": {"text_config": TEXTS, "vision_config": IMAGES, "projection_dim": 8},
}
WITHOUT_PADDING = ("GPT2", "Llama")
TEXT = "a good bad film of train validation test row one two three four five six seven eight"


def checkpoint_of(family, folder, head="Model", words=TEXT, **fields):
    """A folder with random weights and, for a model of texts, a tokenizer; those that write have no padding token."""
    config = getattr(transformers, f"{family}Config")(**SHAPES[family] | fields)
    torch.manual_seed(0)
    getattr(transformers, family + head)(config).save_pretrained(folder)
    if family in ("Dinov2", "CLIP"):
        new_image_processor(8).save_pretrained(folder)
    else:
        special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
        numbers = {word: index for index, word in enumerate(dict.fromkeys([*special, *words.split()]))}
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        padding = {} if family in WITHOUT_PADDING else {"pad_token": "[PAD]", "mask_token": "[MASK]"}
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]", bos_token="[CLS]", **padding
        ).save_pretrained(folder)
    return str(folder)
