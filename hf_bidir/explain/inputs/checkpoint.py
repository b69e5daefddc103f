"""Load any checkpoint, signed or softmax, for explanation."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.convert import signed_model
from hf_bidir.checkpoints.reading import checkpoint_processors, read_bidir, read_config, stock_head
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.model_types import is_signed
from hf_bidir.explain.inputs.sentences import sentence_encoder
from hf_bidir.explain.record import check_kind, reads_images


def load_checkpoint(source: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a bidir checkpoint as it is, or a softmax one of transformers or timm as the equal bidir model (`λ = 0`).

    Returns:
        The model, in fp32 and evaluation mode, and its tokenizer or image processor. A folder of sentence-transformers
        is a `SentenceEncoder`, whose output is the embedding; its `transformer` is the model without pooling.

    Raises:
        FileNotFoundError: no such checkpoint, or one without weights, tokenizer or image processor.
        ValueError: it reads neither one text nor one image, or has several outputs for it; its attention cannot be made
            signed, or its tokenizer has tokens without an embedding; or as in `sentence_encoder`.
        ModuleNotFoundError: a folder of sentence-transformers, which is not installed.
    """
    timm = str(source).startswith(TIMM_PREFIX)
    sentences = None if timm else sentence_folder(source)
    transformer = sentences.transformer if sentences else source
    config = None if timm else read_config(transformer)
    if config is not None and is_signed(type(config).model_type):
        if sentences:
            sentences.fetch_weights()
        model = read_bidir(transformer, torch.float32)
        processors = checkpoint_processors(transformer, model)
    else:
        if config is not None and not sentences:  # before the weights are downloaded and compared
            check_kind(stock_head(config, source), config)
        model, processors, _ = signed_model(source, dtype=torch.float32, quantised=True)
    check_kind(type(model), model.config)
    images = reads_images(model)
    fitting = [found for found in processors if isinstance(found, PreTrainedTokenizerBase) != images]
    if not fitting:
        kind = "image processor" if images else "tokenizer"
        raise FileNotFoundError(f"{source} has no {kind} beside its weights; save one there with save_pretrained.")
    model = sentence_encoder(model, fitting[0], sentences) if sentences else model
    return model.eval(), fitting[0]
