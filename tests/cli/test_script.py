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
    data, _, args = parse(OPTIONS, [recipe, "--seed", "7", "--max-length=9"])
    assert (args.learning_rate, args.seed, args.use_cpu) == (5e-4, 7, True)
    assert (data.class_names, data.max_length, data.text_column) == (["bad", "good"], 9, None)
    assert set(args.typed) == {"learning_rate", "seed", "class_names", "use_cpu", "max_length"}
    assert RunArguments(output_dir="unused").typed == {}  # not those of an earlier call


def test_the_record_of_a_run_is_a_recipe(tmp_path):
    (tmp_path / "run.json").write_text('{"seed": 1, "recipe": {"seed": 3, "class_names": ["bad", "good"]}}')
    assert typed(str(tmp_path / "run.json")) == {"seed": 3, "class_names": ["bad", "good"]}


def test_options_by_name_are_read_as_a_recipe_is(recipe, tmp_path):
    by_name = read_recipe(recipe) | {"output_dir": tmp_path, "lora_targets": "query", "optim_args": {"eps": 1}}
    data, model, args = parse(OPTIONS, by_name)
    assert (data.class_names, model.lora_targets, args.output_dir) == (["bad", "good"], ["query"], str(tmp_path))
    assert args.typed["optim_args"] == '{"eps": 1}'


def test_warmup_is_a_share_of_the_steps_in_every_version_of_transformers():
    assert parse(OPTIONS, {"warmup_ratio": 0.25, "use_cpu": True})[-1].get_warmup_steps(100) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume_from_checkpoint": "runs/mine"}, "--resume_from_checkpoint is not supported"),
        ({"sed": 1}, '--sed=1.*"--seed"'),
        (["--max_stepz", "3"], '--max_stepz 3.*"--max_steps"'),
        (["--helpp"], '--helpp.*"--help"'),
        (["--seed", "1", "{recipe}"], r"recipe\.yaml"),
    ],
)
def test_options_that_cannot_work_are_one_clear_error(options, message, recipe):
    words = options if isinstance(options, dict) else [word.format(recipe=recipe) for word in options]
    with pytest.raises(InputError, match=message):
        parse(OPTIONS, words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rat: 1", '--learning_rat=1.*"--learning_rate"'),
        ("- seed", r"recipe\.yaml.*list"),
        ("seed: [", r"recipe\.yaml.*line 1"),
        (None, r"recipe\.yaml.*does not exist"),
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


def test_help_shows_the_description_and_the_options_with_their_defaults(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        parse(OPTIONS, description="Train.\n\nexamples:\n  one\n\n  two")
    printed = capsys.readouterr().out
    assert "examples:\n  one\n\n  two" in printed
    assert re.search(r"--max_length .*\(default:\s+128\)", printed, re.DOTALL)


@pytest.mark.parametrize(
    ("raised", "code", "line"), [(InputError("no file"), 2, "error: no file\n"), (KeyboardInterrupt(), 130, "")]
)
def test_a_script_ends_with_one_line(raised, code, line, capsys):
    def main():
        raise raised

    with pytest.raises(SystemExit, match=str(code)):
        run_script(main)
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert printed.startswith(line)
