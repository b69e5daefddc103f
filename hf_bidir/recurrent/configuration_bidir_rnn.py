"""Config of recurrent models with signed attention over time."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PretrainedConfig

from hf_bidir.modeling.configuration_bidir import (
    BidirConfigMixin,
    check_bidir_config,
    check_format,
    check_layers,
    with_fields,
)

if TYPE_CHECKING:  # transformers 5.0 copies only the files that this one imports directly, so it imports all
    from hf_bidir.modeling.activations import tanhmax  # noqa: F401
    from hf_bidir.modeling.compat import heads_by_auto_class  # noqa: F401

SCORES_ALONE = ("per_token", "feed_forward", "positional_feed_forward")  # scores without a query
ATTN_SCORES = ("content", "additive", "location", "general", "dot", "scaled_dot", *SCORES_ALONE)
ATTN_QUERIES = ("learned", "last")
ATTN_SELECTIONS = ("soft", "hard")
DECODER_STYLES = ("luong", "bahdanau")
CLASSIFIER_SCOPES = ("global", "local-p")
DECODER_SCOPES = (*CLASSIFIER_SCOPES, "local-m", "none")
CHOICES = {
    "encoder": ("none", "lstm", "gru"),
    "attn_score": ATTN_SCORES,
    "attn_query": ATTN_QUERIES,
    "attn_selection": ATTN_SELECTIONS,
    "decoder_style": (None, *DECODER_STYLES),
}
SIZES = ("vocab_size", "embedding_size", "hidden_size", "num_rnn_layers")
FIELDS: dict[str, Any] = {
    "vocab_size": 8000,
    "embedding_size": 200,
    "hidden_size": 100,
    "encoder": "none",
    "num_rnn_layers": 1,
    "bidirectional": False,
    "attn_score": "per_token",
    "attn_query": "learned",
    "attn_scale": 5.0,
    "attn_scope": "global",
    "attn_window": None,
    "attn_selection": "soft",
    "attn_activation": "tanhmax",
    "attn_negative_mass": 1.0,
    "dropout": 0.5,
    "embedding_dropout": 0.0,
    "initializer_range": 0.1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "decoder_style": None,
    "input_feeding": True,
}
CLASSIFIER_CODE = {
    "AutoModel": "modeling_bidir_rnn.BidirRnnModel",
    "AutoModelForSequenceClassification": "modeling_bidir_rnn.BidirRnnForSequenceClassification",
}
DECODER_CODE = {"AutoModelForSeq2SeqLM": "modeling_bidir_rnn.BidirRnnForSeq2SeqLM"}
CONFIG_CODE = {"AutoConfig": "configuration_bidir_rnn.BidirRnnConfig"}
FILES = (
    *("configuration_bidir_rnn", "modeling_bidir_rnn", "recurrent_attention", "scores"),
    *("activations", "compat", "configuration_bidir"),
)


class BidirRnnConfig(BidirConfigMixin, PretrainedConfig):
    """Embedding, recurrent encoder, attention over time, classifier; by default the model of the paper.

    Args:
        vocab_size: number of embeddings.
        embedding_size: width of the embedding.
        hidden_size: width of the encoder, per direction, and of queries, keys and values.
        encoder: "none" (attention over the embeddings), "lstm" or "gru".
        num_rnn_layers: number of encoder layers.
        bidirectional: run the encoder in both directions, which doubles the width of its states.
        attn_score: a name in `scores.py`. "per_token" (the paper's) also has values `W_v h`; with the others, the
            values are the states themselves.
        attn_query: the query of scores that have one: "learned", a parameter vector (Yang et al. 2016), or "last", the
            encoder's last state.
        attn_scale: divisor of the per-token score.
        decoder_style: None for a classifier. For `BidirRnnForSeq2SeqLM` "luong", whose query is the state of the
            current step, or "bahdanau", whose query is the state of the previous step.
        input_feeding: feed the attentional vector of the previous step (context and state, combined) into Luong's
            decoder.
        attn_scope: "global"; with scores that have a query also "local-p", the positions at most `attn_window` from one
            that is predicted from the query, weighted by a Gaussian (Luong et al. 2015, section 3.2). With a decoder
            also "local-m", those around the index of the step (same section), and "none": no attention; the context of
            every step is the encoder's last state (Cho et al. 2014).
        attn_window: positions on either side, for local scopes.
        attn_selection: "soft", a weighted sum of all values; or "hard", a single value, sampled in training, and with
            the coefficient of largest magnitude at evaluation.
        attn_activation, attn_negative_mass: as in every signed config; there is one attention layer, with one head.
        dropout: probability before the last linear layer.
        embedding_dropout: probability after the embedding.
        initializer_range: standard deviation of newly initialised embeddings.
        max_position_embeddings: the longest text that a tokenizer should produce; the model accepts longer ones.
        pad_token_id: the padding token, for calls without an attention mask.
        kwargs: fields of `PretrainedConfig`.

    Raises:
        ValueError: an unknown value, fields that exclude each other, a size below 1, or a negative mass out of range.
    """

    model_type = "bidir_rnn"
    remote_code: ClassVar[dict[str, str]] = CONFIG_CODE | CLASSIFIER_CODE | DECODER_CODE
    num_hidden_layers = num_attention_heads = 1  # attention layers and heads

    def __init__(self, **kwargs: Any) -> None:
        for name, default in FIELDS.items():
            setattr(self, name, kwargs.pop(name, default))
        padding = self.pad_token_id
        check_format(kwargs.pop("attn_format", 0))
        kwargs["auto_map"] = CONFIG_CODE | (DECODER_CODE if self.decoder_style else CLASSIFIER_CODE)
        kwargs["is_encoder_decoder"] = self.decoder_style is not None
        kwargs["tie_word_embeddings"] = False  # input and output embeddings have different widths
        super().__init__(pad_token_id=padding, **kwargs)
        self._check_values()
        self._check_combination()
        check_bidir_config(self)
        check_layers(self.attn_negative_mass, heads=[1])

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; with the code of the models, for processes without hf_bidir."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if __name__.startswith("hf_bidir."):  # transformers itself copies code that came with a checkpoint
            write_code(Path(save_directory))

    @property
    def attn_scopes(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on the fields here
        if self.decoder_style:
            return DECODER_SCOPES
        return ("global",) if self.attn_score in SCORES_ALONE else CLASSIFIER_SCOPES

    def _check_values(self) -> None:
        for field, known in CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                names = ", ".join(map(str, known))
                raise ValueError(f'{field}="{value}" is not known; choose one of: {names}.')
        for field in SIZES:
            if getattr(self, field) < 1:
                raise ValueError(f"expected {field} of at least 1, got {getattr(self, field)}.")
        if not isinstance(self.pad_token_id, int):
            raise ValueError(f"expected pad_token_id, the id of the padding token; got {self.pad_token_id}.")
        if self.attn_scale <= 0:
            raise ValueError(f"expected attn_scale above 0, got {self.attn_scale}.")

    def _check_combination(self) -> None:
        without_encoder = self.encoder == "none"
        if self.bidirectional and without_encoder:
            raise ValueError('bidirectional=True needs an encoder, "lstm" or "gru"; encoder is "none".')
        if self.attn_query == "last" and without_encoder:
            raise ValueError('attn_query="last" needs an encoder, "lstm" or "gru"; encoder is "none".')
        if self.decoder_style and (without_encoder or self.attn_score in SCORES_ALONE):
            raise ValueError(
                f'decoder_style="{self.decoder_style}" needs an encoder and an attn_score with a query; got '
                f'encoder="{self.encoder}" and attn_score="{self.attn_score}".'
            )
        if self.attn_scope == "none" and self.attn_selection == "hard":
            raise ValueError('attn_selection="hard" needs attention; attn_scope is "none".')


def write_code(folder: Path) -> None:
    """Write the files that a recurrent checkpoint needs in a process without hf_bidir, into one flat folder."""
    room = Path(__file__).parent
    for name in FILES:
        file = room / f"{name}.py"
        if not file.exists():
            file = room.parent / "modeling" / file.name
        code = file.read_text(encoding="utf-8").replace("from hf_bidir.modeling.", "from .")
        (folder / file.name).write_text(code, encoding="utf-8")


BidirRnnConfig.__signature__ = with_fields(inspect.signature(PretrainedConfig), FIELDS)
