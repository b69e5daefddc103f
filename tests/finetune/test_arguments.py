"""Options of TrainingArguments that a run does not support."""

import pytest

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import NOT_SUPPORTED, RunArguments


@pytest.mark.parametrize("option", NOT_SUPPORTED)
def test_an_option_that_would_change_what_an_evaluation_sees_is_refused_by_its_name(option):
    with pytest.raises(InputError, match=f"--{option}"):
        RunArguments(output_dir="unused", use_cpu=True, **{option: True})


@pytest.mark.parametrize(("metric", "greater"), [("accuracy", True), ("perplexity", False), ("relative_error", False)])
def test_it_is_known_of_a_metric_whether_more_is_better(metric, greater):
    args = RunArguments(output_dir="unused", use_cpu=True, metric_for_best_model=metric)
    assert bool(args.greater_is_better) == greater
