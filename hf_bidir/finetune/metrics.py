"""What an evaluation measures: of classes, of masked words, of sequences, of a student beside its teacher."""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, recall_score
from torch import Tensor
from transformers import EvalPrediction, PreTrainedTokenizerBase

# the metrics that describe a run best, in order of preference
HEADLINES = ("accuracy", "exact_match", "relative_error", "masked_accuracy", "perplexity")


def classification_metrics(names: list[str]) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make a `compute_metrics` for predictions that `predicted_classes` has reduced to label indices.

    Args:
        names: the class names, by label index.

    Returns:
        A function from an evaluation's predictions to `accuracy`, `macro_f1` and `recall_<class name>`, each
        in [0, 1]. A class without an example in the evaluated split has no recall and is left out.
    """

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        truth, predicted = evaluation.label_ids, evaluation.predictions
        present = np.unique(truth)
        recalls = recall_score(truth, predicted, labels=present, average=None)
        return {
            "accuracy": float(accuracy_score(truth, predicted)),
            "macro_f1": float(f1_score(truth, predicted, average="macro")),
            **{f"recall_{names[index]}": float(recall) for index, recall in zip(present, recalls, strict=True)},
        }

    return compute


def predicted_classes(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """The index of the largest logit: all that the metrics need, so evaluation need not keep the logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def masked_word_metrics(evaluation: EvalPrediction) -> dict[str, float]:
    """`masked_accuracy` in [0, 1]: how many of the masked tokens (label not -100) `predicted_classes` found."""
    masked = evaluation.label_ids != -100
    return {"masked_accuracy": float((evaluation.predictions == evaluation.label_ids)[masked].mean())}


def sequence_metrics(tokenizer: PreTrainedTokenizerBase) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make a `compute_metrics` for what a model has written by `generate`.

    Returns:
        A function from an evaluation's predictions to `exact_match`, how many sequences are right from the first token
        to the last, and `token_accuracy`, how many of the target's tokens, its end included, stand in their place; both
        in [0, 1]. A target with an unknown word cannot be matched.
    """

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        exact, right, count = 0, 0, 0
        for written, target in zip(evaluation.predictions, evaluation.label_ids, strict=True):
            target = target[(target != -100) & (target != tokenizer.pad_token_id)]  # the Trainer pads with either
            answer = written[1 : 1 + len(target)]  # behind the token that every sequence starts with
            same = answer == target[: len(answer)]
            same &= answer != tokenizer.unk_token_id
            right, count = right + int(same.sum()), count + len(target)
            exact += int(same.sum()) == len(target)  # its last token is the end
        return {"exact_match": exact / len(evaluation.label_ids), "token_accuracy": right / count}

    return compute


def relative_error_metrics(evaluation: EvalPrediction) -> dict[str, float]:
    """How far a student is from its teacher, relative to the teacher, over a whole split.

    Args:
        evaluation: `predictions` `[examples, states]`, the squared distances of the student's states to the
            teacher's; `label_ids`, the squared norms of the teacher's.

    Returns:
        `relative_error`, the mean over states, and `relative_error_<index>` of each; 0.01 is 1 %.
    """
    errors = evaluation.predictions.sum(0, dtype=np.float64) / evaluation.label_ids.sum(0, dtype=np.float64)
    each = {f"relative_error_{index}": float(error) for index, error in enumerate(errors)}
    return {"relative_error": float(errors.mean()), **each}
