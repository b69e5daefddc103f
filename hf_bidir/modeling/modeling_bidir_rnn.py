"""Recurrent models with signed attention over time: a classifier, and an encoder-decoder (Bahdanau et al. 2015, Luong
et al. 2015)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, Seq2SeqLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .attention_call import per_head
from .compat import attn_implementation
from .configuration_bidir import check_bidir_config, layer_negative_mass
from .configuration_bidir_rnn import BidirRnnConfig
from .eager_attention import activated
from .hard_selection import Reinforce, select_one
from .interventions import intervening, interventions_in
from .modeling_bidir import BidirMixin
from .scores import SCORES, WITHOUT_QUERY, PerTokenScore, PositionalFeedForwardScore

if TYPE_CHECKING:  # transformers 5.0 copies only the files that this one imports directly, so it imports all
    from .activations import tanhmax  # noqa: F401
    from .attention import bidir_attention  # noqa: F401
    from .attention_call import AttentionCall  # noqa: F401
    from .attention_layers import attention_layers  # noqa: F401
    from .chunked_attention import chunked_attention  # noqa: F401
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import triton  # noqa: F401
    from .fused_check import fused_agrees  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401
    from .fused_launch import launch  # noqa: F401
    from .fused_problem import Problem  # noqa: F401
    from .fused_tilings import TILINGS  # noqa: F401
    from .model_types import is_signed  # noqa: F401
    from .outside_attention import outside_class  # noqa: F401
    from .own_attention import own_attention  # noqa: F401
    from .signed_attention import signed_attention  # noqa: F401
    from .signed_layers import sign_layers  # noqa: F401
    from .two_calls import kernel_attention  # noqa: F401

RECURRENT = {"lstm": nn.LSTM, "gru": nn.GRU}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
IGNORED = -100  # label that the loss ignores


@dataclass
class BidirRnnOutput(BaseModelOutputWithPooling):
    """Output of `BidirRnnModel`; `log_probability` `[batch]` is that of the hard selection, else None."""

    log_probability: Tensor | None = None


class BidirScoredAttention(nn.Module):
    """Base class of attention over encoder states, and with queries, of this size: score, coefficients, selection."""

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__()
        self.config, self.signed_index, self.intervening = config, 0, intervening
        self.score = SCORES[config.attn_score](
            query_size=size,
            key_size=size,
            attention_size=config.hidden_size,
            scale=config.attn_scale,
            max_length=config.max_position_embeddings,
        )
        if config.attn_scope == "local-p":
            self.place = nn.Sequential(nn.Linear(size, size, bias=False), nn.Tanh(), nn.Linear(size, 1, bias=False))

    def coefficients(self, query: Tensor | None, states: Tensor, keep: Tensor, step: int = 0) -> Tensor:
        """The coefficients `[batch, 1, 1, keys]` of one query per text, as the config says; 0 for keys not kept.

        Args:
            query: `[batch, size]`; None for scores without a query.
            states, keep: `[batch, keys, size]`, and boolean `[batch, keys]`.
            step: index of the decoder step, from 0; the centre for "local-m".
        """
        scores = self.score(None if query is None else query.unsqueeze(1), states).unsqueeze(1)
        kept, weight = self._scope(query, keep, step)
        changes = interventions_in(self)
        coefficients = self.activated(scores, changes.kept(kept)) * weight
        return changes.edit(coefficients) if changes.edit else coefficients

    def activated(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        """The coefficients of scores `[batch, 1, 1, keys]`; `keep` is boolean and has the same shape."""
        if interventions_in(self).softmax:
            return activated(scores, keep, "softmax", 0.0)
        mass = per_head(layer_negative_mass(self.config, self.signed_index, 1), scores)
        return activated(scores, keep, self.config.attn_activation, mass)

    def _scope(self, query: Tensor | None, keep: Tensor, step: int) -> tuple[Tensor, Tensor | float]:
        """The keys in the scope, and factors on their coefficients, both `[batch, 1, 1, keys]` (Luong et al. 2015)."""
        kept, scope, window = keep[:, None, None], self.config.attn_scope, self.config.attn_window
        if scope == "global" or query is None or window is None:
            return kept, 1.0
        centre: Tensor | float = float(step)
        if scope == "local-p":
            centre = (keep.sum(1, keepdim=True) * torch.sigmoid(self.place(query)))[:, None, None]
        distance = torch.arange(keep.shape[1], device=keep.device, dtype=query.dtype) - centre
        # the Gaussian's standard deviation is half the window
        weight = torch.exp(-2 * (distance / window).square()) if scope == "local-p" else 1.0
        return kept & (distance.abs() <= window), weight

    def select(self, coefficients: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """The context `[batch, size]` of values `[batch, keys, size]`, of one value with hard selection, and then the
        log-probability of its key, `[batch]`."""
        if self.config.attn_selection == "soft":
            return (coefficients @ values.unsqueeze(1)).flatten(1), None
        context, log_probability = select_one(coefficients, values.unsqueeze(1), sample=self.training)
        return context.flatten(1), log_probability.flatten()


class BidirAttentionPooling(BidirScoredAttention):
    """Pools a text into one vector, `Σ_i a_i v_i`, with signed coefficients `a_i` and one value per position."""

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__(config, size)
        learned = config.attn_query == "learned" and not isinstance(self.score, WITHOUT_QUERY)
        self.query = nn.Parameter(torch.empty(size)) if learned else None
        own_values = isinstance(self.score, PerTokenScore)
        self.value = nn.Linear(size, config.hidden_size) if own_values else nn.Identity()
        self.output_size = config.hidden_size if own_values else size

    def forward(self, states: Tensor, keep: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The context of every text, its coefficients, and with hard selection the log-probability of the selected key;
        `last` is the encoder's last state `[batch, size]`, for `attn_query="last"`."""
        query = last if self.query is None else self.query.expand(len(states), -1)
        coefficients = self.coefficients(query, states, keep)
        context, log_probability = self.select(coefficients, self.value(states))
        return context, coefficients, log_probability


