"""What one run of a Trainer centres, saves and records."""

import json
import math
from unittest.mock import Mock, patch

import pytest
from datasets import Dataset
from transformers import BertForSequenceClassification

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.finetune import run as run_module
from hf_bidir.finetune.arguments import DataArguments, RunArguments, ScheduleArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from tests.tiny_models import signed_model

STOCK = ["BertForSequenceClassification"]
ROWS = Dataset.from_list([{"input_ids": [1 + row, 2], "labels": row % 2} for row in range(4)])


def run_of(folder, mass=0.0, until=None, activation="tanhmax", **options):
    model = signed_model("bert", mass)
    model.config.attn_activation = activation
    never = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    args = RunArguments(str(folder), use_cpu=True, disable_tqdm=True, max_steps=1, **never)
    trainer = SignedTrainer(model=model, args=args, train_dataset=ROWS, eval_dataset=ROWS, **options)
    schedule = ScheduleArguments(negative_mass_until=until)
    return Run(
        trainer, "text-classification", DataArguments(dataset_name="some/rows"), Splits(ROWS, ROWS, None), schedule
    )


@pytest.mark.parametrize(
    ("options", "between_tokens", "centred"),
    [
        ({"mass": 1.0}, True, True),
        ({"until": 0.5}, True, True),
        ({}, True, False),
        ({"mass": 1.0}, False, False),
        ({"mass": 1.0, "activation": "tanh"}, True, False),
    ],
    ids=["signed", "scheduled", "stays softmax", "single query", "without negative mass"],
)
def test_attention_between_tokens_is_centred_if_it_has_or_gets_negative_mass(
    options, between_tokens, centred, tmp_path
):
    run = run_of(tmp_path, **options)
    run.model.attends_between_tokens = between_tokens
    with patch.object(run_module, "centre_attention") as centre:
        run._centre()
    assert centre.called == centred


def test_a_stock_model_that_stays_softmax_is_saved_as_one_and_infinite_metrics_are_left_out(tmp_path, caplog):
    run = run_of(tmp_path, compute_metrics=Mock(return_value={"share": 0.5, "perplexity": math.inf}))
    run.model.config.architectures = STOCK
    run.args.typed = {"model_name_or_path": str(tmp_path / "without a record")}
    results = run.train_and_save()
    saved = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("all_results", "config", "run")}
    assert saved["all_results"] == results
    assert (results["eval_share"], results["eval_perplexity"], results["epoch"]) == (0.5, None, 1.0)
    assert saved["config"]["architectures"] == STOCK
    assert not list(tmp_path.glob("*.py"))
    assert not (tmp_path / "previous_run.json").exists()
    assert type(run.model) is BertForSequenceClassification
    record = saved["run"]
    assert (record["status"], record["best_checkpoint"], record["resumed_from"]) == ("finished", None, None)
    assert "stays 0" in caplog.text
    assert record["notes"] == ["The metrics of validation are over 4 examples, too few to rely on."]


@pytest.mark.parametrize("sharding", ["fsdp", "deepspeed"])
def test_a_model_in_shards_keeps_its_class(sharding, tmp_path):
    run = run_of(tmp_path)
    run.model.config.architectures = STOCK
    setattr(run.args, sharding, "as configured")
    with patch.object(run.trainer, "train"):
        run._train(None)
    assert type(run.model) is BidirBertForSequenceClassification
