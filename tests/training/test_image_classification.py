"""training/image_classification.py: learn, keep the best checkpoint, resume, refuse, and start from any checkpoint."""

import shlex

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification, pipeline

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.sources import read_digits
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END, few_digits, read
from training.image_classification import main

RUN = shlex.split(
    "--dataset_name digits --image_size 8 --patch_size 4 --hidden_size 16 --num_hidden_layers 2 "
    "--num_attention_heads 2 --intermediate_size 32 --num_train_epochs 3 --logging_steps 1 --learning_rate 1e-2 "
    "--use_cpu --disable_tqdm true"
)
# the highest loss is called the best, so that it is that of an early epoch
BEST = shlex.split("--metric_for_best_model loss --greater_is_better true --save_total_limit 4 --num_train_epochs 4")


@pytest.fixture(scope="module", autouse=True)
def _few_digits():
    with few_digits():
        yield


def test_a_run_learns_and_its_pipeline_agrees_with_its_numbers(tmp_path):
    learn = ["--num_train_epochs", "10", "--output_dir", str(tmp_path)]
    results = main([*RUN, *AT_THE_END, *learn])
    assert results["test_accuracy"] > 0.4  # chance: 0.1
    digits = read_digits()["test"].select(range(40))
    predictions = pipeline("image-classification", str(tmp_path), device="cpu")(digits["image"][:], top_k=1)
    right = sum(int(best["label"]) == truth for (best,), truth in zip(predictions, digits["label"], strict=True))
    assert right / 40 == pytest.approx(results["test_accuracy"], abs=0.2)


def test_the_folder_holds_the_best_checkpoint_and_an_interrupted_run_ends_with_it_too(tmp_path, crash):
    whole, broken = ([*RUN, *BEST, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    best = read(tmp_path / "whole/run.json")["best_checkpoint"]
    assert best != "checkpoint-40"
    crash(main, broken, after_steps=12)  # 10 steps an epoch
    assert main(broken)["test_loss"] == expected["test_loss"]
    runs = ("whole", "broken", f"whole/{best}")
    one, *others = (load_file(tmp_path / run / "model.safetensors") for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one for other in others)


def test_the_images_part_of_a_checkpoint_is_fine_tuned(tmp_path):
    start = ["--model_name_or_path", checkpoint_of("CLIP", tmp_path / "stock"), "--attn_negative_mass", "1"]
    words = shlex.split("--dataset_name digits --max_steps 1 --use_cpu")
    main([*words, *AT_THE_END, *start, "--output_dir", str(tmp_path / "run")])
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    assert type(model).__name__ == "BidirCLIPForImageClassification"
    assert (model.config.num_labels, model.config.attn_negative_mass) == (10, 1.0)
    classify = pipeline("image-classification", str(tmp_path / "run"), device="cpu")
    assert classify(Image.new("RGB", (8, 8)), top_k=1)[0]["label"] in map(str, range(10))


@pytest.mark.parametrize("side", ["0", "16"])
def test_patches_that_do_not_fill_the_image_are_one_clear_error_and_leave_no_folder(tmp_path, side):
    with pytest.raises(InputError, match=f"patch_size to divide image_size 8: one of 1, 2, 4, 8; got {side}"):
        main([*RUN, "--patch_size", side, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
