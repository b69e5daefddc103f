"""What a class name and a model tell."""

import pytest
import torch
import transformers

import hf_bidir
from hf_bidir import signed
from hf_bidir.checkpoints.kinds import divides_by_all_labels
from tests.tiny_models import IMAGES, SHAPE

DIVIDES = {
    "LlamaForCausalLM": True,
    "LlamaForQuestionAnswering": True,
    "Qwen2VLForConditionalGeneration": True,
    "BertForSequenceClassification": False,  # computes its loss itself
    "BertForTokenClassification": False,
    "LlamaForSequenceClassification": False,  # calls the loss function without the number of labels
    "Dinov2ForImageClassification": True,
    "YolosForObjectDetection": False,  # its loss function divides by another number
    "BartForConditionalGeneration": False,
    "BertModel": False,  # has no loss
}


@pytest.mark.parametrize("name", DIVIDES)
def test_heads_that_divide_by_all_labels_are_told_from_those_that_do_not_without_a_forward_pass(name):
    stock = getattr(transformers, name)
    with torch.device("meta"):
        model = signed(stock(stock.config_class()))
    assert divides_by_all_labels(model) is DIVIDES[name]


@pytest.mark.parametrize("fields", [{"num_labels": 1}, {"problem_type": "multi_label_classification", "num_labels": 3}])
def test_the_mean_of_values_is_not_divided_by_all_labels(fields):
    config = hf_bidir.BidirDinov2Config(**SHAPE, **IMAGES, **fields)
    assert not divides_by_all_labels(hf_bidir.BidirDinov2ForImageClassification(config))
