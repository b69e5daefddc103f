"""ViT with signed attention: the stock transformers heads, each with its self-attention retyped."""

from typing import TYPE_CHECKING

from transformers.models.vit.modeling_vit import ViTForImageClassification, ViTModel

# transformers 4.57 fetches only the files that this one imports itself, so every file of the model stands here.
from .activations import tanhmax  # noqa: F401
from .attention import bidir_attention  # noqa: F401
from .attention_inputs import keep_mask  # noqa: F401
from .chunked_attention import chunked_tanhmax_attention  # noqa: F401
from .configuration_bidir import check_bidir_config  # noqa: F401
from .configuration_bidir_vit import BidirViTConfig
from .modeling_bidir import BidirMixin, read_checkpoint_keys_like, signed_image_attention

if TYPE_CHECKING:  # attention.py imports these when it needs them, since they need Triton; they travel all the same
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import hyperbolic  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401

try:  # transformers up to 5.16: projections in ViTSelfAttention, the output projection outside it
    from transformers.models.vit.modeling_vit import ViTSelfAttention
except ImportError:  # later: all four projections in ViTAttention
    from transformers.models.vit.modeling_vit import ViTAttention as ViTSelfAttention


class BidirViTSelfAttention(ViTSelfAttention):
    """Self-attention with the activation and the negative mass that the config names."""

    forward = signed_image_attention


class BidirViTMixin(BidirMixin):
    config_class = BidirViTConfig
    stock_attention = ViTSelfAttention
    signed_attention = BidirViTSelfAttention


class BidirViTModel(BidirViTMixin, ViTModel):
    """`ViTModel` with signed attention."""


class BidirViTForImageClassification(BidirViTMixin, ViTForImageClassification):
    """`ViTForImageClassification` with signed attention."""


read_checkpoint_keys_like("ViTModel", "BidirViTModel")
BidirViTModel.register_for_auto_class("AutoModel")
BidirViTForImageClassification.register_for_auto_class("AutoModelForImageClassification")
