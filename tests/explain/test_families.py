"""Explanations, orientation and errors for every family of models."""

import warnings

import pytest
import torch
from PIL import Image
from transformers import SwinConfig, SwinForImageClassification, ViTImageProcessor
from typer.testing import CliRunner

import hf_bidir
from hf_bidir.checkpoints.kinds import kind_of, longest_text
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.projections import projections
from hf_bidir.cli import app
from hf_bidir.explain import (
    METHODS,
    contributions,
    edge_contributions,
    erasure,
    flip_heads,
    integrated_gradients,
    orient_heads,
    read_image,
    token_scores,
    value_weighted,
)
from hf_bidir.explain.api import explain_checkpoint
from hf_bidir.explain.methods import CAUSAL_DEFAULT
from hf_bidir.explain.record import record_coefficients
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import FAMILIES, NOT_ODD, TEXT_METHODS, TEXTS, family, images, inputs_of, tokenizer

TEXT_FAMILIES = [name for name in FAMILIES if "Image" not in name]
CAUSAL = ["GPT2ForSequenceClassification", "LlamaForSequenceClassification"]
every_family = pytest.mark.parametrize("name", FAMILIES)
every_text_family = pytest.mark.parametrize("name", TEXT_FAMILIES)


def allowed_flips(model, seed=0):
    """Random flips `[layers, heads]`, of all the query heads of a key head together."""
    layers = projections(model)
    flips = torch.rand(len(layers), len(layers[0].key), generator=torch.Generator().manual_seed(seed)) < 0.5
    assert flips.any()
    assert not flips.all()
    return flips.repeat_interleave(layers[0].heads // flips.shape[1], 1)


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model, weights):
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@every_family
def test_flipped_heads_change_their_own_coefficients_and_no_contribution(name):
    model = family(name)
    inputs, flips = inputs_of(model), allowed_flips(model)
    before, (_, was) = edge_contributions(model, inputs), record_coefficients(model, inputs)
    flip_heads(model, flips)
    for first, second in zip(before, edge_contributions(model, inputs), strict=True):
        torch.testing.assert_close(second, first, atol=1e-5, rtol=1e-4)
    calls = len(was) // len(flips)  # ALBERT runs one layer several times
    signs = (1 - 2.0 * flips).repeat_interleave(calls, 0)[:, None, :, None, None]
    for first, second, sign in zip(was, record_coefficients(model, inputs)[1], signs, strict=True):
        torch.testing.assert_close(second, sign * first, atol=1e-5, rtol=1e-4)


@every_family
def test_orientation_changes_no_output_and_gives_every_group_of_heads_its_sign(name):
    model = family(name)
    inputs = inputs_of(model)
    flip_heads(model, allowed_flips(model))
    before = model(**inputs).logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = orient_heads(model, [inputs], target=1, progress=False)
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-4, rtol=1e-4)
    _, coefficients = record_coefficients(model, inputs)
    edges = edge_contributions(model, inputs, target=1)
    pull = torch.stack([(edge * a.sign()).sum((0, 2, 3)) for edge, a in zip(edges, coefficients, strict=True)])
    pull = pull.unflatten(0, (len(share), -1)).sum(1)  # over the runs of a layer
    by_group = pull.unflatten(1, (len(projections(model)[0].key), -1)).sum(2)
    assert (by_group >= -1e-5).all()
    assert share.shape == pull.shape
    assert ((share > 0.5) == (pull > 0)).all()


def test_query_heads_of_one_key_head_are_not_flipped_apart():
    model = family("LlamaForSequenceClassification")
    weights, flips = weights_of(model), torch.zeros(3, 4, dtype=torch.bool)
    flips[1, 2] = True
    with pytest.raises(ValueError, match="layer 1 head 2, layer 1 head 3 share keys or values and must"):
        flip_heads(model, flips)
    assert unchanged(model, weights)


def test_heads_whose_keys_have_a_part_in_common_flip_together():
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
    model = family("DeepseekV3Model", num_key_value_heads=2, first_k_dense_replace=3, **ranks, **TEXTS)
    inputs, flips = inputs_of(model), torch.zeros(3, 2, dtype=torch.bool)
    _, before = record_coefficients(model, inputs)
    flips[1, 0] = True
    with pytest.raises(ValueError, match="layer 1 head 0, layer 1 head 1 share keys or values"):
        flip_heads(model, flips)
    flips[1] = True
    flip_heads(model, flips)
    for layer, (was, now) in enumerate(zip(before, record_coefficients(model, inputs)[1], strict=True)):
        torch.testing.assert_close(now, -was if layer == 1 else was)


