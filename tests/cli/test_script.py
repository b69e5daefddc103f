"""The command line of the training scripts: recipes, options, errors, help."""

import re
import sys

import pytest

from hf_bidir.cli.script import parse, read_recipe, run_script
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import ModelArguments, RunArguments, TextDataArguments

OPTIONS = (TextDataArguments, ModelArguments, RunArguments)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("learning_rate: 5e-4\nseed: 3\nclass_names: [bad, good]\nuse_cpu: true\ntext_column: null\n")
    return str(path)


def typed(*words):
    return parse(OPTIONS, words)[-1].typed


def test_a_recipe_sets_options_of_every_type_and_the_command_line_wins(recipe):
    data, _, args = parse(OPTIONS, [recipe, "--seed", "7", "--max_length=9"])
    assert (args.learning_rate, args.seed, args.use_cpu) == (5e-4, 7, True)
    assert (data.class_names, data.max_length, data.text_column) == (["bad", "good"], 9, None)


def test_only_the_options_that_were_given_are_recorded_as_typed(recipe):
    assert set(typed(recipe, "--max_length=9")) == {"learning_rate", "seed", "class_names", "use_cpu", "max_length"}
    assert RunArguments(output_dir="unused").typed == {}  # not those of an earlier call


def test_options_by_name_are_read_as_a_recipe_is(recipe, tmp_path):
    by_name = read_recipe(recipe) | {"output_dir": tmp_path, "lora_targets": "query"}
    data, model, args = parse(OPTIONS, by_name)
    assert (data.class_names, model.lora_targets, args.output_dir) == (["bad", "good"], ["query"], str(tmp_path))
    with pytest.raises(InputError, match=r"the call has an unknown option 'sed'\. Did you mean"):
        parse(OPTIONS, {"sed": 1})


def test_warmup_is_a_share_of_the_steps_in_every_version_of_transformers():
    assert parse(OPTIONS, {"warmup_ratio": 0.25, "use_cpu": True})[-1].get_warmup_steps(100) == 25


def test_options_that_cannot_work_are_one_clear_error():
    for options, message in (
        ({"prediction_loss_only": True}, "--prediction_loss_only True is not supported"),
        ({"max_train_samples": 0}, "expected max_train_samples of at least 1; got 0"),
        ({"validation_share": 1.5}, "expected validation_share between 0 and 1; got 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            parse(OPTIONS, options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 1", "unknown option 'learning_rat'.*Did you mean \"learning_rate\""),
        ("- seed", "got a list"),
        ("seed: [", "cannot read it"),
        (None, r"expected a YAML recipe at .*recipe.yaml"),
    ],
)
def test_a_bad_recipe_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "recipe.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        parse(OPTIONS, [str(path)])


def test_an_option_that_is_true_or_false_needs_no_value():
    for name in ("bf16", "disable_tqdm"):
        assert typed(f"--{name}", "--use_cpu") == {name: True, "use_cpu": True}
        assert typed(f"--{name}", "false") == {name: False}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1", "{recipe}"], "expected the recipe before all options"),
        (["--max_stepz", "3"], r'unknown option: --max_stepz 3\. Did you mean "--max_steps"\?'),
        (["--helpp"], r'unknown option: --helpp\. Did you mean "--help"\?'),
    ],
)
def test_words_that_are_no_options_are_one_clear_error(words, message, recipe):
    with pytest.raises(InputError, match=message):
        parse(OPTIONS, [word.format(recipe=recipe) for word in words])


def test_help_shows_the_options_of_the_script_and_not_all_of_the_trainer(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(OPTIONS, ["--help"], "Train.\n\nexamples:\n  one\n\n  two")
    printed = capsys.readouterr().out
    assert {"--train_file", "--attn_negative_mass", "--learning_rate", "one"} <= set(re.findall(r"[\w-]+", printed))
    assert "--torch_compile_backend" not in printed
    assert "transformers.TrainingArguments" in printed
    assert typed("--torch_compile_backend", "eager") == {"torch_compile_backend": "eager"}


def test_dashes_are_understood_in_place_of_underscores():
    assert typed("--train-file", "a.csv") == {"train_file": "a.csv"}


INTERRUPTED = "interrupted; run the same command again to continue from the last checkpoint, or else from the start\n"


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [(InputError("expected a file"), 2, "error: expected a file\n"), (KeyboardInterrupt(), 130, INTERRUPTED)],
)
def test_a_script_ends_with_one_line(raised, code, line, capsys):
    def main():
        raise raised

    with pytest.raises(SystemExit, match=str(code)):
        run_script(main)
    assert capsys.readouterr().err == line


def test_without_options_those_of_the_command_line_count(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", "--max_length", "9"])
    assert parse((TextDataArguments,))[0].max_length == 9
