import pytest

from hf_bidir.cli.recipe import read_command_line, read_recipe
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import RunArguments, TextModelArguments
from hf_bidir.finetune.data.arguments import TextDataArguments
from hf_bidir.finetune.task import Task

TASK = Task((TextDataArguments, TextModelArguments, RunArguments), train=None)
OPTIONS = TASK.options


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("learning_rate: 5e-4\nseed: 3\nclass_names: [bad, good]\nlowercase: false\ntext_column: null\n")
    return str(path)


def test_a_recipe_sets_options_of_every_type(recipe):
    data, model, args = TASK.read(read_recipe(OPTIONS, recipe))
    assert (args.learning_rate, args.seed) == (5e-4, 3)
    assert data.class_names == ["bad", "good"]
    assert not model.lowercase


def test_the_command_line_wins_over_the_recipe(recipe):
    given = read_command_line(OPTIONS, [recipe, "--seed", "7"])
    assert (given["seed"], given["learning_rate"]) == (7, 5e-4)


def test_only_the_options_that_were_given_are_reported_as_given(recipe):
    given = read_command_line(OPTIONS, [recipe, "--max_length=9"])
    assert set(given) == {"learning_rate", "seed", "class_names", "lowercase", "max_length"}


def test_warmup_is_a_share_of_the_steps_in_every_version_of_transformers():
    assert TASK.run_options({"warmup_ratio": 0.25}).get_warmup_steps(100) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"early_stopping_patience": 2, "load_best_model_at_end": False},
            "expected load_best_model_at_end with early_stopping_patience 2; it is false",
        ),
        ({"max_train_samples": 0}, "expected max_train_samples of at least 1; got 0"),
        ({"max_train_samples": -5}, "got -5"),
    ],
)
def test_options_that_cannot_work_are_one_clear_error(options, message):
    with pytest.raises(InputError, match=message):
        TASK.read(options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 1", "unknown option 'learning_rat'.*Did you mean \"learning_rate\""),
        ("- seed", "got a list"),
        ("seed: [", "cannot read it"),
    ],
)
def test_a_bad_recipe_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_recipe(OPTIONS, path)


def test_a_missing_recipe_is_one_clear_error():
    with pytest.raises(InputError, match=r"expected a YAML recipe at nowhere.yaml"):
        read_recipe(OPTIONS, "nowhere.yaml")


@pytest.mark.parametrize("name", ["bf16", "fp16", "gradient_checkpointing", "tf32", "disable_tqdm", "lowercase"])
def test_an_option_that_is_true_or_false_needs_no_value(name):
    assert read_command_line(OPTIONS, [f"--{name}", "--seed", "1"]) == {name: True, "seed": 1}
    assert read_command_line(OPTIONS, [f"--{name}", "false"]) == {name: False}


def test_a_recipe_after_an_option_is_one_clear_error(recipe):
    with pytest.raises(InputError, match="expected the recipe before all options"):
        read_command_line(OPTIONS, ["--seed", "1", recipe])


def test_a_misspelt_option_is_one_clear_error_with_the_right_name():
    with pytest.raises(InputError, match=r'unknown option: --max_stepz\. Did you mean "--max_steps"\?'):
        read_command_line(OPTIONS, ["--max_stepz", "3"])


def test_a_misspelt_help_option_is_told_its_name_and_no_recipe_can_have_one(tmp_path):
    with pytest.raises(InputError, match=r'unknown option: --helpp\. Did you mean "--help"\?'):
        read_command_line(OPTIONS, ["--helpp"])
    (tmp_path / "recipe.yaml").write_text("help_all: true")
    with pytest.raises(InputError, match="unknown option 'help_all'"):
        read_command_line(OPTIONS, [str(tmp_path / "recipe.yaml")])


def test_help_fits_on_one_screen_and_help_all_has_every_option_of_the_trainer(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    printed = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            read_command_line(OPTIONS, [option], "Train.\n\nexamples:\n  one\n\n  two")
        printed[option] = capsys.readouterr().out
    short = printed["--help"].splitlines()
    assert len(short) <= 70
    assert max(map(len, short)) <= 120
    assert {"--train_file", "--attn_negative_mass", "--learning_rate"} <= set(printed["--help"].split())
    assert "--torch_compile_backend" not in printed["--help"]
    assert "--torch_compile_backend" in printed["--help-all"]


def test_help_spells_an_option_one_way_and_both_ways_are_understood(capsys):
    with pytest.raises(SystemExit):
        read_command_line(OPTIONS, ["--help_all"])
    assert "--train-file" not in capsys.readouterr().out
    assert read_command_line(OPTIONS, ["--train-file", "a.csv"]) == read_command_line(
        OPTIONS, ["--train_file", "a.csv"]
    )
