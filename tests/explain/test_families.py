"""Explanations and errors for every family of models."""

import pytest
import torch
from transformers import SwinConfig, SwinForImageClassification, ViTImageProcessor
from typer.testing import CliRunner

import hf_bidir
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.projections import projections
from hf_bidir.cli import app
from hf_bidir.explain import METHODS, ForwardCache, edge_contributions, token_scores, value_weighted
from hf_bidir.explain.forward import forward_pass
from tests.explain.conftest import FAMILIES, PICTURES, TEXTS, asked, family, flip_heads, inputs_of, picture, saved

REGISTERS = "Dinov2WithRegistersForImageClassification"


def allowed_flips(model):
    """Random flips `[layers, heads]`, of all the query heads of a key head together."""
    layers = projections(model)
    flips = torch.rand(len(layers), len(layers[0].key), generator=torch.Generator().manual_seed(0)) < 0.5
    assert flips.any()
    assert not flips.all()
    return flips.repeat_interleave(layers[0].heads // flips.shape[1], 1)


@pytest.fixture(scope="module", params=FAMILIES)
def scored(request):
    """A family's name, model and inputs, and the scores of every method."""
    model = family(request.param)
    inputs = inputs_of(model)
    return request.param, model, inputs, {method: token_scores(model, inputs, method, 1) for method in METHODS}


def test_every_method_gives_numbers_and_only_those_for_or_against_y_have_signs(scored):
    for method, scores in scored[-1].items():
        assert scores.isfinite().all(), method
        assert scores[0].any(), method
        assert METHODS[method].explains_output or scores.min() >= 0, method


def test_padding_changes_no_score_and_has_none(scored):
    name, model, inputs, by_method = scored
    for method, scores in by_method.items() if "Image" not in name else ():
        alone = token_scores(model, {key: rows[1:, :4] for key, rows in inputs.items()}, method, 1)
        torch.testing.assert_close(scores[1:, :4], alone, atol=1e-4, rtol=1e-3)
        assert not scores[1, 4:].any(), method


def test_flipped_heads_negate_their_coefficients_and_change_no_score(scored):
    name, model, inputs, by_method = scored
    flipped, flips = family(name), allowed_flips(model)
    flip_heads(flipped, flips)
    for method, scores in by_method.items():
        torch.testing.assert_close(token_scores(flipped, inputs, method, 1), scores, atol=1e-4, rtol=1e-3, msg=method)
    before, after = (forward_pass(either, inputs).coefficients for either in (model, flipped))
    calls = len(before) // len(flips)  # ALBERT runs one layer several times
    signs = (1 - 2.0 * flips).repeat_interleave(calls, 0)[:, None, :, None, None]
    for first, second, sign in zip(before, after, signs, strict=True):
        torch.testing.assert_close(second, sign * first, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_weighted_values_are_the_norm_of_what_an_edge_adds_to_the_output(name):
    model = family(name)
    inputs, (query, key), layer = inputs_of(model), (3, 2), projections(model)[-1]
    norms, outputs, calls = value_weighted(ForwardCache(model, inputs)), [], []
    layer.output.register_forward_hook(lambda *call: outputs.append(call[-1]))

    def without_edge(coefficients):
        calls.append(coefficients)
        changed = coefficients.clone()
        if len(calls) == len(norms):
            changed[:, 0, query, key] = 0
        return changed

    with torch.no_grad():
        model(**inputs)
        with edited_coefficients(model, without_edge):
            model(**inputs)
    change = outputs[len(outputs) // 2 - 1] - outputs[-1]
    torch.testing.assert_close(norms[-1][:, 0, query, key], change[:, query].norm(dim=-1), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "method", "named"),
    [
        ("BitNetModel", {"num_key_value_heads": 2} | TEXTS, "values", "BitNetAttention"),
        ("ViTMAEModel", PICTURES, "deletion", "5 tokens for 4 x 4 patches"),
        ("YolosModel", {"image_size": [8, 8], "patch_size": 2}, "deletion", "none after the patches"),
    ],
)
def test_a_model_whose_tokens_or_values_are_not_as_assumed_is_refused(name, options, method, named):
    model = family(name, **options, num_detection_tokens=4)
    with pytest.raises(ValueError, match=named):
        token_scores(model, inputs_of(model), method)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"input_ids": torch.full((1, 23), 5)}, "at most 22 tokens, got 23"),  # positions start after the padding index
        ({"input_ids": torch.tensor([[5, 40]])}, "below 40, .* got 40"),
        ({"input_ids": [[5, 6]]}, "input_ids of Bidir.* got no tensor"),
        ({"input_ids": torch.ones(1, 0)}, "not empty"),
        ({"pixel_values": torch.ones(1, 3, 8, 8)}, r"got \['pixel_values'\]"),
    ],
)
def test_inputs_that_the_model_cannot_read_are_named(inputs, named):
    model = family("RobertaForSequenceClassification")
    token_scores(model, {"input_ids": torch.full((1, 22), 5), "labels": None}, "contributions")
    with pytest.raises(ValueError, match=named):
        token_scores(model, inputs)


@pytest.mark.parametrize("name", ["GPT2ForSequenceClassification", "LlamaForSequenceClassification"])
def test_a_decoder_is_explained_at_its_last_token(name):
    model = family(name)
    inputs = inputs_of(model)
    coefficients = forward_pass(model, inputs).coefficients[-1]
    expected = torch.stack([coefficients[0, :, 5].abs().mean(0), coefficients[1, :, 3].abs().mean(0)])
    torch.testing.assert_close(token_scores(model, inputs, "attention"), expected.detach())
    read = token_scores(model, inputs, "deletion") == 0
    assert read.tolist() == [[False] * 5 + [True], [False] * 3 + [True] * 3]


def test_a_model_with_layers_of_several_lengths_has_one_error_for_every_method():
    config = SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
    model = hf_bidir.signed(SwinForImageClassification(config).eval())
    inputs = {"pixel_values": torch.randn(1, 3, 16, 16)}
    for method in METHODS:
        with pytest.raises(ValueError, match=r"coefficients .* of the shapes \(., ., .+\), \(1, "):
            token_scores(model, inputs, method)
    assert [len(layer) for layer in asked(edge_contributions, model, inputs)] == [4, 1]


def test_the_command_explains_an_image(tmp_path):
    folder = saved(family(REGISTERS), ViTImageProcessor(size={"height": 8, "width": 8}), tmp_path / "model")
    picture().save(tmp_path / "noise.png")
    words = ["explain", str(folder), str(tmp_path / "noise.png"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "patch in row" in result.output
    assert "data:image/png" in (tmp_path / "out/index.html").read_text(encoding="utf-8")
