"""Config of recurrent models with signed attention over time."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from hf_bidir.modeling.activations import checked_negative_mass, get_attn_activation

from .scores import SCORES

SCORES_ALONE = ("per_token", "feed_forward", "positional_feed_forward")  # scores without a query
ATTN_SCORES = tuple(SCORES)
ATTN_SELECTIONS = ("soft", "hard")
DECODER_STYLES = ("luong", "bahdanau")
CLASSIFIER_SCOPES = ("global", "local-p")
DECODER_SCOPES = (*CLASSIFIER_SCOPES, "local-m", "none")
CHOICES = {
    "encoder": ("none", "lstm", "gru"),
    "attn_score": ATTN_SCORES,
    "attn_selection": ATTN_SELECTIONS,
    "decoder_style": (None, *DECODER_STYLES),
}
FIELDS: dict[str, Any] = {
    "vocab_size": 8000,
    "embedding_size": 200,
    "hidden_size": 100,
    "encoder": "none",
    "num_rnn_layers": 1,
    "bidirectional": False,
    "attn_score": "per_token",
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
}
CLASSIFIER_CODE = {
    "AutoModel": "modeling_bidir_rnn.BidirRnnModel",
    "AutoModelForSequenceClassification": "modeling_bidir_rnn.BidirRnnForSequenceClassification",
}
DECODER_CODE = {"AutoModelForSeq2SeqLM": "modeling_bidir_rnn.BidirRnnForSeq2SeqLM"}
CONFIG_CODE = {"AutoConfig": "configuration_bidir_rnn.BidirRnnConfig"}
FILES = ("configuration_bidir_rnn", "modeling_bidir_rnn", "recurrent_attention", "scores", "activations")


class BidirRnnConfig(PretrainedConfig):
    """Embedding, recurrent encoder, attention over time, classifier; by default the model of the paper.

    Args:
        vocab_size: number of embeddings.
        embedding_size: width of the embedding.
        hidden_size: width of the encoder, per direction, and of queries, keys and values.
        encoder: "none" (attention over the embeddings), "lstm" or "gru".
        num_rnn_layers: number of encoder layers.
        bidirectional: run the encoder in both directions, which doubles the width of its states.
        attn_score: a name in `scores.py`. "per_token" (the paper's) also has values `W_v h`; with the others, the
            values are the states themselves. In a classifier, the query of scores that have one is a learned vector
            (Yang et al. 2016).
        attn_scale: divisor of the per-token score.
        decoder_style: None for a classifier. For `BidirRnnForSeq2SeqLM` "luong", whose query is the state of the
            current step, and whose input is also the attentional vector of the previous step (context and state,
            combined), or "bahdanau", whose query is the state of the previous step.
        attn_scope: "global"; with scores that have a query also "local-p", the positions at most `attn_window` from one
            that is predicted from the query, weighted by a Gaussian (Luong et al. 2015, section 3.2). With a decoder
            also "local-m", those around the index of the step (same section), and "none": no attention; the context of
            every step is the encoder's last state (Cho et al. 2014).
        attn_window: positions on either side, for local scopes.
        attn_selection: "soft", a weighted sum of all values; or "hard", a single value, sampled in training, and with
            the coefficient of largest magnitude at evaluation.
        attn_activation: "tanhmax", "balanced", "softmax", "tanh" or a registered name.
        attn_negative_mass: `λ` of "tanhmax" and "balanced" in [0, 1]; a number, because there is one head.
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
    num_hidden_layers = num_attention_heads = 1  # attention layers and heads

    def __init__(self, **kwargs: Any) -> None:
        fields = {name: kwargs.pop(name, default) for name, default in FIELDS.items()}
        decodes = fields["decoder_style"] is not None
        kwargs["auto_map"] = CONFIG_CODE | (DECODER_CODE if decodes else CLASSIFIER_CODE)
        kwargs["is_encoder_decoder"] = decodes
        kwargs["tie_word_embeddings"] = False  # input and output embeddings have different widths
        super().__init__(**kwargs)
        for name, value in fields.items():
            setattr(self, name, value)
        self._check()
        self.check_scope()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; ValueError for a negative mass out of range."""
        if name == "attn_negative_mass":
            value = checked_negative_mass(value)
        super().__setattr__(name, value)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; with the code of the models, for processes without hf_bidir."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if __name__.startswith("hf_bidir."):  # transformers itself copies code that came with a checkpoint
            write_code(Path(save_directory))

    def check_scope(self) -> None:
        """Raise ValueError unless `attn_scope` fits `attn_window`, `attn_selection` and the model."""
        scope, window = self.attn_scope, self.attn_window
        scopes = DECODER_SCOPES if self.decoder_style else CLASSIFIER_SCOPES
        if self.attn_score in SCORES_ALONE:
            scopes = ("global",)
        if scope not in scopes:
            raise ValueError(
                f'attn_scope="{scope}" is not available with attn_score="{self.attn_score}" and '
                f"decoder_style={self.decoder_style}; choose one of: {', '.join(scopes)}."
            )
        fits = (window or 0) >= 1 if scope.startswith("local") else window is None
        if not fits:
            raise ValueError(
                f"expected an attn_window of at least 1 for a local attn_scope, and None for another; got {window} for "
                f'attn_scope="{scope}".'
            )
        if scope == "none" and self.attn_selection == "hard":
            raise ValueError('attn_selection="hard" needs attention; attn_scope is "none".')

    def _check(self) -> None:
        get_attn_activation(self.attn_activation)
        for field, known in CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                raise ValueError(f'{field}="{value}" is not known; choose one of: {", ".join(map(str, known))}.')
        without_encoder = self.encoder == "none"
        if without_encoder and self.bidirectional:
            raise ValueError('bidirectional=True needs an encoder, "lstm" or "gru"; encoder is "none".')
        if self.decoder_style and (without_encoder or self.attn_score in SCORES_ALONE):
            raise ValueError(
                f'decoder_style="{self.decoder_style}" needs an encoder and an attn_score with a query; got '
                f'encoder="{self.encoder}" and attn_score="{self.attn_score}".'
            )


def write_code(folder: Path) -> None:
    """Write the files that a recurrent checkpoint needs in a process without hf_bidir, into one flat folder."""
    room = Path(__file__).parent
    for name in FILES:
        file = room / f"{name}.py"
        if not file.exists():
            file = room.parent / "modeling" / file.name
        code = file.read_text(encoding="utf-8").replace("from hf_bidir.modeling.", "from .")
        (folder / file.name).write_text(code, encoding="utf-8")
