"""Layers that compute attention by themselves, outside transformers' attention interface."""

import copy
import operator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_bidir import signed
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, observed_layers
from hf_bidir.kernels.interventions import Interventions, intervening
from hf_bidir.modeling.activations import tanhmax
from hf_bidir.modeling.outside_attention import OutsideAttention, outside_class
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import random_model

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
WORDS = SHAPE | {"vocab_size": 60, "max_position_embeddings": 64}
WINDOWS = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [4], "window_size": 4}
DISENTANGLED = WORDS | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
TEXT = {
    "bloom": ("BloomModel", {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "deberta": ("DebertaModel", DISENTANGLED),
    "deberta-v2": ("DebertaV2Model", DISENTANGLED),
    "longformer": ("LongformerModel", WORDS | {"attention_window": [4, 4]}),
    "mpnet": ("MPNetModel", WORDS),
    "xlnet": ("XLNetModel", {"vocab_size": 60, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40}),
}
IMAGES = {
    "segformer": ("SegformerModel", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 8, 8]}),
    "siglip": ("SiglipVisionModel", SHAPE | {"image_size": 16, "patch_size": 4}),
    "swinv2": ("Swinv2Model", WINDOWS),
}
COMPILED = ("deberta-v2", "siglip")  # a softmax of its own, and `nn.MultiheadAttention`
INDICES = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
KEEP = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])


def stock_model(family):
    name, fields = (TEXT | IMAGES)[family]
    return random_model(name, **fields)


def inputs_of(family):
    if family in TEXT:
        return {"input_ids": INDICES, "attention_mask": KEEP}
    size = 64 if family == "segformer" else 16
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))}


def states(model, inputs):
    with torch.no_grad():
        outputs = model(**inputs)
    return outputs.pooler_output if outputs.get("pooler_output") is not None else outputs.last_hidden_state


@pytest.fixture(scope="module", params=[*TEXT, *IMAGES])
def family(request):
    return request.param


def test_a_negative_mass_of_0_is_the_stock_model_to_the_bit_and_1_is_another(family):
    model, inputs = stock_model(family), inputs_of(family)
    expected = states(model, inputs)
    assert torch.equal(states(signed(model, 0.0), inputs), expected)
    model.config.attn_negative_mass = 1.0
    assert not torch.allclose(states(model, inputs), expected, rtol=1e-3)


@pytest.mark.parametrize("family", TEXT)
def test_padding_has_no_effect(family):
    model = signed(stock_model(family))
    alone = model(INDICES[1:, :6], attention_mask=KEEP[1:, :6]).last_hidden_state
    torch.testing.assert_close(model(INDICES, attention_mask=KEEP).last_hidden_state[1:, :6], alone)


def test_copies_pickles_and_saved_models_are_equal(family, tmp_path):
    model, inputs = signed(stock_model(family), 0.7), inputs_of(family)
    expected = states(model, inputs)
    torch.save(model, tmp_path / "model.pt")
    model.save_pretrained(tmp_path)
    pickled = torch.load(tmp_path / "model.pt", weights_only=False)
    for again in (copy.deepcopy(model), pickled, type(model).from_pretrained(tmp_path)):
        assert len(signed_layers(again)) == len(signed_layers(model)) > 0
        assert torch.equal(states(again, inputs), expected)


@pytest.mark.parametrize("family", COMPILED)
def test_the_model_compiles_into_one_graph_and_is_exported(family):
    model, inputs = signed(stock_model(family)), inputs_of(family)
    expected = model(**inputs).last_hidden_state
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for run in (compiled, torch.export.export(model, (), inputs).module()):
        torch.testing.assert_close(run(**inputs).last_hidden_state, expected)


