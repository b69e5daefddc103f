"""The recurrent encoder-decoder whose attention has signed coefficients (Bahdanau et al. 2015, Luong et al. 2015)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPooling, Seq2SeqLMOutput

from .configuration_bidir_rnn import BidirRnnConfig
from .hard_selection import Reinforce
from .modeling_bidir_rnn import RECURRENT, BidirRnnPreTrainedModel, BidirScoredAttention, check_not_empty, encoded

if TYPE_CHECKING:  # transformers 5.0 copies from a folder only the files that this one names, so all are named
    from .activations import tanhmax  # noqa: F401
    from .attention import bidir_attention  # noqa: F401
    from .attention_call import AttentionCall  # noqa: F401
    from .attention_inputs import check_shapes  # noqa: F401
    from .chunked_attention import chunked_attention  # noqa: F401
    from .configuration_bidir import check_bidir_config  # noqa: F401
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import triton  # noqa: F401
    from .fused_check import fused_agrees  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401
    from .modeling_bidir import BidirMixin  # noqa: F401
    from .scores import SCORES  # noqa: F401
    from .signed_layers import EDIT  # noqa: F401

CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
IGNORED = -100  # a label that counts for nothing


class BidirAlignment(BidirScoredAttention):
    """What one step of the decoder takes from the input: a signed mixture, from all of it or from around a place."""

    def __init__(self, config: BidirRnnConfig, size: int):
        super().__init__(config, size)
        if config.attn_scope == "local-p":
            self.place = nn.Sequential(nn.Linear(size, size, bias=False), nn.Tanh(), nn.Linear(size, 1, bias=False))

    def forward(self, query: Tensor, states: Tensor, keep: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step.

        Args:
            query: `[batch, size]`, the decoder's state.
            states: `[batch, keys, size]`, the encoder's.
            keep: boolean `[batch, keys]`.
            step: of the decoder, from 0; where "local-m" looks.

        Returns:
            Context `[batch, size]`, coefficients `[batch, 1, 1, keys]`, and for hard selection the logarithm of the
            probability of what was selected, `[batch]`.
        """
        scores = self.score(query.unsqueeze(1), states).unsqueeze(1)
        centre = self._centre(query, keep, step)
        near = keep if centre is None else keep & (self._distance(centre, keep).abs() <= self.config.attn_window)
        coefficients = self.coefficients(scores, near[:, None, None])
        if self.config.attn_scope == "local-p":
            deviation = self.config.attn_window / 2
            gaussian = torch.exp(-self._distance(centre, keep).square() / (2 * deviation**2))
            coefficients = coefficients * gaussian[:, None, None]
        context, log_probability = self.select(coefficients, states)
        return context, coefficients, log_probability

    def _centre(self, query: Tensor, keep: Tensor, step: int) -> Tensor | None:
        """`p_t` `[batch, 1]`: the step itself, or what the query predicts (Luong et al. 2015, section 3.2)."""
        if self.config.attn_scope == "local-m":
            return torch.full((len(query), 1), float(step), device=query.device, dtype=query.dtype)
        if self.config.attn_scope == "local-p":
            return keep.sum(1, keepdim=True) * torch.sigmoid(self.place(query))
        return None

    @staticmethod
    def _distance(centre: Tensor, keep: Tensor) -> Tensor:
        """How far each key is from the centre, `[batch, keys]`."""
        return torch.arange(keep.shape[1], device=keep.device, dtype=centre.dtype) - centre


class RnnEncoder(nn.Module):
    """Embedding and recurrent layers: words to states."""

    main_input_name = "input_ids"  # what `generate` looks for

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
        """`[batch, length]` to states `[batch, length, size]` and the last one, `pooler_output` `[batch, size]`."""
        keep = input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()
        check_not_empty(keep)
        states, last = encoded(self.layers, self.dropout(self.embeddings(input_ids)), keep)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=last)


