"""Tiny models, one text-like batch and one batch of images."""

from operator import add

import pytest
import torch
import transformers
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hf_bidir
from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirRnnConfig,
    BidirRnnForSequenceClassification,
    BidirViTConfig,
    BidirViTForImageClassification,
)
from hf_bidir.checkpoints.linear_maps import weight_of
from hf_bidir.checkpoints.projections import projections
from hf_bidir.explain import ForwardCache, Request

WIDTHS = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
# weights so large that coefficients are far from uniform, and a tiny model's outputs from constant
SHAPE = WIDTHS | {"vocab_size": 40, "max_position_embeddings": 12, "initializer_range": 0.4}


def bert(negative_mass: float = 1.0, head=BidirBertForSequenceClassification, **options):
    torch.manual_seed(0)
    return with_biases(head(BidirBertConfig(**SHAPE, attn_negative_mass=negative_mass, **options)))


def vit(negative_mass: float = 1.0, image_size: int = 8, **options):
    torch.manual_seed(0)
    config = BidirViTConfig(
        **WIDTHS,
        image_size=image_size,
        patch_size=2,
        initializer_range=0.4,
        attn_negative_mass=negative_mass,
        **options,
    )
    return with_biases(BidirViTForImageClassification(config))


def pooling(activation: str = "tanhmax", classes: int = 3, **options):
    """A recurrent classifier with one query."""
    torch.manual_seed(0)
    fields = {"vocab_size": 20, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0, "attn_scale": 1.0}
    config = BidirRnnConfig(**fields, num_labels=classes, attn_activation=activation, **options)
    return BidirRnnForSequenceClassification(config).eval()


@torch.no_grad()
def flip_heads(model, flipped):
    """Negate the keys and values of the heads where `flipped` `[layers, heads]`, which at λ = 1 changes no output."""
    for layer, heads in zip(projections(model), flipped, strict=True):
        by_key_head = heads.view(len(layer.key), -1)[:, 0]
        for chosen, maps in zip(by_key_head, map(add, layer.key, layer.value), strict=True):
            for features in maps if chosen else ():
                weight_of(features.linear)[features.indices] *= -1
                if features.linear.bias is not None:
                    features.linear.bias[features.indices] *= -1


def with_biases(model):
    """A new model's biases are 0, a trained one's are not."""
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "bias_table")):
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def sentences():
    """Two sentences, the second one padded by two."""
    keep = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    return {"input_ids": torch.arange(12).view(2, 6) + 5, "attention_mask": keep}


# keys and values made apart or fused, rotary or not, shared by heads or by layers; read from the first or last token
TEXTS = {"vocab_size": 40, "max_position_embeddings": 24, "pad_token_id": 1}
ROTARY = {"num_key_value_heads": 2, "attention_bias": True, "bos_token_id": 2, "eos_token_id": 2}
PICTURES = {"image_size": 8, "patch_size": 2}
FAMILIES = {
    "RobertaForSequenceClassification": TEXTS,
    "DistilBertForSequenceClassification": TEXTS | {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 16},
    "AlbertForSequenceClassification": TEXTS | {"embedding_size": 8},
    "ModernBertForSequenceClassification": TEXTS | {"local_attention": 4, "cls_token_id": 0, "sep_token_id": 2},
    "GPT2ForSequenceClassification": TEXTS | {"n_embd": 16, "n_layer": 3, "n_head": 2},
    "LlamaForSequenceClassification": TEXTS | ROTARY | {"num_attention_heads": 4},
    "Dinov2WithRegistersForImageClassification": PICTURES | {"mlp_ratio": 1},
    "ViTForImageClassification": PICTURES,
}


def family(head: str, negative_mass: float = 1.0, **options):
    """A tiny signed model of any family, by the name of its stock class."""
    torch.manual_seed(0)
    stock_class = getattr(transformers, head)
    fields = WIDTHS | {"initializer_range": 0.4} | FAMILIES.get(head, {}) | options
    known = stock_class.config_class().to_dict() | stock_class.config_class.attribute_map
    config = stock_class.config_class(**{name: value for name, value in fields.items() if name in known})
    return hf_bidir.signed(with_biases(stock_class(config)), negative_mass)


def inputs_of(model):
    if model.main_input_name == "pixel_values":
        return images()
    keep = sentences()["attention_mask"]
    return {"input_ids": sentences()["input_ids"].where(keep.bool(), 1), "attention_mask": keep}


def images():
    return {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}


def doubled(inputs):
    """The inputs in double precision."""
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


def picture():
    """A picture of noise, 8 x 8 pixels."""
    pixels = images()["pixel_values"][0].permute(1, 2, 0).mul(60).add(120).clamp(0, 255)
    return Image.fromarray(pixels.byte().numpy())


def random_softmax(layers: int = 3, batch: int = 2, heads: int = 2, length: int = 5, seed: int = 0):
    """Softmax coefficients of every layer."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(layers, batch, heads, length, length, generator=generator, dtype=torch.float64)
    return list(scores.softmax(-1))


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "a", "good", "bad", "film", "un", "##believ", "##ably", "<b>", "!"]
NAMES = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


def tokenizer():
    """A real WordPiece tokenizer of fourteen pieces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=pieces, **names)


def asked(function, model, inputs, target=None, *, position=None, instead_of=None, **options):
    """What a function of a cache and a request computes for these inputs."""
    request = Request(target=target, position=position, instead_of=instead_of)
    return function(ForwardCache(model, inputs), request, **options)


def saved(model, processor, folder):
    """The folder with the model and its tokenizer or image processor."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """A signed text classifier with its tokenizer."""
    return saved(bert(**NAMES), tokenizer(), tmp_path / "signed")


@pytest.fixture
def stock_checkpoint(tmp_path):
    """A softmax text classifier of plain transformers, with its tokenizer."""
    torch.manual_seed(0)
    return saved(BertForSequenceClassification(BertConfig(**SHAPE)), tokenizer(), tmp_path / "stock")