@pytest.mark.parametrize("family", ["deberta-v2", "siglip", "swinv2"])
def test_each_head_has_its_own_negative_mass(family):
    model, inputs = signed(stock_model(family)), inputs_of(family)

    def coefficients(masses):
        seen = []
        model.config.attn_negative_mass = [masses] * len(signed_layers(model))
        with edited_coefficients(model, lambda a: seen.append(a) or a):
            states(model, inputs)
        return seen[0][:1]  # the other row has queries that attend to nothing

    mixed = coefficients([1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(mixed[:, 0], coefficients(1.0)[:, 0])
    torch.testing.assert_close(mixed[:, 1:], coefficients(0.0)[:, 1:])


@pytest.mark.parametrize("family", ["bloom", "deberta-v2", "mpnet", "xlnet"])
def test_values_and_context_are_observed_and_the_coefficients_are_those_of_the_formula(family):
    model, coefficients, seen = signed(stock_model(family)), [], []
    with (
        edited_coefficients(model, lambda a: coefficients.append(a) or a),
        observed_layers(model, lambda *observed: seen.append(observed)),
    ):
        model(**inputs_of(family))
    assert [layer for layer, *_ in seen] == signed_layers(model)
    for a, (_, key, value, context) in zip(coefficients, seen, strict=True):
        assert key.shape == value.shape == (2, 4, 9, 8)
        torch.testing.assert_close((a @ value).transpose(1, 2), context)
        assert a.min() < 0
        assert not a[1, :, :6, 6:].any()


def test_partial_keeps_softmax_outside_the_interface_also_after_saving(tmp_path):
    model = signed(stock_model("siglip"), partial=True)
    model.save_pretrained(tmp_path)
    for partial in (model, type(model).from_pretrained(tmp_path)):
        assert partial.config.attn_partial
        assert not any(isinstance(layer, OutsideAttention) for layer in signed_layers(partial))


class Own(nn.Module):
    """A layer whose attention is a function of its inputs."""

    num_heads = 2

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, *inputs):
        return self.attend(*inputs)


def signed_layer(layer, negative_mass=1.0):
    """The layer, signed, or that with this function."""
    model = signed(stock_model("mpnet"), negative_mass)
    layer = layer if isinstance(layer, nn.Module) else Own(layer)
    layer.__class__ = outside_class(type(layer))
    for name in ("signed_index", "signed_view"):
        setattr(layer, name, getattr(signed_layers(model)[0], name))
    return layer


def softmax(scores):
    return F.softmax(scores, -1)


def of_torch(states, mask=None, **options):
    return F.scaled_dot_product_attention(states, states, states, mask, **options)


STATES = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
SCORES = 5 * torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("add", [operator.add, torch.add, operator.iadd, Tensor.add_, lambda x, mask: mask + x])
@pytest.mark.parametrize("masked", [-100.0, -1e4, torch.finfo(torch.float32).min, -torch.inf])
def test_what_an_added_mask_drops_has_no_weight_and_low_scores_keep_theirs(masked, add):
    scores = SCORES.clone()
    scores[0, 0, 0, 0] = -102.0
    layer = signed_layer(lambda mask: softmax(add(scores.clone(), mask)))
    mask = torch.zeros(5, 5).masked_fill(~CAUSAL, masked)
    torch.testing.assert_close(layer(mask), tanhmax(scores, CAUSAL))


@pytest.mark.parametrize("bias", [[[0.0, -3.0], [-80.0, 0.0]], [[-80.0, -60.0], [-60.0, -80.0]], [[0.0], [-80.0]]])
def test_a_bias_is_no_mask_however_low_it_is(bias):
    scores, bias = torch.randn(1, 1, 2, len(bias[0])), torch.tensor(bias)
    torch.testing.assert_close(signed_layer(lambda x: softmax(x + bias))(scores), tanhmax(scores + bias))


@pytest.mark.parametrize(
    "attend",
    [
        lambda x: softmax(x - x.amax(-1, True).detach()),
        lambda x: softmax(x - torch.max(x, -1, True)[0]),
        lambda x: softmax(x - torch.max(x)),
        lambda x: torch.softmax(x, 3, torch.float64).float(),
        lambda x: x.softmax(dim=-1),
    ],
)
def test_no_maximum_is_subtracted_from_scores_and_every_softmax_over_keys_is_signed(attend):
    torch.testing.assert_close(signed_layer(attend)(SCORES), tanhmax(SCORES))


def test_a_layer_without_a_softmax_over_keys_is_an_error_if_it_multiplies():
    layer = signed_layer(lambda x: F.softmax(x, 2) @ x)
    with pytest.raises(ValueError, match="Own computed no softmax over keys"):
        layer(SCORES)
    torch.testing.assert_close(signed_layer(lambda x: F.softmax(x, 2))(SCORES), F.softmax(SCORES, 2))


@pytest.mark.parametrize(("negative_mass", "attend"), [([[1.0, 0.0, 0.0, 0.0]] * 2, softmax), (1.0, of_torch)])
def test_scores_and_states_of_other_shapes_are_refused_by_name(negative_mass, attend):
    with pytest.raises(ValueError, match=r"with \(3, 5, 5\) for"):
        signed_layer(attend, negative_mass)(torch.randn(3, 5, 5))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_torch_in_such_a_layer_is_signed(causal):
    layer = signed_layer(lambda states: of_torch(states, is_causal=causal, scale=1 / 3))
    keep = CAUSAL if causal else torch.ones_like(CAUSAL)
    torch.testing.assert_close(layer(STATES), tanhmax(STATES @ STATES.mT / 3, keep) @ STATES)


@pytest.mark.parametrize(("bias", "masked"), [(0.0, -100.0), (1.5, -1e4)])
def test_a_float_mask_of_torchs_attention_drops_keys_and_is_else_added_to_the_scores(bias, masked):
    bias = bias * torch.randn(5, 5)
    context = signed_layer(of_torch)(STATES, bias.masked_fill(~CAUSAL, masked))
    torch.testing.assert_close(context, tanhmax(STATES @ STATES.mT / 2 + bias, CAUSAL) @ STATES)


def test_changes_and_observers_of_a_call_reach_attention_of_torch():
    layer, seen = signed_layer(of_torch), []
    changes = Interventions(
        edits=(lambda coefficients: 2 * coefficients,),
        projections=(lambda query, key, value: (query, key, 3 * value),),
        observers=(lambda *observed: seen.extend(observed),),
    )
    with intervening(layer, [layer], changes):
        context = layer(STATES)
    torch.testing.assert_close(context, 2 * tanhmax(STATES @ STATES.mT / 2) @ (3 * STATES))
    assert seen[0] is layer
    torch.testing.assert_close(seen[1:], [STATES, 3 * STATES, context.transpose(1, 2)])


@pytest.mark.parametrize("need_weights", [False, True])
@torch.no_grad()
def test_multi_head_attention_of_torch_is_signed(need_weights):
    layer, states = signed_layer(nn.MultiheadAttention(8, 2, batch_first=True).eval()), torch.randn(3, 5, 8)
    query, key, value = (states @ layer.in_proj_weight.T).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    expected = layer.out_proj((tanhmax(query @ key.mT / 2) @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(states, states, states, need_weights=need_weights)[0], expected)
