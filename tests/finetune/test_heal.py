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
from hf_bidir.finetune.arguments import StepArguments
from hf_bidir.finetune.distillation import DistillationTrainer, prediction_difference, relative_error
from hf_bidir.finetune.metrics import distillation_metrics
from tests.tiny_models import word_tokenizer

SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
COLLATOR = DataCollatorWithPadding(word_tokenizer())


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


def predicting(*logits):
    """Outputs of models with these logits and the same hidden states."""
    same = torch.ones(len(logits[0]), 1, 1)
    return [outputs(same, same, logits=torch.tensor(each)) for each in logits]


def test_an_undecided_prediction_does_not_outweigh_the_others():
    student, teacher = predicting([[3.0, 0.0], [0.0, 0.3]], [[3.0, 0.0], [0.0, 1e-6]])
    assert relative_error(student, teacher).item() == pytest.approx(0.09 / 9 / 2, rel=1e-4)


def test_without_classes_the_difference_is_the_error_of_what_is_predicted():
    student, teacher = predicting([[2.0], [2.0]], [[1.0], [2.0]])
    assert prediction_difference(student, teacher, None).item() == pytest.approx(1 / 5)


def test_the_difference_counts_tokens_and_not_padding():
    generator = torch.Generator().manual_seed(0)
    found, expected = (ModelOutput(logits=torch.randn(2, 3, 4, generator=generator)) for _ in range(2))
    keep = torch.tensor([[1, 1, 1], [1, 0, 0]])
    rows = [(0, 0), (0, 1), (0, 2), (1, 0)]
    theirs, ours = expected.logits.softmax(-1), found.logits.softmax(-1)
    nats = [(theirs[row] * (theirs[row] / ours[row]).log()).sum() for row in rows]
    torch.testing.assert_close(prediction_difference(found, expected, keep), torch.stack(nats).mean())


def test_the_difference_of_spans_counts_both_ends():
    one, other = torch.tensor([[2.0, 0.0, 0.0]]), torch.zeros(1, 3)
    ends = [(one, one), (other, one), (one, other)]
    teacher, *students = (ModelOutput(start_logits=start, end_logits=end) for start, end in ends)
    first, second = (prediction_difference(student, teacher, None) for student in students)
    assert first == second > 0


def trainer_of(head, config, folder):
    """A trainer whose student starts as a softmax teacher whose predictions are far from uniform."""
    torch.manual_seed(0)
    teacher = head(config(**SHAPE, initializer_range=1.0, num_labels=3)).eval()
    student = signed(head(teacher.config), negative_mass=1.0)
    student.load_state_dict(teacher.state_dict())
    args = StepArguments(str(folder), use_cpu=True, disable_tqdm=True, eval_strategy="no", save_strategy="no")
    options = {"compute_metrics": distillation_metrics, "data_collator": COLLATOR}
    return DistillationTrainer(model=student, teacher=teacher, args=args, **options)


def test_perplexities_are_those_of_the_models_losses_and_the_agreement_that_of_tokens_without_padding(tmp_path):
    trainer = trainer_of(LlamaForCausalLM, LlamaConfig, tmp_path)
    rows = [{"input_ids": [*range(5, 5 + length)], "attention_mask": [1] * length} for length in (3, 9, 6)]
    measured = trainer.evaluate(Dataset.from_list(rows))
    texts, models = [torch.tensor([row["input_ids"]]) for row in rows], (trainer.model, trainer.teacher)
    for name, model in zip(("eval_perplexity", "eval_teacher_perplexity"), models, strict=True):
        with torch.no_grad():
            losses = [model(ids, labels=ids).loss * (ids.shape[1] - 1) for ids in texts]
        assert measured[name] == pytest.approx((sum(losses) / (2 + 8 + 5)).exp().item(), rel=1e-4)
    with torch.no_grad():
        ours, theirs = (torch.cat([model(ids).logits.argmax(-1)[0] for ids in texts]) for model in models)
    assert 0 < measured["eval_agreement"] < 1
    assert measured["eval_agreement"] == pytest.approx((ours == theirs).float().mean().item())


def test_the_agreement_is_the_share_of_rows_for_which_student_and_teacher_predict_the_same_class(tmp_path):
    trainer = trainer_of(BertForSequenceClassification, BertConfig, tmp_path)
    ids = torch.randint(5, 20, (30, 6))
    with torch.no_grad():
        trainer.model.classifier.bias += torch.tensor([100.0, 0.0, 0.0])
        share = (trainer.teacher(ids).logits.argmax(-1) == 0).float().mean().item()
    assert 0 < share < 1
    measured = trainer.evaluate(Dataset.from_list([{"input_ids": row} for row in ids.tolist()]))
    assert measured["eval_agreement"] == pytest.approx(share)
