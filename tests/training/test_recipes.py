import re
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.finetune.tasks.causal_lm import causal_lm
from hf_bidir.finetune.tasks.distillation import distillation
from hf_bidir.finetune.tasks.image_classification import image_classification
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification
from hf_bidir.finetune.tasks.seq2seq import seq2seq
from hf_bidir.finetune.tasks.text_classification import text_classification

TRAINING = Path(__file__).parents[2] / "training"
RECIPES = sorted((TRAINING / "recipes").glob("*.yaml"))
TASKS = {
    "causal_lm": causal_lm,
    "distill": distillation,
    "image_classification": image_classification,
    "recurrent_classification": recurrent_classification,
    "seq2seq": seq2seq,
    "text_classification": text_classification,
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_names_its_command_its_own_folder_and_only_known_options(recipe):
    text = recipe.read_text()
    script = re.search(rf"training/(\w+)\.py training/recipes/{recipe.stem}\.yaml", text).group(1)
    given = read_recipe(TASKS[script].options, recipe)
    assert TASKS[script].run_options(given).output_dir == f"runs/{recipe.stem}"
    assert set(yaml.safe_load(text)) == set(given)


TWINS = ["sst2", "digits", "fashion-mnist-small"]
TWINS += ["sst2-rnn", "imdb-lstm", "20news-rnn", "ag-news-rnn", "sorting-rnn", "dates-rnn"]


@pytest.mark.parametrize(("task", "own"), [*((task, set()) for task in TWINS), ("imdb-lm", {"learning_rate"})])
def test_tanhmax_and_softmax_recipes_differ_in_attention_alone(task, own):
    tanhmax, softmax = (
        yaml.safe_load((TRAINING / f"recipes/{task}-{name}.yaml").read_text()) for name in ("tanhmax", "softmax")
    )
    differing = {key for key in tanhmax.keys() | softmax.keys() if tanhmax.get(key) != softmax.get(key)}
    assert differing - own == {"attn_activation", "attn_negative_mass", "output_dir"}


@pytest.mark.parametrize("file", sorted((TRAINING / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_accelerate_configuration_is_accepted(file):
    config = load_config_from_file(str(file))
    assert config.num_processes > 1
    assert config.mixed_precision == "bf16"
