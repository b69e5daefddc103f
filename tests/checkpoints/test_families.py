"""The model types that can be converted: the packaged summary, its command, and the checks behind it."""

import importlib
import re

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from typer.testing import CliRunner

from hf_bidir.checkpoints import families
from hf_bidir.cli import app

TYPES = families.summary()["types"]


@pytest.fixture(scope="module")
def sweep():
    """The sweep, which is imported only here, because it needs transformers' own tests."""
    return importlib.import_module("benchmarks.families")


# model types of the first versions are not yet there, or compute attention in another way
newer = pytest.mark.skipif(transformers.__version__ < "5.2", reason="types of a later version of transformers")


def run(*arguments):
    return CliRunner().invoke(app, ["families", *arguments])


def test_the_summary_has_every_model_type_of_the_version_it_was_made_with():
    if transformers.__version__ != families.summary()["transformers"]:
        pytest.skip("another version of transformers is installed")
    assert set(TYPES) == set(CONFIG_MAPPING_NAMES)


def test_at_least_200_model_types_are_supported_with_outputs_that_move_and_the_others_have_a_reason_of_one_line():
    assert sum(entry["supported"] for entry in TYPES.values()) >= 200
    moves = families.summary()["checks"].index("λ = 1 moves")
    for name, entry in TYPES.items():
        if entry["supported"]:
            assert entry["reason"] is None, name
            assert entry["checks"][moves] == families.PASSED, name
            assert families.FAILED not in entry["checks"], name
        else:
            assert entry["reason"], name
            assert not re.search("\n|Traceback", entry["reason"]), name


def test_the_command_lists_supported_types_by_kind():
    result = run()
    assert result.exit_code == 0
    assert re.search(r"^\d+ of the \d+ model types of transformers \S+ can be signed", result.output)
    encoders = result.output.partition("\nencoder: ")[2].partition("\n\n")[0]
    assert re.search(r"\bbert\b", encoders)
    assert "llama" not in encoders


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("roberta", 0, r"^roberta \(RobertaModel, encoder\): supported[^$]*checked: .*λ = 1 moves"),
        ("fnet", 0, r"not supported: .*FNetModel has no layer that computes"),
        ("robertta", 2, r'no model type "robertta"\. Did you mean "roberta"\?'),
    ],
)
def test_the_command_tells_what_was_checked_why_a_type_is_not_supported_and_the_closest_name(name, code, told):
    result = run(name)
    assert result.exit_code == code
    assert re.search(told, result.output)


@newer
@pytest.mark.parametrize("name", ["distilbert", "gemma2", "altclip"])
def test_representative_types_pass_the_checks_of_the_sweep(sweep, name):
    record = sweep.recorded(name)
    assert record["status"] == "passed", record
    assert record["checks"]["λ = 1 moves"][0] == "pass"


@newer
def test_a_check_does_not_apply_where_the_stock_model_fails_it(sweep):
    verdict, reason = sweep.recorded("siglip_text_model")["checks"]["padding"]
    assert verdict == "n/a"
    assert re.match(r"the stock model does not either: \w+ differs by ", reason)


@newer
@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("fnet", "refused", "no layer that computes softmax attention"),
        ("sam_prompt_encoder", "part", "a part of another model"),
    ],
)
def test_the_sweep_records_why_a_type_is_not_supported(sweep, name, status, reason):
    record = sweep.recorded(name)
    assert record["status"] == status
    assert reason in record["reason"]