class BidirRnnForSeq2SeqLM(BidirRnnPreTrainedModel, GenerationMixin):
    """Encoder and decoder; `generate` searches greedily or with beams, reading its own output again at every step."""

    base_model_prefix = "model"

    def __init__(self, config: BidirRnnConfig):
        if config.decoder_style is None:
            raise ValueError(
                'BidirRnnForSeq2SeqLM needs a config with decoder_style="luong" or "bahdanau"; it has none.'
            )
        super().__init__(config)
        size = config.hidden_size * (1 + config.bidirectional)
        self.encoder = RnnEncoder(config)
        self.start = nn.Linear(size, size)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        fed = size if config.decoder_style == "bahdanau" or config.input_feeding else 0
        self.cell = CELLS[config.encoder](config.embedding_size + fed, size)
        self.attention = BidirAlignment(config, size)
        self.combine = nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(size, config.vocab_size)
        self.reinforce = Reinforce() if config.attn_selection == "hard" else None
        self.generation_config.use_cache = False  # the sentences are short; every step reads them from the start
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
        """Read `input_ids` `[batch, length]` and predict what follows each of `decoder_input_ids` `[batch, steps]`.

        With `labels` `[batch, steps]` (-100: does not count) the decoder reads these, one step later, and there is a
        `loss`. `cross_attentions` has one entry, `[batch, 1, steps, length]`.

        Raises:
            ValueError: neither `decoder_input_ids` nor `labels`, labels that are no words, nothing to read, or
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
            decoder_input_ids = self._one_step_later(labels)
        if decoder_input_ids is None or not decoder_input_ids.numel():
            raise ValueError(
                "expected decoder_input_ids [batch, steps], of at least one step, or labels; to let the model write by "
                "itself, call generate."
            )
        logits, coefficients, log_probability = self._decoded(decoder_input_ids, states, last, attention_mask.bool())
        loss = None if labels is None else self._loss(logits, labels, log_probability)
        requested = self.config.output_attentions if output_attentions is None else output_attentions
        outputs = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cross_attentions=(coefficients,) if requested else None,
            encoder_last_hidden_state=states,
        )
        return outputs if return_dict in (None, True) else outputs.to_tuple()

    def _decoded(self, ids: Tensor, states: Tensor, last: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits `[batch, steps, words]`, coefficients `[batch, 1, steps, keys]`, log-probability `[batch, steps]`."""
        hidden = torch.tanh(self.start(last))
        state = (hidden, torch.zeros_like(hidden)) if self.config.encoder == "lstm" else hidden
        fed, embedded, steps = torch.zeros_like(hidden), self.embeddings(ids), []
        for step in range(ids.shape[1]):
            if self.config.decoder_style == "bahdanau":
                context, coefficients, log_probability = self.attention(self._hidden(state), states, keep, step)
                state = self.cell(torch.cat([embedded[:, step], context], 1), state)
            else:
                parts = [embedded[:, step], fed] if self.config.input_feeding else [embedded[:, step]]
                state = self.cell(torch.cat(parts, 1), state)
                context, coefficients, log_probability = self.attention(self._hidden(state), states, keep, step)
            fed = torch.tanh(self.combine(torch.cat([context, self._hidden(state)], 1)))
            steps.append((fed, coefficients, log_probability))
        combined, coefficients, log_probabilities = zip(*steps, strict=True)
        hard = None if log_probabilities[0] is None else torch.stack(log_probabilities, 1)
        return self.lm_head(self.dropout(torch.stack(combined, 1))), torch.cat(coefficients, 2), hard

    def _hidden(self, state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return state[0] if isinstance(state, tuple) else state

    def _check_labels(self, labels: Tensor) -> None:
        words = self.config.vocab_size
        if not labels.numel() or not ((labels == IGNORED) | ((labels >= 0) & (labels < words))).all():
            raise ValueError(
                f"expected labels [batch, steps] from 0 to {words - 1}, or {IGNORED} for what does not count; got the "
                f"shape {tuple(labels.shape)}" + (f" and {labels.min()} to {labels.max()}." if labels.numel() else ".")
            )

    def _one_step_later(self, labels: Tensor) -> Tensor:
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1]], 1).masked_fill_(
            torch.cat([torch.zeros_like(start), labels[:, :-1]], 1) == IGNORED, self.config.pad_token_id
        )

    def _loss(self, logits: Tensor, labels: Tensor, log_probability: Tensor | None) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        counts = labels != IGNORED
        if self.reinforce is None:
            return losses.sum() / counts.sum().clamp_min(1)
        per_text = losses.view_as(labels).sum(1) / counts.sum(1).clamp_min(1)
        return self.reinforce(per_text, (log_probability * counts).sum(1))

    def prepare_inputs_for_generation(
        self, decoder_input_ids: Tensor, encoder_outputs=None, attention_mask=None, **kwargs
    ):
        """What a step of `generate` gives to `forward`: all that was written so far; `kwargs` let `labels` pass by."""
        return {
            "decoder_input_ids": decoder_input_ids,
            "encoder_outputs": encoder_outputs,
            "attention_mask": attention_mask,
        }


BidirRnnForSeq2SeqLM.register_for_auto_class("AutoModelForSeq2SeqLM")
