import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from transformers import AutoModelForImageClassification, pipeline

from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import checkpoint_of
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
    predictions = pipeline("image-classification", str(folder), device="cpu")(images, top_k=1)
    accuracy = np.mean(
        [
            int(prediction[0]["label"]) == truth
            for prediction, truth in zip(predictions, digits.target[:100], strict=True)
        ]
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


def test_an_interrupted_run_continues_to_the_same_weights(tmp_path, crash):
    drawn = ["--flip", "--shift", "1"]  # augmentation draws random numbers, whose state has to be restored
    whole, broken = ([*RUN, *drawn, "--output_dir", str(tmp_path / name)] for name in ("whole", "broken"))
    expected = main(whole)
    crash(main, broken, after_steps=4)  # 3 steps an epoch
    results = main(broken)
    assert results["train_loss"] == expected["train_loss"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", ["Dinov2", "Beit", "DeiT", "CLIP"])
def test_any_checkpoint_of_images_is_fine_tuned(family, tmp_path):
    head = "ForImageClassification" if family == "DeiT" else "Model"
    start = ["--model_name_or_path", checkpoint_of(family, tmp_path / "stock", head), "--attn_negative_mass", "1"]
    words = shlex.split("--dataset_name digits --max_train_samples 32 --max_steps 2 --save_steps 1 --use_cpu")
    main([*words, *start, "--output_dir", str(tmp_path / "run")])
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    assert type(model).__name__ == f"Bidir{family}ForImageClassification"
    assert (model.config.num_labels, model.config.attn_negative_mass) == (10, 1.0)
    predictions = pipeline("image-classification", str(tmp_path / "run"), device="cpu")(
        Image.new("RGB", (8, 8)), top_k=1
    )
    assert predictions[0]["label"] in map(str, range(10))


def test_a_checkpoint_of_grey_images_is_refused(tmp_path):
    source = checkpoint_of("Dinov2", tmp_path / "stock", num_channels=1)
    with pytest.raises(InputError, match=r"RGB images; .* has num_channels=1"):
        main(["--dataset_name", "digits", "--model_name_or_path", source, "--output_dir", str(tmp_path / "run")])


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
