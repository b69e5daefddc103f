"""Recurrent models with signed attention over time: a classifier, and an encoder-decoder (Bahdanau et al. 2015, Luong
et al. 2015)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, Seq2SeqLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .activations import tanhmax  # noqa: F401  transformers 5.0 copies what this file imports, alone

from .configuration_bidir_rnn import BidirRnnConfig
from .recurrent_attention import Attended, BidirAlignment, Reinforce

LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
IGNORED = -100  # label that the losses of torch ignore


@dataclass
class BidirRnnOutput(BaseModelOutputWithPooling):
    """Output of `BidirRnnModel`; `log_probability` `[batch]` is that of the hard selection, else None."""

    log_probability: Tensor | None = None


class BidirRnnPreTrainedModel(PreTrainedModel):
    """Base class of the recurrent models."""

    config_class = BidirRnnConfig
    base_model_prefix = "rnn"
    attends_between_tokens = False  # a single query attends to the whole input
    _input_embed_layer = "embeddings"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.RNNBase | nn.RNNCellBase):
            module.reset_parameters()
        elif isinstance(module, BidirAlignment) and module.query is not None:
            nn.init.normal_(module.query, std=len(module.query) ** -0.5)
        else:
            super()._init_weights(module)

    def keep_mask(self, input_ids: Tensor | None, mask: Tensor | None, states: Tensor) -> Tensor:
        """Boolean `[batch, length]`: True for tokens, False for padding."""
        if mask is not None:
            return mask.bool()
        if input_ids is not None:
            return input_ids != self.config.pad_token_id
        return torch.ones_like(states[..., 0], dtype=torch.bool)


class RnnEncoder(BidirRnnPreTrainedModel):
    """Embedding and recurrent layers; with `encoder="none"` the embedding alone."""

    def __init__(self, config: BidirRnnConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.encoder: nn.LSTM | nn.GRU | None = None
        self.size = config.embedding_size  # of the states
        if config.encoder != "none":
            self.size = config.hidden_size * (2 if config.bidirectional else 1)
            self.encoder = LAYERS[config.encoder](
                config.embedding_size,
                config.hidden_size,
                config.num_rnn_layers,
                batch_first=True,
                bidirectional=config.bidirectional,
            )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ):
        """Encode `[batch, length]` into states `[batch, length, size]`; `pooler_output` is the last state."""
        if inputs_embeds is None:
            inputs_embeds = self.embeddings(input_ids)
        embedded = self.embedding_dropout(inputs_embeds)
        states, last = embedded, None
        if self.encoder is not None:
            keep = self.keep_mask(input_ids, attention_mask, embedded)
            states, last = encode(self.encoder, embedded, keep)
        return BaseModelOutputWithPooling(states, last, hidden_states=(embedded, states))


class BidirRnnModel(RnnEncoder):
    """Embedding, recurrent encoder and attention over time."""

    def __init__(self, config: BidirRnnConfig):
        super().__init__(config)
        self.attention = BidirAlignment(config, self.size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ):
        """Encode and pool a batch of texts.

        Args:
            input_ids: `[batch, length]`; or `inputs_embeds`, `[batch, length, embedding_size]`.
            attention_mask: `[batch, length]`, 1 for tokens; by default 0 for `pad_token_id` only. Padding is on the
                right; a text of padding only gets a context of zeros.

        Returns:
            `last_hidden_state` `[batch, length, size]`, `pooler_output` (the context) `[batch, size]`, with
            `output_attentions` the coefficients `[batch, 1, 1, length]` as the only entry of `attentions`, and with
            `output_hidden_states` the inputs and the outputs of the encoder.

        Raises:
            ValueError: padding that is not on the right.
        """
        encoded = super().forward(input_ids, attention_mask, inputs_embeds)
        states = encoded.last_hidden_state
        keep = self.keep_mask(input_ids, attention_mask, states)
        attended = self.attention(states, keep)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return BidirRnnOutput(
            last_hidden_state=states,
            pooler_output=attended.context,
            hidden_states=encoded.hidden_states if output_hidden_states else None,
            attentions=(attended.coefficients,) if output_attentions else None,
            log_probability=attended.log_probability,
        )


def encode(encoder: nn.LSTM | nn.GRU, embedded: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The states `[batch, length, size]` of an encoder that skips padding, and the last state of each text, of both
    directions, `[batch, size]`; ValueError for padding that is not on the right."""
    length = keep.shape[1]
    lengths = keep.sum(1)
    on_the_right = torch.arange(length, device=keep.device) < lengths[:, None]
    if not torch.equal(keep, on_the_right):
        raise ValueError("a recurrent encoder needs padding on the right; set tokenizer.padding_side to 'right'.")
    padded = not keep.all()
    if padded:  # without padding, the backward pass on a CPU is faster with unpacked texts
        lengths = lengths.clamp_min(1).cpu()  # texts of length 0 cannot be packed; attention ignores their states
        embedded = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    states, last = encoder(embedded)
    if isinstance(encoder, nn.LSTM):
        last, _ = last  # without the cell state
    if padded:
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=length)
    directions = 1 + encoder.bidirectional
    return states, last[-directions:].transpose(0, 1).flatten(1)


