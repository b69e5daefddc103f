"""The recurrent encoder-decoder with signed attention (Bahdanau et al. 2015, Luong et al. 2015)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPooling, Seq2SeqLMOutput

from .configuration_bidir_rnn import BidirRnnConfig
from .hard_selection import Reinforce
from .modeling_bidir_rnn import RECURRENT, BidirRnnPreTrainedModel, BidirScoredAttention, check_not_empty, encode

if TYPE_CHECKING:  # transformers 5.0 copies only the files that this one imports directly, so it imports all
    from .activations import tanhmax  # noqa: F401
    from .attention import bidir_attention  # noqa: F401
    from .attention_call import AttentionCall  # noqa: F401
    from .attention_inputs import check_shapes  # noqa: F401
    from .attention_layers import attention_layers  # noqa: F401
    from .chunked_attention import chunked_attention  # noqa: F401
    from .compat import is_kernel  # noqa: F401
    from .configuration_bidir import check_bidir_config  # noqa: F401
    from .eager_attention import eager_attention  # noqa: F401
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import triton  # noqa: F401
    from .fused_check import fused_agrees  # noqa: F401
    from .fused_decode import decode_kernel  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401
    from .fused_launch import launch  # noqa: F401
    from .fused_problem import Problem  # noqa: F401
    from .fused_tilings import TILINGS  # noqa: F401
    from .interventions import intervening  # noqa: F401
    from .model_types import is_signed  # noqa: F401
    from .modeling_bidir import BidirMixin  # noqa: F401
    from .scores import SCORES  # noqa: F401
    from .signed_attention import signed_attention  # noqa: F401
    from .signed_layers import sign_layers  # noqa: F401
    from .two_calls import kernel_attention  # noqa: F401

CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
IGNORED = -100  # label that the loss ignores


class BidirAlignment(BidirScoredAttention):
    """Attention of one decoder step over the encoder states."""

    def forward(self, query: Tensor, states: Tensor, keep: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Attend to the encoder states.

        Args:
            query: `[batch, size]`, a state of the decoder.
            states: `[batch, keys, size]`, the states of the encoder.
            keep: boolean `[batch, keys]`.
            step: index of the decoder step, from 0; the centre for "local-m".

        Returns:
            The context `[batch, size]`, the coefficients `[batch, 1, 1, keys]`, and with hard selection the
            log-probability of the selected key, `[batch]`.
        """
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
        self.layers = RECURRENT[config.encoder](
            config.embedding_size,
            config.hidden_size,
            config.num_rnn_layers,
            batch_first=True,
            bidirectional=config.bidirectional,
        )

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

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutputWithPooling | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
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
        outputs = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cross_attentions=None if coefficients is None or not requested else (coefficients,),
            encoder_last_hidden_state=states,
        )
        return outputs if return_dict in (None, True) else outputs.to_tuple()

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
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1]], 1).masked_fill_(
            torch.cat([torch.zeros_like(start), labels[:, :-1]], 1) == IGNORED, self.config.pad_token_id
        )

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


BidirRnnForSeq2SeqLM.register_for_auto_class("AutoModelForSeq2SeqLM")
