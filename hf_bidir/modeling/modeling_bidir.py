"""What the bidir models share: the stock model is built as it is, then its self-attention layers are retyped."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from .attention import activated, bidir_attention
from .attention_inputs import fused_obstacle, keep_mask, per_head
from .configuration_bidir import (
    check_attn_implementation,
    check_bidir_config,
    head_negative_masses,
    layer_negative_mass,
)

LEARNED, EDIT, KEEP = "negative_mass_logit", "edit_coefficients", "keep_keys"
BACKENDS = {None: "auto", "sdpa": "auto", "eager": "eager", "fused": "fused"}  # attn_implementation: implementation


class BidirMixin:
    """Turns a stock `PreTrainedModel` into its signed counterpart; stands before the stock class in a head's bases.

    Weights, initialisation and state-dict keys remain the stock ones, so a softmax checkpoint loads with nothing
    missing and `attn_activation="softmax"` equals the stock model.
    """

    stock_attention: type[nn.Module]
    signed_attention: type[nn.Module]
    attends_between_tokens = True  # False: one query reads the whole input
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config, *args, **kwargs):
        check_bidir_config(config)
        implementation = getattr(config, "_attn_implementation", None)
        check_attn_implementation(implementation, self.attends_between_tokens)
        _check_fused(implementation)
        if implementation == "fused":  # BERT of transformers 4 looks its layers up by a name that must be a stock one
            config._attn_implementation = "eager"
        super().__init__(config, *args, **kwargs)
        if implementation == "fused":
            self.config._attn_implementation = "fused"
        self._retype_attention()

    def set_attn_implementation(self, attn_implementation, *args, **kwargs):
        """As in transformers; "fused" is refused where the kernel cannot run."""
        _check_fused(attn_implementation)
        return super().set_attn_implementation(attn_implementation, *args, **kwargs)

    @classmethod
    def from_stock(cls, model, config):
        """Turn an instance of the stock class into one of this class, in place: no weight is copied.

        Args:
            model: an instance of exactly the stock class that this class extends.
            config: a bidir config of the same shape.

        Returns:
            The same object, now of this class and with `config`.
        """
        check_bidir_config(config)
        config._attn_implementation = model.config._attn_implementation
        stock_config = model.config
        with torch.device("meta"):
            cls(config)  # what a class can output (hidden states, ...) is registered when one is constructed
        model.__class__ = cls
        for module in model.modules():
            if getattr(module, "config", None) is stock_config:
                module.config = config
        model._retype_attention()
        return model

    def _retype_attention(self) -> None:
        layers = [module for module in self.modules() if isinstance(module, self.stock_attention)]
        for index, module in enumerate(layers):
            module.__class__ = self.signed_attention
            module.config, module.layer_idx = self.config, index
            if self.config.attn_learn_negative_mass:
                module.register_parameter(LEARNED, nn.Parameter(negative_mass_logits(module)))
        self.base_model.register_forward_pre_hook(_check_output_attentions, with_kwargs=True)

    @classmethod
    def from_pretrained(cls, *args, output_loading_info: bool = False, **kwargs):
        """As in transformers; a learned negative mass that the checkpoint lacks starts where the config says."""
        model, report = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        for name, module in model.named_modules():
            key = f"{name}.{LEARNED}"
            if key in report["missing_keys"]:
                with torch.no_grad():
                    getattr(module, LEARNED).copy_(negative_mass_logits(module))
                report["missing_keys"].remove(key)
        return (model, report) if output_loading_info else model

    def write_learned_negative_mass(self) -> None:
        """Put the negative mass that every head has learned into the config, where everybody looks for it."""
        if not self.config.attn_learn_negative_mass:
            return
        logits = [getattr(m, LEARNED).detach() for m in self.modules() if isinstance(m, self.signed_attention)]
        # a sigmoid that rounds to 0 or 1 would have no finite logit to start from when it is read again
        self.config.attn_negative_mass = [layer.sigmoid().clamp(1e-6, 1 - 1e-6).tolist() for layer in logits]

    def save_pretrained(self, *args, **kwargs):
        self.write_learned_negative_mass()
        return super().save_pretrained(*args, **kwargs)


def negative_mass_logits(module: nn.Module) -> Tensor:
    """The parameter `[heads]` of a layer whose sigmoid is the config's negative mass."""
    return torch.logit(torch.tensor(head_negative_masses(module.config, module.layer_idx)))


def _check_fused(attn_implementation) -> None:
    """Refuse the kernel before any work is done, where there is nothing to run it."""
    if attn_implementation == "fused" and (obstacle := fused_obstacle()):
        raise ValueError(f'attn_implementation="fused" cannot run here: {obstacle}; "sdpa" does without.')


def _check_output_attentions(model, args, kwargs) -> None:
    """Refuse what the fast paths would answer with None or an empty tuple."""
    requested = kwargs.get("output_attentions")
    requested = model.config.output_attentions if requested is None else requested
    if requested and model.config._attn_implementation != "eager":
        raise ValueError(
            f'output_attentions=True needs attn_implementation="eager", which materialises the coefficients; it is '
            f'"{model.config._attn_implementation}". Call model.set_attn_implementation("eager"), or load the model '
            'with attn_implementation="eager".'
        )