@pytest.mark.parametrize("name", NOT_ODD)
def test_a_family_whose_signs_are_not_free_is_refused_and_its_weights_are_restored(name):
    model = family(name)
    weights = weights_of(model)
    with pytest.raises(ValueError, match=f"changes the outputs of Bidir{name} by .* is not odd"):
        flip_heads(model, torch.ones(3, 2, dtype=torch.bool))
    assert unchanged(model, weights)


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in FAMILIES for method in (TEXT_METHODS if name in TEXT_FAMILIES else METHODS)],
)
def test_every_method_gives_a_number_per_token_and_none_to_padding(name, method):
    model = family(name)
    inputs = inputs_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of integrated gradients
        scores = token_scores(model, inputs, method)
    assert scores.isfinite().all()
    assert scores[0].any()
    if "attention_mask" in inputs:
        assert scores.shape == (2, 6)
        assert not scores[1, 4:].any()


@every_text_family
@pytest.mark.parametrize("explain", [contributions, erasure, value_weighted, integrated_gradients])
def test_a_padded_text_is_explained_as_it_is_alone(name, explain):
    model = family(name)
    inputs = inputs_of(model)
    both, alone = explain(model, inputs), explain(model, {key: rows[1:, :4] for key, rows in inputs.items()})
    if explain is value_weighted:
        both, alone = (torch.stack(layers)[..., :4, :] for layers in (both, alone))
        both = both[:, 1:, ..., :4]
    else:
        both = both[1:, ..., :4]
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=1e-4)


