"""The models of the Space, their examples, and explanations of one input by a model and its counterpart."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.explain import METHODS, explain, load_checkpoint
from hf_bidir.explain.alignment import Alignment
from hf_bidir.explain.result import Explanation

EXAMPLES = Path(__file__).resolve().parent / "examples"  # a folder of images per data set
ACTIVATIONS = {"tanhmax": "Signed attention (TanhMax)", "softmax": "Softmax attention"}
LONGEST = 2000  # letters of a text
LOADED = 4  # maximum checkpoints in memory
DEFAULT, PREDICTED = "the default", "the prediction"  # as a method or a target, in place of a name
SENTENCES = (
    "a warm and funny film with a weak ending",  # the models that the page opens with agree on it
    "the plot is dull, but the actors are wonderful",
    "not a bad film at all",
)
PROMPTS = ("The acting was terrible and the story was", "This is one of the best", "I did not like the")
NO_IMAGE = "There is nothing to explain yet: upload an image."


def counterpart_of(checkpoint: str, checkpoints: list[str]) -> str | None:
    """The checkpoint whose name differs only in the activation, preferably in the same folder or of the same owner."""
    path = Path(checkpoint)
    for activation, counterpart in (("tanhmax", "softmax"), ("softmax", "tanhmax")):
        before, separator, after = path.name.rpartition(activation)
        named = [name for name in checkpoints if Path(name).name == f"{before}{counterpart}{after}"]
        if separator and named:
            return min(named, key=lambda name: Path(name).parent != path.parent)
    return None


def with_counterpart(checkpoint: str, checkpoints: list[str]) -> list[str]:
    other = counterpart_of(checkpoint, checkpoints)
    return [checkpoint, other] if other else [checkpoint]


def attention_of(checkpoint: str) -> str:
    """The kind of attention, from the name of a checkpoint."""
    name = Path(checkpoint).name
    return next((title for activation, title in ACTIVATIONS.items() if activation in name), "Model")


def offered_models(checkpoints: list[str]) -> list[tuple[str, str]]:
    """Label and checkpoint of every choice: the signed one of each pair, and those without a counterpart."""
    offered = []
    for checkpoint in checkpoints:
        name, other = Path(checkpoint).name, counterpart_of(checkpoint, checkpoints)
        if other and "softmax" in name and counterpart_of(other, checkpoints) == checkpoint:
            continue
        offered.append((name.replace("-tanhmax", "") if other else name, checkpoint))
    return offered


@lru_cache(LOADED)
def loaded(checkpoint: str) -> tuple[PreTrainedModel, object]:
    return load_checkpoint(checkpoint)


def takes_images(checkpoint: str) -> bool:
    return loaded(checkpoint)[0].main_input_name == "pixel_values"


def examples_of(checkpoint: str) -> list[str]:
    """Texts, or image files."""
    model, processor = loaded(checkpoint)
    if takes_images(checkpoint):
        name = Path(checkpoint).name
        folders = [folder for folder in sorted(EXAMPLES.iterdir()) if name.startswith(folder.name)]
        folder = folders[0] if folders else EXAMPLES / "digits"
        return sorted(map(str, folder.glob("*.png")))
    if not kind_of(model).names_tokens:
        return list(SENTENCES)
    if "MaskedLM" in type(model).__name__:
        return [f"The film was {processor.mask_token} and I loved it."]
    return list(PROMPTS)


def read_text(text: str) -> str:
    """The beginning of a text, with a leading space, so that it cannot name a file."""
    if not text.strip():
        raise ValueError("There is nothing to explain yet: type a text.")
    return f" {text.strip()[:LONGEST]}"


def explanations(
    names: list[str], text_or_image: Any, method: str, target: str, head: Sequence[int] = ()
) -> tuple[list[Explanation | Alignment], list[str]]:
    """Each model's explanation, and the predicted classes, none for a given target or for models without classes.

    Where the predictions differ, both explanations are of the first model's. A layer and a head alone are explained by
    contributions, as on the command line, where the method takes all heads together.
    """
    # the explanation of an encoder-decoder, of several tokens, has no details
    choices: dict[str, Any] = {"details": not loaded(names[0])[0].config.is_encoder_decoder}
    if method != DEFAULT and (not head or METHODS[method].takes_head):
        choices["method"] = method
    if target != PREDICTED:
        choices["target"] = target
    if head:
        choices["layer"], choices["head"] = head
    results = [explain(*loaded(name), text_or_image, **choices) for name in names]
    if target != PREDICTED:
        return results, []
    classes = [name for name in map(predicted_class, names, results) if name is not None]
    if len(set(classes)) > 1:
        choices["target"] = classes[0]
        results[1] = explain(*loaded(names[1]), text_or_image, **choices)
    return results, classes


def verdict(classes: list[str]) -> str:
    """Whether the predictions of two models agree, in words; empty for other numbers of models."""
    if len(classes) < 2:
        return ""
    if len(set(classes)) > 1:
        return f"The models differ; both are explained for “{classes[0]}”."
    return f"Both models predict “{classes[0]}”."


def predicted_class(checkpoint: str, explanation: Explanation | Alignment) -> str | None:
    """The class that a classifier predicts and that was explained; None for other models."""
    model = loaded(checkpoint)[0]
    classifies = "Classification" in type(model).__name__ and model.config.num_labels > 1
    return model.config.id2label[explanation.target] if classifies else None
