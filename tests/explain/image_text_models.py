"""Tiny models that read an image with a text, and their processors, built in memory."""

from itertools import product

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
    SiglipProcessor,
)

SIDE, CELLS = 16, 4  # pixels of an image, and the rows of cells of one colour
GREY = (128, 128, 128)  # the mean colour of the processor
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "none": GREY}
QUESTION = "which color has it ?"
WORDS = ["<pad>", "<unk>", "</s>", "<image>", "answer", *COLORS, "one", "a", "cat", "car"]
WORDS += [word for word in [*QUESTION.split(), "number"] if word not in WORDS]
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
VISION = SHAPE | {"image_size": SIDE, "patch_size": SIDE // CELLS, "num_hidden_layers": 1}
TEXT = SHAPE | {"vocab_size": len(WORDS), "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2}
TEMPLATE = (
    "{% for part in messages[0]['content'] %}{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %} answer{% endif %}"
)


def tokenizer(ends: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of WORDS; `ends` adds </s>, from which CLIP reads its text."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if ends:
        words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>", "extra_special_tokens": ["<image>"]}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def image_processor() -> CLIPImageProcessor:
    sides = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessor(size=sides, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def two_towers(name: str):
    """A random model, "clip" or "siglip", and its processor."""
    torch.manual_seed(0)
    made, config, processor = {
        "clip": (CLIPModel, CLIPConfig, CLIPProcessor),
        "siglip": (SiglipModel, SiglipConfig, SiglipProcessor),
    }[name]
    model = made(config(text_config=TEXT | {"projection_size": 32}, vision_config=VISION, projection_dim=32)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model, processor(image_processor=image_processor(), tokenizer=tokenizer(ends=True))


def untrained():
    """A LLaVA with random weights, and its processor with a chat template."""
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
        text_config=TEXT | {"model_type": "llama", "num_key_value_heads": 2},
        image_token_id=WORDS.index("<image>"),
        vision_feature_layer=-1,
        image_seq_length=CELLS**2,
    )
    processor = LlavaProcessor(
        image_processor=image_processor(),
        tokenizer=tokenizer(ends=False),
        patch_size=SIDE // CELLS,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    return LlavaForConditionalGeneration(config).eval(), processor


def spotted(color: str, row: int, column: int) -> Image.Image:
    """A grey image with one cell of a colour."""
    palette = np.full((CELLS, CELLS, 3), GREY, dtype=np.uint8)
    palette[row, column] = COLORS[color]
    return Image.fromarray(palette.repeat(SIDE // CELLS, 0).repeat(SIDE // CELLS, 1))


def trained(steps: int = 300, batch: int = 32):
    """A LLaVA that, asked for the color, names that of the cell that is not grey; asked for the number it says "one".
    It says "none" of a grey image, and if nothing is asked."""
    model, processor = untrained()
    places = list(product(COLORS, range(CELLS), range(CELLS)))
    pixels = processor.image_processor([spotted(*place) for place in places], return_tensors="pt")["pixel_values"]
    asks = ["color", "number", ""]
    texts = [f"{'<image> ' * CELLS**2}{QUESTION.replace('color', ask)} answer" for ask in asks]
    prompts = processor.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    answers = torch.tensor([WORDS.index(color) for color, _, _ in places])
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        rows, asked = torch.randint(len(places), (batch,)), torch.randint(len(asks), (batch,))
        others = torch.tensor([0, WORDS.index("one"), WORDS.index("none")])[asked]
        answer = answers[rows].where(asked == 0, others)
        inputs = {name: value[asked] for name, value in prompts.items() if name != "token_type_ids"}
        logits = model(pixel_values=pixels[rows], **inputs).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, answer).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval(), processor
