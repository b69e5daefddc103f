"""A sentence encoder: a transformer and the modules that pool its states into one embedding, as its folder says."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.sentence_folder import SentenceFolder
from hf_bidir.common.extras import extra

LINEAR_IN_THE_EMBEDDING = ("cosine", "dot")  # similarities to a fixed text, cosine once the embedding is normalised


class SentenceEncoder(PreTrainedModel):
    """A signed transformer with the modules of its sentence-transformers folder; computes one embedding per text.

    `parts` are the modules from pooling to normalisation; `prompt` stands before every text; `reference` `[entries]` is
    the embedding of the text `against`, which this one is compared with.
    """

    base_model_prefix, makes_embeddings = "transformer", True
    main_input_name = "input_ids"

    def __init__(
        self,
        transformer: PreTrainedModel,
        parts: Sequence[nn.Module],
        similarity: str = "cosine",
        prompt: str = "",
        lower_case: bool = False,
        against: str = "",
        reference: Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)  # the transformer has checked the config, and chosen the attention
        self.config = transformer.config
        self.transformer, self.parts = transformer, nn.ModuleList(parts)
        self.similarity, self.prompt, self.lower_case = similarity, prompt, lower_case
        self.against, self.reference = against, reference
        self.train(transformer.training)

    @property
    def pooling(self) -> Any:
        """The module that makes one vector of the states of all tokens."""
        return next(part for part in self.parts if _kind(part) == "Pooling")

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, pooled: Tensor | None = None, **others: Any
    ) -> ModelOutput:
        """The embedding `[batch, entries]`, before its normalisation if it is not compared, of the `pooled` tokens."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.transformer(input_ids=input_ids, attention_mask=mask, **others).last_hidden_state
        mask = mask if pooled is None else mask * pooled
        features = {"token_embeddings": states, "input_ids": input_ids, "attention_mask": mask}
        for part in self.parts:
            if self.reference is not None or _kind(part) != "Normalize":
                features = part(features)
        embedding: Any = features["sentence_embedding"]
        if self.reference is not None and self.similarity == "cosine":
            embedding = nn.functional.normalize(embedding, dim=-1)
        return ModelOutput(sentence_embedding=embedding)

    def pooling_weights(self, keep: Tensor) -> Tensor:
        """The share of each token in the pooling, `[batch, length]` as the mask `keep`; equal shares for a maximum."""
        each = torch.eye(keep.shape[1], device=keep.device).expand(len(keep), -1, -1)
        pooled: Any = self.pooling({"token_embeddings": each, "attention_mask": keep.long()})["sentence_embedding"]
        shares = pooled.unflatten(1, (-1, keep.shape[1])).sum(1) * keep
        return shares / shares.sum(1, keepdim=True)

    def spelled(self, text: str) -> str:
        """The text as sentence-transformers hands it to the tokenizer."""
        text = self.prompt + text
        return text.lower() if self.lower_case else text

    @torch.no_grad()
    def compared_with(self, tokenizer: Any, text: str) -> "SentenceEncoder":
        """The same encoder with the similarity to another text as its `y`; ValueError unless it is cosine or dot."""
        if not text.strip():
            raise ValueError(f"expected a second text with at least one word, got {text!r}.")
        if self.similarity not in LINEAR_IN_THE_EMBEDDING:
            raise ValueError(
                f"the folder compares embeddings by {self.similarity}; only the similarities "
                f"{' and '.join(LINEAR_IN_THE_EMBEDDING)} are explained. Leave out the second text."
            )
        settings = (self.similarity, self.prompt, self.lower_case, text)
        compared = SentenceEncoder(self.transformer, self.parts, *settings, reference=torch.empty(0))
        inputs = tokenizer(self.spelled(text), truncation=True, return_tensors="pt").to(self.device)
        compared.reference = compared(**inputs).sentence_embedding[0]
        return compared

    @property
    def described(self) -> str:
        """What the modules compute, in words."""
        modes = self.pooling.pooling_mode
        modes = modes if isinstance(modes, str) else " and ".join(modes)
        others = [_kind(part) for part in self.parts if _kind(part) not in ("Pooling", "Normalize")]
        return f"{type(self.transformer).__name__}, pooling: {modes}{''.join(f', {name}' for name in others)}"


def sentence_encoder(transformer: PreTrainedModel, tokenizer: Any, folder: SentenceFolder) -> PreTrainedModel:
    """The transformer with the other modules of its folder; itself if they make no embedding of a text.

    Sets the tokenizer's limit. Raises ValueError for a module that is not part of sentence-transformers, or a prompt
    that is not pooled.
    """
    if not folder.embeds:
        return transformer
    with extra("sentences"):
        from sentence_transformers.util import import_from_string
    parts = []
    for module in folder.modules:
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{folder.name or folder.folder} has the module {module['type']}, whose code is not part of "
                "sentence-transformers; such an embedding is not explained."
            )
        part: Any = import_from_string(module["type"])
        parts.append(part.load(str(folder.folder), subfolder=module["path"]))
    if not any(_kind(part) == "Pooling" for part in parts):
        return transformer
    settings = folder.settings
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"), "")
    encoder = SentenceEncoder(
        transformer, parts, settings.get("similarity_fn_name") or "cosine", prompt, bool(settings.get("do_lower_case"))
    )
    if prompt and not encoder.pooling.include_prompt:
        raise ValueError(f"{folder.name or folder.folder} leaves its prompt out of the pooling; that is not explained.")
    if limit := settings.get("max_seq_length"):
        tokenizer.model_max_length = min(limit, tokenizer.model_max_length)
    return encoder.to(transformer.device)


def _kind(part: nn.Module) -> str:
    return type(part).__name__
