import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from transformers import DeiTConfig, DeiTForImageClassification, pipeline

from hf_bidir.finetune.errors import InputError
from training.image_classification import main

RUN = shlex.split(
    "--dataset_name digits --max_train_samples 96 --patch_size 4 --hidden_size 16 --num_hidden_layers 2 "
    "--num_attention_heads 2 --intermediate_size 32 --num_train_epochs 3 --logging_steps 1 "
    "--learning_rate 1e-2 --attn_implementation eager --use_cpu --disable_tqdm true"
)


def test_a_run_learns_and_its_pipeline_agrees_with_its_numbers(tmp_path):
    folder = tmp_path / "run"
    results = main([*RUN, "--num_train_epochs", "15", "--max_train_samples", "300", "--output_dir", str(folder)])
    assert results["test_accuracy"] > 0.5  # chance: 0.1
    digits = load_digits()
    images = [Image.fromarray(np.uint8(image * 255 / 16)) for image in digits.images[:100]]
    answers = pipeline("image-classification", str(folder), device="cpu")(images, top_k=1)
    accuracy = np.mean(
        [int(answer[0]["label"]) == truth for answer, truth in zip(answers, digits.target[:100], strict=True)]
    )
    assert accuracy == pytest.approx(results["test_accuracy"], abs=0.15)


def test_the_best_checkpoint_is_what_the_folder_holds(tmp_path):
    # the highest loss is called the best, so that it is that of an early epoch
    options = ["--num_train_epochs", "4", "--metric_for_best_model", "loss", "--greater_is_better", "true"]
    main([*RUN, *options, "--save_total_limit", "4", "--output_dir", str(tmp_path / "run")])
    record = json.loads((tmp_path / "run/run.json").read_text())
    best, final = (load_file(tmp_path / "run" / name / "model.safetensors") for name in (record["best_checkpoint"], ""))
    assert record["best_checkpoint"] != "checkpoint-12"
    assert all(torch.equal(best[name], final[name]) for name in best)


@pytest.mark.parametrize("augmentation", [[], ["--flip", "--shift", "1"]], ids=["plain", "augmented"])
def test_an_interrupted_run_continues_to_the_same_weights(tmp_path, crash, augmentation):
    whole, broken = ([*RUN, *augmentation, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    crash(main, broken, after_steps=4)  # 3 steps an epoch
    results = main(broken)
    assert results["train_loss"] == expected["train_loss"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_stock_deit_is_fine_tuned_as_a_signed_deit(tmp_path):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    DeiTForImageClassification(DeiTConfig(**shape, image_size=8, patch_size=4)).save_pretrained(tmp_path / "deit")
    words = shlex.split("--dataset_name digits --max_train_samples 32 --max_steps 1 --save_steps 1 --use_cpu")
    main([*words, "--model_name_or_path", str(tmp_path / "deit"), "--output_dir", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run/config.json").read_text())["model_type"] == "bidir_deit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--patch_size", "3"], "expected patch_size to divide image_size 8: one of 1, 2, 4, 8; got 3"),
        (["--patch_size", "16"], "got 16"),
        (["--attn_activation", "tanmax"], "tanmax"),
    ],
)
def test_a_bad_option_is_one_clear_error_and_leaves_no_folder(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        main([*RUN, *options, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
