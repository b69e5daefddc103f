"""The errors, perplexities and agreements of a student beside its teacher."""

import pytest
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import ModelOutput

from hf_bidir import signed
from hf_bidir.finetune.arguments import HealingArguments
from hf_bidir.finetune.distillation import DistillationTrainer, prediction_difference, relative_error
from hf_bidir.finetune.metrics import distillation_metrics
from tests.tiny_models import word_tokenizer

SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}


def outputs(*layers, logits=None):
    """Outputs of a model whose hidden states are, from the embeddings, these."""
    head = {"last_hidden_state": layers[-1]} if logits is None else {"logits": logits}
    return ModelOutput(hidden_states=layers, **head)


def test_every_token_of_a_layer_counts_the_same_whatever_its_norm():
    teacher = torch.tensor([[[1e4, 0.0], [1.0, 0.0], [0.0, 2.0]]])
    student = torch.tensor([[[1e4, 0.0], [2.0, 0.0], [0.0, 4.0]]])  # the relative errors are 0, 1 and 1
    states = [outputs(torch.zeros(1, 3, 2), layers, layers) for layers in (student, teacher)]
    assert relative_error(*states).item() == pytest.approx(2 / 3)
    assert relative_error(*states, torch.tensor([[1, 1, 0]])).item() == pytest.approx(1 / 2)


def test_an_undecided_prediction_does_not_outweigh_the_others():
    teacher, student = torch.tensor([[3.0, 0.0], [0.0, 1e-6]]), torch.tensor([[3.0, 0.0], [0.0, 0.3]])
    states = [outputs(torch.zeros(2, 1, 1), torch.ones(2, 1, 1), logits=logits) for logits in (student, teacher)]
    assert relative_error(*states).item() == pytest.approx(0.09 / 9 / 2, rel=1e-4)


def test_the_difference_counts_tokens_and_not_padding():
    generator = torch.Generator().manual_seed(0)
    found, expected = (ModelOutput(logits=torch.randn(2, 3, 4, generator=generator)) for _ in range(2))
    keep = torch.tensor([[1, 1, 1], [1, 0, 0]])
    rows = [(0, 0), (0, 1), (0, 2), (1, 0)]
    theirs, ours = expected.logits.softmax(-1), found.logits.softmax(-1)
    nats = [(theirs[row] * (theirs[row] / ours[row]).log()).sum() for row in rows]
    torch.testing.assert_close(prediction_difference(found, expected, keep), torch.stack(nats).mean())


def test_without_classes_the_difference_is_the_error_of_what_is_predicted():
    student, teacher = torch.tensor([[2.0], [2.0]]), torch.tensor([[1.0], [2.0]])
    states = [outputs(torch.zeros(2, 1, 1), torch.ones(2, 1, 1), logits=logits) for logits in (student, teacher)]
    assert prediction_difference(*states, None).item() == pytest.approx(1 / 5)


def test_the_difference_of_spans_counts_both_ends():
    one, other = torch.tensor([[2.0, 0.0, 0.0]]), torch.zeros(1, 3)
    outputs = [
        ModelOutput(start_logits=start, end_logits=end) for start, end in ((one, one), (other, one), (one, other))
    ]
    expected, *found = outputs
    assert prediction_difference(found[0], expected, None) == prediction_difference(found[1], expected, None) > 0


@pytest.fixture
def language_model():
    """A softmax language model whose predictions are far from uniform."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=1.0)).eval()


def trainer_of(teacher, folder, **more):
    student = signed(LlamaForCausalLM(teacher.config), negative_mass=1.0)
    student.load_state_dict(teacher.state_dict())
    args = HealingArguments(str(folder), use_cpu=True, disable_tqdm=True, max_steps=2, save_strategy="no")
    metrics = distillation_metrics(generates_text=True)
    return DistillationTrainer(model=student, teacher=teacher, args=args, compute_metrics=metrics, **more)


def test_the_perplexities_are_those_of_the_losses_that_the_models_compute(language_model, tmp_path):
    collator = DataCollatorWithPadding(word_tokenizer())
    rows = Dataset.from_list([{"input_ids": [*range(5, 5 + n)], "attention_mask": [1] * n} for n in (3, 9, 6)])
    trainer = trainer_of(language_model, tmp_path, eval_dataset=rows, data_collator=collator)
    found = trainer.evaluate()
    with torch.no_grad():
        for name, model in (("eval_perplexity", trainer.model), ("eval_teacher_perplexity", language_model)):
            texts = [torch.tensor([row]) for row in rows["input_ids"]]
            losses = [model(ids, labels=ids).loss * (ids.shape[1] - 1) for ids in texts]
            assert found[name] == pytest.approx((sum(losses) / (2 + 8 + 5)).exp().item(), rel=1e-4)


def test_the_agreement_is_the_share_of_rows_for_which_student_and_teacher_predict_the_same_class(tmp_path):
    torch.manual_seed(0)
    teacher = BertForSequenceClassification(BertConfig(**SHAPE, initializer_range=1.0, num_labels=3)).eval()
    student = signed(BertForSequenceClassification(teacher.config), negative_mass=1.0)
    student.load_state_dict(teacher.state_dict())
    with torch.no_grad():
        student.classifier.bias += torch.tensor([100.0, 0.0, 0.0])
        ids = torch.randint(5, 20, (30, 6))
        share = (teacher(ids).logits.argmax(-1) == 0).float().mean().item()
    assert 0 < share < 1
    args = HealingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, eval_strategy="no", save_strategy="no")
    metrics = distillation_metrics(classifies=True)
    trainer = DistillationTrainer(model=student, teacher=teacher, args=args, compute_metrics=metrics)
    measured = trainer.evaluate(Dataset.from_list([{"input_ids": row} for row in ids.tolist()]))
    assert measured["eval_agreement"] == pytest.approx(share)
