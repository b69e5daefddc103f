"""DeiT with signed attention: the stock transformers heads, each with its self-attention retyped."""

from typing import TYPE_CHECKING

from transformers.models.deit.modeling_deit import DeiTForImageClassification, DeiTModel

# transformers 4.57 fetches only the files that this one imports itself, so every file of the model stands here.
from .activations import tanhmax  # noqa: F401
from .attention import bidir_attention  # noqa: F401
from .attention_inputs import keep_mask  # noqa: F401
from .chunked_attention import chunked_tanhmax_attention  # noqa: F401
from .configuration_bidir import check_bidir_config  # noqa: F401
from .configuration_bidir_deit import BidirDeiTConfig
from .modeling_bidir import BidirMixin, read_checkpoint_keys_like, signed_image_attention

if TYPE_CHECKING:  # attention.py imports these when it needs them, since they need Triton; they travel all the same
    from .fused_attention import fused_attention  # noqa: F401
    from .fused_blocks import hyperbolic  # noqa: F401
    from .fused_kernels import forward_kernel  # noqa: F401

try:  # transformers up to 5.16: projections in DeiTSelfAttention, the output projection outside it
    from transformers.models.deit.modeling_deit import DeiTSelfAttention
except ImportError:  # later: all four projections in DeiTAttention
    from transformers.models.deit.modeling_deit import DeiTAttention as DeiTSelfAttention


class BidirDeiTSelfAttention(DeiTSelfAttention):
    """Self-attention with the activation and the negative mass that the config names."""

    forward = signed_image_attention


class BidirDeiTMixin(BidirMixin):
    config_class = BidirDeiTConfig
    stock_attention = DeiTSelfAttention
    signed_attention = BidirDeiTSelfAttention


class BidirDeiTModel(BidirDeiTMixin, DeiTModel):
    """`DeiTModel` with signed attention."""


class BidirDeiTForImageClassification(BidirDeiTMixin, DeiTForImageClassification):
    """`DeiTForImageClassification` with signed attention."""


read_checkpoint_keys_like("DeiTModel", "BidirDeiTModel")
BidirDeiTModel.register_for_auto_class("AutoModel")
BidirDeiTForImageClassification.register_for_auto_class("AutoModelForImageClassification")
