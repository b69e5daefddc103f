"""The explanation of one validation example, for the card of a classifier."""

import logging
from pathlib import Path
from typing import Any

from hf_bidir.common.files import save_figure
from hf_bidir.finetune.record import PICTURE

logger = logging.getLogger(__name__)


def draw_example(folder: str | Path, example: dict[str, Any]) -> None:
    """Explain a validation example by the saved checkpoint, and draw it into the folder.

    The picture shows the example. A failure, or a missing extra, is a warning: it must not cost a finished run.

    Args:
        folder: a checkpoint of a classifier.
        example: a row of the validation split, with an `image` or with the `input_ids` of a text.
    """
    try:
        from hf_bidir.explain import explain, load_checkpoint

        model, processor = load_checkpoint(folder)
        shown = example.get("image") or processor.decode(example["input_ids"], skip_special_tokens=True)
        explained: Any = explain(model, processor, shown)
        save_figure(explained.plot(), Path(folder, PICTURE), dpi=100)
    except Exception as error:
        logger.warning("The card has no explained example: %s", error)
