"""What a class name and a model tell."""

import pytest
import torch

from hf_bidir import signed
from hf_bidir.checkpoints.kinds import divides_by_all_labels
from tests.tiny_models import inputs_of, stock_model

CLASSES = torch.tensor([0, 1, 0])
LABELS = {"llama": torch.ones(3, 9, dtype=torch.long), "roberta": CLASSES, "vit": CLASSES}


@pytest.mark.parametrize("family", LABELS)
def test_a_loss_that_is_divided_by_all_labels_is_found_by_its_value(family):
    model = signed(stock_model(family)).train()
    assert divides_by_all_labels(model, {**inputs_of(family), "labels": LABELS[family]}) == (family != "roberta")
    assert model.training