class BidirRnnPreTrainedModel(BidirMixin, PreTrainedModel):
    """Base class of the recurrent models."""

    config_class = BidirRnnConfig
    base_model_prefix = "rnn"
    attends_between_tokens = False

    def __init__(self, config: BidirRnnConfig):
        check_bidir_config(config)
        self._check_backend(attn_implementation(config))
        super().__init__(config)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.RNNBase | nn.RNNCellBase):
            module.reset_parameters()
        elif isinstance(module, BidirAttentionPooling) and module.query is not None:
            nn.init.normal_(module.query, std=len(module.query) ** -0.5)
        elif isinstance(module, PositionalFeedForwardScore):
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)


class BidirRnnModel(BidirRnnPreTrainedModel):
    """Embedding, recurrent encoder and attention over time."""

    def __init__(self, config: BidirRnnConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.encoder = None if config.encoder == "none" else recurrent_layers(config)
        size = config.hidden_size * (1 + config.bidirectional) if self.encoder else config.embedding_size
        self.attention = BidirAttentionPooling(config, size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings = value

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
            ValueError: neither or both of `input_ids` and `inputs_embeds`, an empty batch, or padding that is not on
                the right.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected either input_ids or inputs_embeds; got both or neither.")
        keep = self._keep(input_ids, attention_mask, inputs_embeds)
        check_not_empty(keep)
        embedded = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        embedded = self.embedding_dropout(embedded)
        states, last = (embedded, None) if self.encoder is None else encode(self.encoder, embedded, keep)
        context, coefficients, log_probability = self.attention(states, keep, last)
        requested = self.config.output_attentions if output_attentions is None else output_attentions
        states_requested = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BidirRnnOutput(
            log_probability=log_probability,
            last_hidden_state=states,
            pooler_output=context,
            hidden_states=(embedded, states) if states_requested else None,
            attentions=(coefficients,) if requested else None,
        )

    def _keep(self, input_ids, attention_mask, inputs_embeds) -> Tensor:
        """Boolean `[batch, length]`: True for tokens, False for padding."""
        if attention_mask is not None:
            return attention_mask.bool()
        if input_ids is not None:
            return input_ids != self.config.pad_token_id
        return torch.ones(inputs_embeds.shape[:2], dtype=torch.bool, device=inputs_embeds.device)


def recurrent_layers(config: BidirRnnConfig) -> nn.LSTM | nn.GRU:
    sizes = config.embedding_size, config.hidden_size, config.num_rnn_layers
    return RECURRENT[config.encoder](*sizes, batch_first=True, bidirectional=config.bidirectional)


def check_not_empty(keep: Tensor) -> None:
    """Raise ValueError if a batch `[batch, length]` has no positions; texts of padding only are accepted."""
    if not keep.numel():
        raise ValueError(f"expected at least one text with at least one position; got the shape {tuple(keep.shape)}.")


def encode(encoder: nn.LSTM | nn.GRU, embedded: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The states `[batch, length, size]` of an encoder that skips padding, and the last state of each text, of both
    directions, `[batch, size]`; ValueError for padding that is not on the right."""
    lengths = keep.sum(1)
    if not torch.equal(keep, torch.arange(keep.shape[1], device=keep.device) < lengths[:, None]):
        raise ValueError("a recurrent encoder needs padding on the right; set tokenizer.padding_side to 'right'.")
    padded = not keep.all()
    if padded:  # without padding, the backward pass on a CPU is faster with unpacked texts
        lengths = lengths.clamp_min(1).cpu()  # texts of length 0 cannot be packed; attention ignores their states
        embedded = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    states, ending = encoder(embedded)
    ending = ending[0] if isinstance(ending, tuple) else ending  # an LSTM also returns its cell state
    last = ending[-1 - encoder.bidirectional :].transpose(0, 1).flatten(1)
    if padded:
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=keep.shape[1])
    return states, last


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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ):
        """As `BidirRnnModel`; `labels` `[batch]` add the loss to `logits` `[batch, classes]`."""
        asked = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        outputs = self.rnn(input_ids, attention_mask, inputs_embeds, **asked, return_dict=True)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = self._loss(logits, labels, outputs.log_probability)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _loss(self, logits: Tensor, labels: Tensor, log_probability: Tensor | None) -> Tensor:
        if labels.dtype == torch.long and not 0 <= labels.min() <= labels.max() < self.config.num_labels:
            raise ValueError(
                f"expected labels from 0 to {self.config.num_labels - 1}, one per text; got {labels.min().item()} to "
                f"{labels.max().item()}."
            )
        if self.reinforce is None:
            return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return self.reinforce(F.cross_entropy(logits, labels, reduction="none"), log_probability)


class BidirAlignment(BidirScoredAttention):
    """Attention of one decoder step over the encoder states."""

    def forward(self, query: Tensor, states: Tensor, keep: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `BidirAttentionPooling`; the query is a state of the decoder, `[batch, size]`."""
        coefficients = self.coefficients(query, states, keep, step)
        context, log_probability = self.select(coefficients, states)
        return context, coefficients, log_probability


class RnnEncoder(nn.Module):
    """Embedding and recurrent layers."""

    main_input_name = "input_ids"  # `generate` reads this attribute

    def __init__(self, config: BidirRnnConfig):
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = recurrent_layers(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_) -> BaseModelOutputWithPooling:
        """Encode `[batch, length]` into states `[batch, length, size]`; `pooler_output` is the last state."""
        keep = input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()
        check_not_empty(keep)
        states, last = encode(self.layers, self.dropout(self.embeddings(input_ids)), keep)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=last)


class BidirRnnForSeq2SeqLM(BidirRnnPreTrainedModel, GenerationMixin):
    """Encoder and decoder; `generate` supports greedy and beam search, without a cache."""

    base_model_prefix = "model"

    def __init__(self, config: BidirRnnConfig):
        if config.decoder_style is None:
            raise ValueError('BidirRnnForSeq2SeqLM needs a config with decoder_style="luong" or "bahdanau"; got None.')
        super().__init__(config)
        size = config.hidden_size * (1 + config.bidirectional)
        self.encoder = RnnEncoder(config)
        self.start = nn.Linear(size, size)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        fed = size if config.decoder_style == "bahdanau" or config.input_feeding else 0
        self.cell = CELLS[config.encoder](config.embedding_size + fed, size)
        self.attention = None if config.attn_scope == "none" else BidirAlignment(config, size)
        self.combine = nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(size, config.vocab_size)
        self.reinforce = Reinforce() if config.attn_selection == "hard" else None
        self.generation_config.use_cache = False  # every step recomputes the earlier ones, since sentences are short
        self.post_init()

    def get_encoder(self, *_, **__) -> nn.Module:
        return self.encoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embeddings

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
            ValueError: neither `decoder_input_ids` nor `labels`, labels outside the vocabulary, an empty batch, or
                padding that is not on the right.
        """
        if labels is not None:
            self._check_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states, last = encoder_outputs["last_hidden_state"], encoder_outputs["pooler_output"]
        if attention_mask is None:
            whole = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            attention_mask = whole if input_ids is None else input_ids != self.config.pad_token_id
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self._shifted_right(labels)
        if decoder_input_ids is None or not decoder_input_ids.numel():
            raise ValueError(
                "expected decoder_input_ids [batch, steps] of at least one step, or labels; to generate text, call "
                "generate."
            )
        logits, coefficients, log_probability = self._decoded(decoder_input_ids, states, last, attention_mask.bool())
        loss = None if labels is None else self._loss(logits, labels, log_probability)
        requested = self.config.output_attentions if output_attentions is None else output_attentions
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cross_attentions=None if coefficients is None or not requested else (coefficients,),
            encoder_last_hidden_state=states,
        )

    def _decoded(
        self, ids: Tensor, states: Tensor, last: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits `[batch, steps, words]`, coefficients `[batch, 1, steps, keys]`, log-probability `[batch, steps]`."""

        def attend(query: Tensor, step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
            return (last, None, None) if self.attention is None else self.attention(query, states, keep, step)

        hidden = torch.tanh(self.start(last))
        state = (hidden, torch.zeros_like(hidden)) if self.config.encoder == "lstm" else hidden
        fed, embedded, steps = torch.zeros_like(hidden), self.embeddings(ids), []
        for step in range(ids.shape[1]):
            if self.config.decoder_style == "bahdanau":
                context, coefficients, log_probability = attend(self._hidden(state), step)
                state = self.cell(torch.cat([embedded[:, step], context], 1), state)
            else:
                parts = [embedded[:, step], fed] if self.config.input_feeding else [embedded[:, step]]
                state = self.cell(torch.cat(parts, 1), state)
                context, coefficients, log_probability = attend(self._hidden(state), step)
            fed = torch.tanh(self.combine(torch.cat([context, self._hidden(state)], 1)))
            steps.append((fed, coefficients, log_probability))
        combined, coefficients, log_probabilities = zip(*steps, strict=True)
        attended = None if self.attention is None else torch.cat(coefficients, 2)
        hard = None if log_probabilities[0] is None else torch.stack(log_probabilities, 1)
        return self.lm_head(self.dropout(torch.stack(combined, 1))), attended, hard

    def _hidden(self, state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return state[0] if isinstance(state, tuple) else state

    def _check_labels(self, labels: Tensor) -> None:
        size = self.config.vocab_size
        if not labels.numel() or not ((labels == IGNORED) | ((labels >= 0) & (labels < size))).all():
            values = f" and values from {labels.min()} to {labels.max()}" if labels.numel() else ""
            raise ValueError(
                f"expected labels [batch, steps] from 0 to {size - 1}, or {IGNORED} to ignore a position; got the "
                f"shape {tuple(labels.shape)}{values}."
            )

    def _shifted_right(self, labels: Tensor) -> Tensor:
        shifted = labels.roll(1, 1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill_(shifted == IGNORED, self.config.pad_token_id)

    def _loss(self, logits: Tensor, labels: Tensor, log_probability: Tensor | None) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        counted = labels != IGNORED
        if self.reinforce is None or log_probability is None:
            return losses.sum() / counted.sum().clamp_min(1)
        per_text = losses.view_as(labels).sum(1) / counted.sum(1).clamp_min(1)
        return self.reinforce(per_text, (log_probability * counted).sum(1))

    def prepare_inputs_for_generation(
        self, decoder_input_ids: Tensor, encoder_outputs=None, attention_mask=None, **kwargs
    ):
        """The inputs of `forward` in a step of `generate`, with all tokens generated so far; drops `labels`."""
        return {
            "decoder_input_ids": decoder_input_ids,
            "encoder_outputs": encoder_outputs,
            "attention_mask": attention_mask,
        }


BidirRnnModel.register_for_auto_class("AutoModel")
BidirRnnForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
BidirRnnForSeq2SeqLM.register_for_auto_class("AutoModelForSeq2SeqLM")