@every_text_family
def test_a_masked_token_is_padding(name):
    model = family(name)
    inputs = inputs_of(model)
    effects = erasure(model, inputs, target=1, how="mask")
    keep = inputs["attention_mask"].clone()
    keep[:, 2] = 0
    with torch.no_grad():
        change = model(**inputs).logits - model(**inputs | {"attention_mask": keep}).logits
    torch.testing.assert_close(effects[:, 2], change[:, 1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_is_explained_at_its_last_token(name):
    model = family(name)
    inputs = inputs_of(model)
    _, coefficients = record_coefficients(model, inputs)
    expected = torch.stack([coefficients[-1][0, :, 5].mean(0), coefficients[-1][1, :, 3].mean(0)])
    torch.testing.assert_close(token_scores(model, inputs, "signed-attention"), expected.detach())
    kept = erasure(model, inputs, how="token") == 0
    assert kept.tolist() == [[False] * 5 + [True], [False] * 3 + [True] * 3]


def test_values_of_grouped_heads_are_weighted_by_the_queries_heads():
    model = family("LlamaForSequenceClassification")
    inputs, attention = inputs_of(model), model.model.layers[1].self_attn
    values = []
    attention.v_proj.register_forward_hook(lambda *call: values.append(call[-1]))
    _, coefficients = record_coefficients(model, inputs)
    by_head = values[0].unflatten(-1, (2, 4))[:, :, [0, 0, 1, 1]]
    taken = torch.einsum("bhqk,bkhd,ohd->bhqko", coefficients[1], by_head, attention.o_proj.weight.unflatten(1, (4, 4)))
    torch.testing.assert_close(value_weighted(model, inputs)[1], taken.norm(dim=-1).detach(), atol=1e-5, rtol=1e-4)


@every_family
def test_weighted_values_are_the_norm_of_what_an_edge_adds_to_the_output(name):
    model = family(name)
    inputs, (query, key), layer = inputs_of(model), (3, 2), projections(model)[-1]
    norms, outputs = value_weighted(model, inputs), []
    last = len(norms) - 1
    layer.output.register_forward_hook(lambda *call: outputs.append(call[-1]))

    def without_edge(coefficients):
        calls.append(coefficients)
        changed = coefficients.clone()
        if len(calls) == last + 1:
            changed[:, 0, query, key] = 0
        return changed

    calls = []
    with torch.no_grad():
        model(**inputs)
        with edited_coefficients(model, without_edge):
            model(**inputs)
    change = outputs[len(outputs) // 2 - 1] - outputs[-1]
    torch.testing.assert_close(norms[-1][:, 0, query, key], change[:, query].norm(dim=-1), atol=1e-4, rtol=1e-3)


def test_a_module_between_attention_and_output_projection_forbids_weighted_values():
    model = family("BitNetModel", num_key_value_heads=2, **TEXTS)
    with pytest.raises(ValueError, match="BitNetAttention has another module between attention and output projection"):
        value_weighted(model, {"input_ids": torch.arange(5).unsqueeze(0)})


def test_a_layer_that_runs_several_times_has_as_many_contributions():
    model = family("AlbertForSequenceClassification")
    assert len(signed_layers(model)) == 1
    assert contributions(model, inputs_of(model)).shape == (2, 3, 2, 6)
    with pytest.raises(ValueError, match="layer 3 does not exist; choose 0 to 2"):
        token_scores(model, inputs_of(model), "rollout", layer=3)


def test_the_encoder_of_a_signed_model_is_explained_like_a_separate_one():
    model = family("RobertaForSequenceClassification")
    alone = hf_bidir.BidirRobertaModel(model.config, add_pooling_layer=False).eval()
    alone.load_state_dict(model.base_model.state_dict())
    inputs = inputs_of(model)
    torch.testing.assert_close(contributions(model.base_model, inputs), contributions(alone, inputs))
    before = model(**inputs).logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert orient_heads(model.base_model, [inputs], progress=False).shape == (3, 2)
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-4, rtol=1e-4)


def test_a_model_with_layers_of_several_lengths_has_one_error_for_every_method():
    config = SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
    model = hf_bidir.signed(SwinForImageClassification(config).eval())
    inputs = {"pixel_values": torch.randn(1, 3, 16, 16)}
    for method in METHODS:
        with pytest.raises(ValueError, match=r"coefficients .* of the shapes \(., ., .+\), \(1, "):
            token_scores(model, inputs, method)
    assert [len(layer) for layer in edge_contributions(model, inputs)] == [4, 1]


@pytest.mark.parametrize(
    ("head", "options", "leading"),
    [
        ("ViTForImageClassification", {}, ["class token"]),
        ("DeiTForImageClassification", {"image_size": 8, "patch_size": 2}, ["class token", "distillation token"]),
        (
            "Dinov2WithRegistersForImageClassification",
            {},
            ["class token", *(f"register {number}" for number in range(1, 5))],
        ),
        ("SiglipVisionModel", {"image_size": 8, "patch_size": 2, "vision_use_head": False}, []),
    ],
)
def test_patches_are_the_last_tokens_whatever_stands_before_them(head, options, leading, tmp_path):
    Image.effect_noise((8, 8), 80).save(tmp_path / "noise.png")
    model = family(head, **options)
    example = read_image(model, ViTImageProcessor(size={"height": 8, "width": 8}), tmp_path / "noise.png")
    assert example.tokens == leading + [
        f"patch in row {row}, column {column}" for row in range(4) for column in range(4)
    ]
    assert example.special == [True] * len(leading) + [False] * 16
    assert token_scores(model, example.inputs).shape == (1, len(example.tokens))


def test_a_model_that_drops_patches_or_has_tokens_after_them_is_refused():
    with pytest.raises(ValueError, match="attends over 5 tokens for 4 x 4 patches"):
        erasure(family("ViTMAEModel", image_size=8, patch_size=2), images(), how="token")
    with pytest.raises(ValueError, match="none after the patches"):
        erasure(family("YolosModel", image_size=[8, 8], patch_size=2, num_detection_tokens=4), images(), how="token")


def test_positions_that_start_after_the_padding_index_are_fewer():
    model = family("RobertaForSequenceClassification")
    assert longest_text(model) == 22
    contributions(model, {"input_ids": torch.full((1, 22), 5)})
    with pytest.raises(ValueError, match="expected at most 22 tokens, got 23"):
        contributions(model, {"input_ids": torch.full((1, 23), 5)})


EXPLAINED = {
    # token_scores covers every family; these differ in how a checkpoint is read or a figure is drawn
    **{key: {} for key in ("AlbertForSequenceClassification", "Dinov2WithRegistersForImageClassification")},
    "LlamaForSequenceClassification": {},
    "ElectraForSequenceClassification": TEXTS | {"embedding_size": 16},
    "CLIPVisionModel": {"image_size": 8, "patch_size": 2},
    "GPT2LMHeadModel": FAMILIES["GPT2ForSequenceClassification"],
    "RobertaForQuestionAnswering": TEXTS,
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_command_explains_a_checkpoint_of_any_family(name, tmp_path):
    model = family(name, **EXPLAINED[name])
    of_images = model.main_input_name == "pixel_values"
    processor = ViTImageProcessor(size={"height": 8, "width": 8}) if of_images else tokenizer()
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    Image.effect_noise((8, 8), 80).save(tmp_path / "noise.png")
    text_or_image = str(tmp_path / "noise.png") if of_images else "a unbelievably good film"
    result = CliRunner().invoke(
        app, ["explain", str(tmp_path / "model"), text_or_image, "--output", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert "patch in row" in result.output if of_images else "unbelievably" in result.output
    traced = [] if kind_of(model).causal else ["rollout-flow.png"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"scores.png", "heads.png", "index.html", *traced}


def test_a_language_model_is_explained_at_the_next_word_which_a_target_may_name():
    model = family("GPT2LMHeadModel", **EXPLAINED["GPT2LMHeadModel"])
    explanation = explain_checkpoint((model, tokenizer()), "a good", target="film")
    assert 'Explained: y, the logit of "film"' in explanation.explained
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 3]])}
    expected = token_scores(model, inputs, CAUSAL_DEFAULT, 8, position=3)[0]
    torch.testing.assert_close(explanation.scores, expected)
    with pytest.raises(ValueError, match="'elephant' is not one token of the vocabulary"):
        explain_checkpoint((model, tokenizer()), "a good", target="elephant")
