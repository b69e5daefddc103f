"""Config of recurrent models with signed attention pooling."""

from transformers import PretrainedConfig

# transformers 4.57 fetches only the files that this one imports itself, so all of them stand here.
from .activations import get_attn_activation  # noqa: F401
from .configuration_bidir import check_bidir_config

ENCODERS = ("none", "lstm", "gru")
ATTN_SCORES = ("per_token", "feed_forward")
_HEADS = {
    "AutoModel": "BidirRnnModel",
    "AutoModelForSequenceClassification": "BidirRnnForSequenceClassification",
}


class BidirRnnConfig(PretrainedConfig):
    """Embedding, recurrent encoder, attention over time, classifier; by default the paper's model.

    Args:
        vocab_size: entries of the embedding.
        embedding_size: the width of the embedding.
        hidden_size: the width of the encoder, per direction, and of queries, keys and values.
        encoder: "none" (attention over the embeddings), "lstm" or "gru".
        num_rnn_layers: layers of the encoder.
        bidirectional: the encoder reads both ways, and its states are twice as wide.
        attn_score: "per_token" (`q_i · k_i / attn_scale`, and values `W_v h`; the paper's) or "feed_forward"
            (`tanh(w · h_i + b)`, and the states themselves as values).
        attn_scale: what the per-token score is divided by.
        attn_activation, attn_negative_mass, attn_learn_negative_mass: as in `BidirBertConfig`; there is one attention
            layer, with one head.
        dropout: of the context, before the classifier.
        embedding_dropout: of the embeddings.
        initializer_range: standard deviation of the embeddings of a new model.
        max_position_embeddings: the longest text that a tokenizer should make; a longer one is read as well.
        pad_token_id: what is padding where no attention mask says so.
        kwargs: the fields of every config.

    Raises:
        ValueError: an unknown encoder, score or activation, a size below 1, a negative mass out of range.
    """

    model_type = "bidir_rnn"
    num_hidden_layers = num_attention_heads = 1  # of attention

    def __init__(
        self,
        vocab_size: int = 8000,
        embedding_size: int = 200,
        hidden_size: int = 100,
        encoder: str = "none",
        num_rnn_layers: int = 1,
        bidirectional: bool = False,
        attn_score: str = "per_token",
        attn_scale: float = 5.0,
        attn_activation: str = "tanhmax",
        attn_negative_mass=1.0,
        attn_learn_negative_mass: bool = False,
        dropout: float = 0.5,
        embedding_dropout: float = 0.0,
        initializer_range: float = 0.1,
        max_position_embeddings: int = 512,
        pad_token_id: int = 0,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.encoder = encoder
        self.num_rnn_layers = num_rnn_layers
        self.bidirectional = bidirectional
        self.attn_score = attn_score
        self.attn_scale = attn_scale
        self.attn_activation = attn_activation
        self.attn_negative_mass = attn_negative_mass
        self.attn_learn_negative_mass = attn_learn_negative_mass
        self.dropout = dropout
        self.embedding_dropout = embedding_dropout
        self.initializer_range = initializer_range
        self.max_position_embeddings = max_position_embeddings
        # Every head, always: by itself save_pretrained names only the head that was saved.
        kwargs["auto_map"] = {
            "AutoConfig": "configuration_bidir_rnn.BidirRnnConfig",
            **{auto: f"modeling_bidir_rnn.{name}" for auto, name in _HEADS.items()},
        }
        super().__init__(pad_token_id=pad_token_id, **kwargs)
        self.pad_token_id = pad_token_id
        check_bidir_config(self)
        self._check_shape()

    def _check_shape(self) -> None:
        for field, known in (("encoder", ENCODERS), ("attn_score", ATTN_SCORES)):
            if getattr(self, field) not in known:
                raise ValueError(f'{field}="{getattr(self, field)}" is not known; choose one of: {", ".join(known)}.')
        for field in ("vocab_size", "embedding_size", "hidden_size", "num_rnn_layers"):
            if getattr(self, field) < 1:
                raise ValueError(f"expected {field} of at least 1, got {getattr(self, field)}.")
        if not isinstance(self.pad_token_id, int):
            raise ValueError(f"expected a pad_token_id, which says what is padding; got {self.pad_token_id}.")
        if self.attn_scale <= 0:
            raise ValueError(f"expected attn_scale above 0, got {self.attn_scale}.")
        if self.bidirectional and self.encoder == "none":
            raise ValueError('bidirectional=True needs an encoder that reads in a direction; encoder is "none".')


BidirRnnConfig.register_for_auto_class()
