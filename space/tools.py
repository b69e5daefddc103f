"""The explanations of the page as JSON, for programs: tools of MCP and endpoints of Gradio's API.

They return text, because Gradio would send anything else over MCP as Python prints it.
"""

import base64
import binascii
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from models import (
    DEFAULT,
    LONGEST,
    NO_IMAGE,
    PREDICTED,
    attention_of,
    examples_of,
    explanations,
    loaded,
    offered_models,
    predicted_class,
    read_text,
    takes_images,
    verdict,
    with_counterpart,
)
from PIL import Image

from hf_bidir.common.images import image_formats
from hf_bidir.explain import explain
from hf_bidir.explain.alignment import Alignment
from hf_bidir.explain.request import methods_of
from hf_bidir.explain.result import Explanation

LARGEST = 14_000_000  # letters: a file of 10 MB
MEGAPIXELS = 16  # of a decoded image


def add_tools(checkpoints: list[str]) -> None:
    """Add the tools to the page that is being built."""
    offered = dict(offered_models(checkpoints))

    def models() -> str:
        """List the models that can be explained.

        Returns:
            JSON: per model its name, whether it takes a text or an image, the methods that explain it, an example text.
        """
        return json.dumps([_described(name, checkpoint) for name, checkpoint in offered.items()])

    def explain(model: str, text: str = "", image: str = "", method: str = "", target: str = "") -> str:
        """Explain which words of a text, or patches of an image, support a model's prediction and which oppose it.

        The model has signed attention; where a softmax counterpart of it is known, that is explained too, for the same
        class. A positive score supports the explained class, a negative one opposes it.

        Args:
            model: a name from `models`.
            text: the text to explain, for a model that takes texts.
            image: the image to explain, for a model that takes images: a file in base64, or a data URL of it.
            method: how to explain, one of the model's methods; empty for its default.
            target: the class, or for a language model the word, to explain; empty for the prediction.

        Returns:
            JSON: "agree", whether both models predict one class, in words in "verdict"; "truncated", whether the text
            was too long and its end left out; and in "models" per model its "prediction", a "summary", and "scores",
            one for each of the "tokens" of its "example", words or patches. Models without classes have null for
            "agree" and "prediction".
        """
        try:
            if model not in offered:
                raise ValueError(f"there is no model {model!r}; choose one of: {', '.join(offered)}.")
            names = with_counterpart(offered[model], checkpoints)
            text_or_image = _image(image) if takes_images(names[0]) else read_text(text)
            results, classes = explanations(names, text_or_image, method or DEFAULT, target or PREDICTED)
            predicted = classes or [_prediction(name, text_or_image) for name in names]
        except (ValueError, OSError) as error:
            raise gr.Error(str(error), print_exception=False) from error
        comparable = len(predicted) > 1 and predicted[0] is not None
        answer = {
            "agree": len(set(predicted)) == 1 if comparable else None,
            "verdict": verdict(classes),
            "truncated": len(text.strip()) > LONGEST,
            "models": list(map(_numbers, names, results, predicted)),
        }
        return json.dumps(answer)

    for tool in (models, explain):
        gr.api(tool, concurrency_id="page")


@cache  # so that a second list loads no weights
def _described(name: str, checkpoint: str) -> dict[str, Any]:
    images = takes_images(checkpoint)
    described = {"name": name, "takes": "image" if images else "text"}
    described["methods"] = list(methods_of(loaded(checkpoint)[0]))
    return described if images else described | {"example": examples_of(checkpoint)[0]}


def _image(data: str) -> Image.Image:
    if not data:
        raise ValueError(NO_IMAGE)
    if len(data) > LARGEST:
        raise ValueError(f"expected an image of at most {LARGEST:,} letters in base64, got {len(data):,}.")
    try:
        content = base64.b64decode(data.rpartition(",")[2], validate=True)
        opened = Image.open(io.BytesIO(content), formats=image_formats())  # which reads the size alone
        if opened.width * opened.height <= MEGAPIXELS * 10**6:
            opened.load()
            return opened
    except (binascii.Error, OSError) as error:
        raise ValueError("expected an image file in base64; this is none that can be read.") from error
    except Image.DecompressionBombError:  # many more
        pass
    raise ValueError(f"expected an image of at most {MEGAPIXELS} megapixels; make it smaller.")


def _prediction(checkpoint: str, text_or_image: Any) -> str | None:
    """The class that a classifier predicts, of which another one was explained; None for other models."""
    model = loaded(checkpoint)[0]
    if "Classification" not in type(model).__name__:
        return None
    return predicted_class(checkpoint, explain(*loaded(checkpoint), text_or_image))


def _numbers(checkpoint: str, result: Explanation | Alignment, prediction: str | None) -> dict[str, Any]:
    numbers = result.to_dict() if isinstance(result, Explanation) else {}
    numbers |= {"model": Path(checkpoint).name, "attention": attention_of(checkpoint)}
    return numbers | {"prediction": prediction, "summary": result.summary()}
