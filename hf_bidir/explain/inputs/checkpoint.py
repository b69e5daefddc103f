"""Load any checkpoint, signed or softmax, for explanation."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from hf_bidir.checkpoints.kinds import image_text_auto
from hf_bidir.checkpoints.reading import open_checkpoint

from ..forward import check_kind, reads_images
from .sentences import sentence_encoder


def load_checkpoint(source: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a bidir checkpoint as it is, or a softmax one of transformers or timm as the equal bidir model (`λ = 0`).

    A model that cannot be signed stays as it is.

    Returns:
        The model, in fp32 and evaluation mode, and its tokenizer, image processor, or processor of both; a model of
        both is as it was saved. A folder of sentence-transformers is a `SentenceEncoder`, whose output is the
        embedding; its `transformer` is the model without pooling.

    Raises:
        FileNotFoundError: no such checkpoint, or one without weights, tokenizer or image processor.
        ValueError: it reads neither a text nor an image, or has several outputs for it; its tokenizer has tokens
            without an embedding; or as in `sentence_encoder`.
        ModuleNotFoundError: a folder of sentence-transformers, which is not installed.
    """
    checkpoint = open_checkpoint(source)
    if not checkpoint.sentences:  # before the weights are downloaded
        check_kind(checkpoint.head, checkpoint.config)
    joint = image_text_auto(checkpoint.head, checkpoint.config) is not None
    try:
        model = (checkpoint.model if joint else checkpoint.signed_model)(torch.float32)
    except ValueError:
        if checkpoint.sentences:
            raise
        model = checkpoint.model(torch.float32)  # one that cannot be signed has deletion
    images = reads_images(model)
    for processor in checkpoint.processors(model):
        wanted = ProcessorMixin if joint else PreTrainedTokenizerBase
        if isinstance(processor, wanted) != images:
            break
    else:
        kind = "processor" if joint else "image processor" if images else "tokenizer"
        raise FileNotFoundError(f"{source} has no {kind} beside its weights; save one there with save_pretrained.")
    model.config.name_or_path = str(source)  # also of an adapter or a model of timm
    if checkpoint.sentences:
        model = sentence_encoder(model, processor, checkpoint.sentences)
    return model.eval(), processor
