"""The recipes, and the configurations for accelerate."""

import importlib
import re
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from hf_bidir.cli.script import parse, read_recipe

TRAINING = Path(__file__).parents[2] / "training"
TWINS = ["sst2", "digits", "fashion-mnist-small", "cifar10-dinov2", "imdb-lm"]
TWINS += ["sst2-rnn", "imdb-lstm", "20news-rnn", "ag-news-rnn", "sorting-rnn", "dates-rnn"]


def test_every_recipe_names_its_command_its_own_folder_and_only_known_options():
    for recipe in sorted((TRAINING / "recipes").glob("*.yaml")):
        script = re.search(rf"training/(\w+)\.py training/recipes/{recipe.stem}\.yaml", recipe.read_text()).group(1)
        args = parse(importlib.import_module(f"training.{script}").OPTIONS, [str(recipe)])[-1]
        assert args.output_dir == f"runs/{recipe.stem}"
        assert set(args.typed) == set(read_recipe(recipe))


@pytest.mark.parametrize("task", TWINS)
def test_tanhmax_and_softmax_recipes_differ_in_attention_alone(task):
    tanhmax, softmax = (read_recipe(TRAINING / f"recipes/{task}-{name}.yaml") for name in ("tanhmax", "softmax"))
    differing = {key for key in tanhmax.keys() | softmax.keys() if tanhmax.get(key) != softmax.get(key)}
    if task == "imdb-lm":
        differing.remove("learning_rate")
    mass = "negative_mass_until" if "model_name_or_path" in tanhmax else "attn_negative_mass"
    assert differing == {"attn_activation", mass, "output_dir"}


def test_the_adapters_of_a_pair_differ_in_their_base_alone():
    tanhmax, softmax = (read_recipe(TRAINING / f"recipes/sst2-minilm-{name}.yaml") for name in ("tanhmax", "softmax"))
    differing = {key for key in tanhmax.keys() | softmax.keys() if tanhmax.get(key) != softmax.get(key)}
    assert differing == {"model_name_or_path", "base_model", "output_dir"}


@pytest.mark.parametrize("file", sorted((TRAINING / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_accelerate_configuration_is_accepted(file):
    config = load_config_from_file(str(file))
    assert config.num_processes > 1
    assert config.mixed_precision == "bf16"