class BidirRnnForSequenceClassification(BidirRnnPreTrainedModel):
    """`BidirRnnModel`, dropout and a linear classifier."""

    def __init__(self, config: BidirRnnConfig):
        super().__init__(config)
        self.rnn = BidirRnnModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.rnn.attention.output_size, config.num_labels)
        self.reinforce = Reinforce() if config.attn_selection == "hard" else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs,
    ):
        """As `BidirRnnModel`; `labels` `[batch]` add the loss to `logits` `[batch, classes]`."""
        outputs = self.rnn(input_ids, attention_mask, inputs_embeds, **kwargs | {"return_dict": True})
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else self._loss(logits, labels, outputs.log_probability)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(self, logits: Tensor, labels: Tensor, log_probability: Tensor | None) -> Tensor:
        if self.reinforce is None:
            return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return self.reinforce(F.cross_entropy(logits, labels, reduction="none"), log_probability)


class BidirRnnForSeq2SeqLM(BidirRnnPreTrainedModel, GenerationMixin):
    """Encoder and decoder; `generate` supports greedy and beam search, without a cache."""

    def __init__(self, config: BidirRnnConfig):
        if config.decoder_style is None:
            raise ValueError('BidirRnnForSeq2SeqLM needs a config with decoder_style="luong" or "bahdanau"; got None.')
        super().__init__(config)
        self.encoder = RnnEncoder(config)
        size = self.encoder.size
        self.start = nn.Linear(size, size)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.cell = CELLS[config.encoder](config.embedding_size + size, size)
        self.attention = None if config.attn_scope == "none" else BidirAlignment(config, size)
        self.combine = nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(size, config.vocab_size)
        self.reinforce = Reinforce() if config.attn_selection == "hard" else None
        self.generation_config.use_cache = False  # every step recomputes the earlier ones, since sentences are short
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutputWithPooling | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ):
        """Predict the token after each of `decoder_input_ids` `[batch, steps]`, given `input_ids` `[batch, length]`.

        With `labels` `[batch, steps]` (-100: ignored) the output has a `loss`, and the decoder's default input are the
        labels, shifted right. `cross_attentions` has one entry, `[batch, 1, steps, length]`; without attention it is
        None.

        Raises:
            ValueError: neither `decoder_input_ids` nor `labels`, or padding that is not on the right.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError(
                    "expected decoder_input_ids [batch, steps] or labels; to generate text, call generate."
                )
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        keep = self.keep_mask(input_ids, attention_mask, encoder_outputs["last_hidden_state"])
        attended = self._attended(decoder_input_ids, encoder_outputs, keep)
        logits = self.lm_head(self.dropout(attended.context))
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        has_attentions = output_attentions and self.attention is not None
        return Seq2SeqLMOutput(
            loss=None if labels is None else self._loss(logits, labels, attended.log_probability),
            logits=logits,
            cross_attentions=(attended.coefficients,) if has_attentions else None,
            encoder_last_hidden_state=encoder_outputs["last_hidden_state"],
        )

    def _attended(self, ids: Tensor, encoded: BaseModelOutputWithPooling, keep: Tensor) -> Attended:
        """All steps of the decoder: attentional vectors `[batch, steps, size]`, coefficients `[batch, 1, steps, keys]`
        and log-probabilities `[batch, steps]`."""
        states, last = encoded["last_hidden_state"], encoded["pooler_output"]
        aligns_first = self.config.decoder_style == "bahdanau"
        hidden = torch.tanh(self.start(last))
        cell_state = torch.zeros_like(hidden)  # of an LSTM
        vector = torch.zeros_like(hidden)
        attended = Attended(last, None)  # without attention
        steps = []
        for step, inputs in enumerate(self.embeddings(ids).unbind(1)):
            if aligns_first and self.attention is not None:
                attended = self.attention(states, keep, hidden.unsqueeze(1), step)
            if aligns_first:
                vector = attended.context
            inputs = torch.cat([inputs, vector], 1)
            if isinstance(self.cell, nn.LSTMCell):
                hidden, cell_state = self.cell(inputs, (hidden, cell_state))
            else:
                hidden = self.cell(inputs, hidden)
            if not aligns_first and self.attention is not None:
                attended = self.attention(states, keep, hidden.unsqueeze(1), step)
            vector = torch.tanh(self.combine(torch.cat([attended.context, hidden], 1)))
            steps.append(attended._replace(context=vector))
        vectors, coefficients, log_probabilities = zip(*steps, strict=True)
        return Attended(
            context=torch.stack(vectors, 1),
            coefficients=None if self.attention is None else torch.cat(coefficients, 2),
            log_probability=None if self.reinforce is None else torch.stack(log_probabilities, 1),
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels, shifted right, which collators of transformers add to a batch."""
        shifted = labels.roll(1, 1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill_(shifted == IGNORED, self.config.pad_token_id)

    def _loss(self, logits: Tensor, labels: Tensor, log_probability: Any) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        counted = labels != IGNORED
        if self.reinforce is None:
            return losses.sum() / counted.sum().clamp_min(1)
        per_text = losses.sum(1) / counted.sum(1).clamp_min(1)
        return self.reinforce(per_text, (log_probability * counted).sum(1))
