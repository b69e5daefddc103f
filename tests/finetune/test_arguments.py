"""Options of TrainingArguments that a run does not support."""

import pytest

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import NOT_SUPPORTED, BlockArguments, ImageDataArguments, RunArguments


@pytest.mark.parametrize("option", NOT_SUPPORTED)
def test_an_option_that_would_change_what_an_evaluation_sees_is_refused_by_its_name(option):
    with pytest.raises(InputError, match=f"--{option}"):
        RunArguments(output_dir="unused", use_cpu=True, **{option: True})


@pytest.mark.parametrize(("metric", "greater"), [("accuracy", True), ("perplexity", False), ("relative_error", False)])
def test_it_is_known_of_a_metric_whether_more_is_better(metric, greater):
    args = RunArguments(output_dir="unused", use_cpu=True, metric_for_best_model=metric)
    assert bool(args.greater_is_better) == greater


@pytest.mark.parametrize(
    ("kind", "option"), [(ImageDataArguments, "max_train_samples"), (BlockArguments, "max_eval_samples")]
)
def test_a_sample_has_at_least_one_row(kind, option):
    assert getattr(kind(**{option: 1}), option) == 1
    for value in (0, -1):
        with pytest.raises(InputError, match=f"--{option} from 1 .*got {value}"):
            kind(**{option: value})
