"""A sentence encoder: a transformer and the modules that pool its states into one embedding, as its folder says."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.sentence_folder import SentenceFolder
from hf_bidir.common.extras import extra

COSINE, DOT = "cosine", "dot"  # similarities to a fixed text that are linear, cosine once the embedding is normalised


class SentenceEncoder(PreTrainedModel):
    """A signed transformer with the modules of its sentence-transformers folder; computes one embedding per text.

    Attributes:
        parts: the modules from pooling to normalisation.
        prompt: stands before every text.
        against, reference: a text that is compared, and its embedding `[entries]`; None without comparison.
    """

    base_model_prefix, main_input_name, makes_embeddings = "transformer", "input_ids", True

    def __init__(
        self, transformer: PreTrainedModel, parts: Sequence[nn.Module], similarity: str = COSINE, prompt: str = ""
    ) -> None:
        nn.Module.__init__(self)  # the transformer has checked the config, and chosen the attention
        self.config, self.transformer, self.parts = transformer.config, transformer, nn.ModuleList(parts)
        self.similarity, self.prompt = similarity, prompt
        self.against = ""
        self.reference: Tensor | None = None
        self.train(transformer.training)

    @property
    def pooling(self) -> Any:
        """The module that makes one vector of the states of all tokens."""
        return next(part for part in self.parts if _kind(part) == "Pooling")

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, pooled: Tensor | None = None, **options: Any
    ) -> ModelOutput:
        """The embedding `[batch, entries]`, before its normalisation if it is not compared, of the `pooled` tokens."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.transformer(input_ids=input_ids, attention_mask=mask, **options).last_hidden_state
        mask = mask if pooled is None else mask * pooled
        features = {"token_embeddings": states, "input_ids": input_ids, "attention_mask": mask}
        for part in self.parts:
            if self.reference is not None or _kind(part) != "Normalize":
                features = part(features)
        embedding: Any = features["sentence_embedding"]
        if self.reference is not None and self.similarity == COSINE:
            embedding = nn.functional.normalize(embedding, dim=-1)
        return ModelOutput(sentence_embedding=embedding)

    def pooling_weights(self, keep: Tensor) -> Tensor:
        """The share of each token in the pooling, `[batch, length]` as the mask `keep`; equal shares for a maximum."""
        batch, length = keep.shape
        units = torch.eye(length, device=keep.device).expand(batch, -1, -1)
        pooled = self.pooling({"token_embeddings": units, "attention_mask": keep.long()})
        by_mode = pooled["sentence_embedding"].unflatten(1, (-1, length))
        shares = by_mode.sum(1) * keep
        return shares / shares.sum(1, keepdim=True)

    @torch.no_grad()
    def compared_with(self, tokenizer: Any, text: str) -> "SentenceEncoder":
        """The same encoder with the similarity to another text as its `y`; ValueError unless it is cosine or dot."""
        if not text.strip():
            raise ValueError(f"expected a second text with at least one word, got {text!r}.")
        if self.similarity not in (COSINE, DOT):
            raise ValueError(
                f"the folder compares embeddings by {self.similarity}; only the similarities {COSINE} and {DOT} are "
                "explained. Leave out the second text."
            )
        compared = copy.copy(self)  # with the same modules
        compared.against, compared.reference = text, torch.empty(0)
        inputs = tokenizer(self.prompt + text, truncation=True, return_tensors="pt").to(self.device)
        compared.reference = compared(**inputs).sentence_embedding[0]
        return compared

    @property
    def described(self) -> str:
        """What the modules compute, in words."""
        modes = self.pooling.pooling_mode
        modes = modes if isinstance(modes, str) else " and ".join(modes)
        return f"{type(self.transformer).__name__}, pooling: {modes}"


def sentence_encoder(transformer: PreTrainedModel, tokenizer: Any, folder: SentenceFolder) -> PreTrainedModel:
    """The transformer with the other modules of its folder; itself if they make no embedding of a text.

    Sets the tokenizer's limit. Raises ValueError for a module that is not part of sentence-transformers, or a prompt
    that is not pooled.
    """
    if not folder.embeds:
        return transformer
    with extra("sentences"):
        from sentence_transformers.util import import_from_string
    name, settings, parts = folder.folder, folder.settings, []
    for module in folder.modules:
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{name} has the module {module['type']}, whose code is not part of sentence-transformers; such an "
                "embedding is not explained."
            )
        part: Any = import_from_string(module["type"])
        parts.append(part.load(str(folder.folder), subfolder=module["path"]))
    if not any(_kind(part) == "Pooling" for part in parts):
        return transformer
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"), "")
    encoder = SentenceEncoder(transformer, parts, settings.get("similarity_fn_name") or COSINE, prompt)
    if settings.get("do_lower_case") or (prompt and not encoder.pooling.include_prompt):
        raise ValueError(
            f"{name} lowers letters outside its tokenizer, or leaves its prompt out of the pooling; that is not "
            "explained."
        )
    limit = settings.get("max_seq_length") or tokenizer.model_max_length
    tokenizer.model_max_length = min(limit, tokenizer.model_max_length)
    return encoder.to(transformer.device)


def _kind(part: nn.Module) -> str:
    return type(part).__name__
