"""transformers' pipelines run signed checkpoints from their own files, where hf_bidir is not installed."""

import json
import os
import sys

import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, CLIPImageProcessor, ViTImageProcessor, YolosImageProcessor, pipeline

from hf_bidir import signed
from tests.processes import run_warm
from tests.tiny_models import WORDS, word_tokenizer

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = SHAPE | {"vocab_size": len(WORDS), "pad_token_id": 0, "initializer_range": 0.5}
IMAGE = SHAPE | {"image_size": 16, "patch_size": 4, "initializer_range": 0.5}
ENTAILMENT = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
ENTAILMENT["label2id"] = {name: index for index, name in ENTAILMENT["id2label"].items()}
FILM, PICTURE = "a good film", "image.png"
LABELS = {"candidate_labels": ["good", "bad"]}
TASKS = {  # model type, class, config, input and options
    "feature-extraction": ("bert", "BertModel", TEXT, FILM, {}),
    "text-classification": ("bert", "BertForSequenceClassification", TEXT, FILM, {}),
    "token-classification": ("bert", "BertForTokenClassification", TEXT, FILM, {}),
    "zero-shot-classification": ("bert", "BertForSequenceClassification", TEXT | ENTAILMENT, FILM, LABELS),
    "fill-mask": ("bert", "BertForMaskedLM", TEXT, "a [MASK] film", {}),
    "text-generation": ("llama", "LlamaForCausalLM", TEXT, FILM, {"max_new_tokens": 4, "do_sample": False}),
    "image-classification": ("vit", "ViTForImageClassification", IMAGE, PICTURE, {}),
    "image-feature-extraction": ("vit", "ViTModel", IMAGE, PICTURE, {}),
    "object-detection": (
        "yolos", "YolosForObjectDetection", IMAGE | {"image_size": [16, 16]}, PICTURE, {"threshold": 0.0},
    ),
    "zero-shot-image-classification": (
        "clip", "CLIPModel", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8}, PICTURE, LABELS,
    ),
}  # fmt: skip
ALONE = """
import json, sys
sys.modules["hf_bidir"] = None
from transformers import pipeline
for task, folder, example, options in json.loads(sys.argv[1]):
    run = pipeline(task, folder, trust_remote_code=True, device="cpu")
    assert type(run.model).__module__.startswith("transformers_modules"), type(run.model)
    print(json.dumps(run(example, **options), default=float))
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """A saved signed model for each task, with what its pipeline is called with."""
    folder = tmp_path_factory.mktemp("pipelines")
    Image.effect_noise((16, 16), 80).convert("RGB").save(folder / PICTURE)
    tokenizer = word_tokenizer()
    size = {"height": 16, "width": 16}
    processors = {
        "bert": [tokenizer],
        "llama": [tokenizer],
        "vit": [ViTImageProcessor(size=size)],
        "yolos": [YolosImageProcessor(size=size, do_pad=False)],
        "clip": [tokenizer, CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size)],
    }
    cases = []
    for task, (kind, name, fields, example, options) in TASKS.items():
        torch.manual_seed(0)
        model = getattr(transformers, name)(AutoConfig.for_model(kind, **fields))
        for part in (signed(model.eval()), *processors[kind]):
            part.save_pretrained(folder / task)
        if example == PICTURE:
            example = str(folder / PICTURE)
        cases.append((task, str(folder / task), example, options))
    return cases


def about(digits):
    return pytest.approx(float(digits), abs=1e-3)


def test_every_task_gives_the_answers_of_the_package(calls, tmp_path):
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = run_warm([sys.executable, "-I", "-c", ALONE, json.dumps(calls)], environment, tmp_path, 300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is not supported for" not in done.stderr  # what a pipeline says of a class that its tables lack
    for (task, folder, example, options), line in zip(calls, done.stdout.splitlines(), strict=True):
        expected = json.dumps(pipeline(task, folder, device="cpu")(example, **options), default=float)
        assert json.loads(line) == json.loads(expected, parse_float=about), task