def signed_self_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """The attention of a retyped layer, by its config: context `[batch, queries, heads * head_dim]`, coefficients.

    Query, key and value are `[batch, length, heads * head_dim]` projections; `attention_mask` is whatever
    transformers made for the backend.
    """
    config, edit = module.config, getattr(module, EDIT, None)
    check_attn_implementation(config._attn_implementation)
    heads = [x.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2) for x in (query, key, value)]
    context, coefficients = bidir_attention(
        *heads,
        within_scope(config, _kept(module, keep_mask(attention_mask)), query),
        activation=config.attn_activation,
        negative_mass=_negative_mass(module),
        scaling=scaling,
        dropout=dropout if module.training else 0.0,
        implementation="eager" if edit else BACKENDS[config._attn_implementation],
    )
    if edit:
        coefficients = edit(coefficients)
        context = coefficients @ heads[2]
    return context.transpose(1, 2).flatten(2), coefficients


def within_scope(config, keep: Tensor | None, query: Tensor) -> Tensor | None:
    """The keep-mask without the keys that are too far away, for queries `[batch, length, ...]` that are keys too."""
    if config.attn_scope == "global":
        return keep
    positions = torch.arange(query.shape[1], device=query.device)
    near = ((positions - positions.unsqueeze(1)).abs() <= config.attn_window)[None, None]
    return near if keep is None else keep & near


def signed_coefficients(module: nn.Module, scores: Tensor, keep: Tensor) -> Tensor:
    """The coefficients of a layer that has made its own scores `[batch, heads, queries, keys]`, by its config."""
    mass = per_head(_negative_mass(module), scores)
    coefficients = activated(scores, _kept(module, keep), module.config.attn_activation, mass)
    edit = getattr(module, EDIT, None)
    return edit(coefficients) if edit else coefficients


def _negative_mass(module: nn.Module) -> float | list[float] | Tensor:
    learned = getattr(module, LEARNED, None)
    return layer_negative_mass(module.config, module.layer_idx) if learned is None else learned.sigmoid()


def _kept(module: nn.Module, keep: Tensor | None) -> Tensor | None:
    """The keep-mask without the keys that `kept_keys` leaves out."""
    kept = getattr(module, KEEP, None)
    if kept is None:
        return keep
    return kept if keep is None else keep & kept


@contextmanager
def edited_coefficients(model: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While the context lasts, `edit` sees, and may change, the coefficients of every layer of a bidir model.

    Args:
        edit: `[batch, heads, queries, keys]` to the same shape, called once per layer, from the bottom up; the values
            are weighed by what it returns.
    """
    outer = getattr(_attention_layers(model)[0], EDIT, None)  # of a context that surrounds this one; it comes first
    with _set_on_layers(model, EDIT, edit if outer is None else lambda coefficients: edit(outer(coefficients))):
        yield


def kept_keys(model: nn.Module, keep: Tensor) -> AbstractContextManager[None]:
    """While the context lasts, every layer of a bidir model leaves out the keys where `keep` is False.

    Args:
        keep: boolean `[batch, 1, 1, keys]`; padding, and what a context around this one drops, is left out as well.
    """
    outer = getattr(_attention_layers(model)[0], KEEP, None)
    return _set_on_layers(model, KEEP, keep if outer is None else keep & outer)


def _attention_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, model.signed_attention)]


@contextmanager
def _set_on_layers(model: nn.Module, name: str, value: object) -> Iterator[None]:
    layers = _attention_layers(model)
    before = [getattr(layer, name, None) for layer in layers]
    for layer in layers:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            setattr(layer, name, old)


def signed_image_attention(self: nn.Module, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs):
    """The forward of a retyped ViT or DeiT layer: `[batch, length, hidden]` -> the same, and coefficients or None.

    Where the stock layer includes the output projection (`o_proj`), so does this one.
    """
    merged = hasattr(self, "o_proj")
    if not merged and attention_mask is not None:
        raise ValueError("signed ViT keeps all its heads: head_mask is not supported, leave it out.")
    names = ("q_proj", "k_proj", "v_proj") if merged else ("query", "key", "value")
    query, key, value = (getattr(self, name)(hidden_states) for name in names)
    dropout = self.config.attention_probs_dropout_prob
    context, coefficients = signed_self_attention(
        self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout
    )
    return (self.o_proj(context) if merged else context), coefficients


def _no_stock_layer(module: nn.Module, *args, **kwargs):
    raise ValueError(
        f'attn_implementation="fused" belongs to the layers of bidir models, and {type(module).__name__} is none; '
        'choose "sdpa".'
    )


def _padding_mask(*args, attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
    """Padding `[batch, keys]` as `[batch, 1, 1, keys]`: one row for all queries lets the kernel skip blocks."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None]


# transformers takes a name only when it is known, and drops the mask of one without a function for masks. The layers
# of a bidir model read the name from the config themselves.
AttentionInterface.register("fused", _no_stock_layer)
AttentionMaskInterface.register("fused", _padding_mask)


def read_checkpoint_keys_like(stock: str, bidir: str) -> None:
    """Let the encoder class `bidir` read the checkpoint key names that `stock` reads.

    transformers since 5.17 renames checkpoint keys by exact class name. Without this, a bidir encoder would keep its
    random weights and only a load report would say so.
    """
    try:
        from transformers.conversion_mapping import (
            get_checkpoint_conversion_mapping,
            register_checkpoint_conversion_mapping,
        )
    except ImportError:
        return
    mapping = get_checkpoint_conversion_mapping(stock)
    if mapping is not None:
        register_checkpoint_conversion_mapping(bidir, mapping, overwrite=True)
