"""What the name of a model class tells: its Auto class, its task, and what its outputs are."""

from typing import NamedTuple

from transformers import PreTrainedModel


class Kind(NamedTuple):
    """A kind of head.

    Attributes:
        ending: of the names of its classes.
        auto: its Auto class.
        task: its name on the Hub.
        has_pipeline: whether transformers has a pipeline for the task.
        names_tokens: whether its logits are those of a vocabulary, at every position.
        per_token: whether it has outputs for every position.
        causal: whether it predicts the next token.
        peft_task: peft's name of the task.
    """

    ending: str
    auto: str
    task: str
    has_pipeline: bool = True
    names_tokens: bool = False
    per_token: bool = False
    causal: bool = False
    peft_task: str | None = None

    @property
    def pipeline(self) -> str | None:
        """The name of the task's pipeline."""
        return self.task if self.has_pipeline else None


_CAUSAL = "AutoModelForCausalLM", "text-generation", True, True, True, True, "CAUSAL_LM"
# Where several fit a config, the first counts.
KINDS = (
    Kind("Model", "AutoModel", "feature-extraction"),
    Kind("ForImageClassification", "AutoModelForImageClassification", "image-classification"),
    Kind("ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification", peft_task="SEQ_CLS"),
    Kind(
        "ForTokenClassification", "AutoModelForTokenClassification", "token-classification", per_token=True,
        peft_task="TOKEN_CLS",
    ),
    Kind("ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering", peft_task="QUESTION_ANS"),
    Kind("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask", names_tokens=True, per_token=True),
    Kind("ForCausalLM", *_CAUSAL),
    Kind("LMHeadModel", *_CAUSAL),
    Kind("ForImageTextToText", "AutoModelForImageTextToText", "image-text-to-text"),
    Kind("ForZeroShotImageClassification", "AutoModelForZeroShotImageClassification", "zero-shot-image-classification"),
    Kind("ForObjectDetection", "AutoModelForObjectDetection", "object-detection"),
    Kind("ForSemanticSegmentation", "AutoModelForSemanticSegmentation", "image-segmentation"),
    Kind("ForAudioClassification", "AutoModelForAudioClassification", "audio-classification"),
    Kind("ForSpeechSeq2Seq", "AutoModelForSpeechSeq2Seq", "automatic-speech-recognition"),
    Kind("ForSeq2SeqLM", "AutoModelForSeq2SeqLM", "text2text-generation", False, peft_task="SEQ_2_SEQ_LM"),
)  # fmt: skip
NO_HEAD = KINDS[0]
BY_AUTO_CLASS = {kind.auto: kind for kind in reversed(KINDS)}


def kind_of(model: PreTrainedModel | str) -> Kind:
    """The kind of a model or of a class with this name; `NO_HEAD` if its name tells none."""
    name = model if isinstance(model, str) else type(model).__name__
    return next((kind for kind in KINDS[1:] if name.endswith(kind.ending)), NO_HEAD)
