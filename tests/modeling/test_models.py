"""What holds of signed models of every kind: equality with the stock model, backends, save and load, errors."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    pipeline,
)

import hf_bidir
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, register_attn_activation, signed
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.modeling import activations
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import DECODERS, ENCODERS, FAMILIES, IMAGE_MODELS, SHAPE, TEXT, inputs_of, logits_of, stock_model

every_family = pytest.mark.parametrize("family", FAMILIES)
BACKENDS = ["sdpa", "eager"]


def signed_model(family, mass=1.0, **fields):
    return signed(stock_model(family, **fields), mass)


@pytest.mark.parametrize("implementation", BACKENDS)
@every_family
def test_without_negative_mass_a_signed_model_equals_the_stock_model(family, implementation):
    stock = stock_model(family)
    stock.set_attn_implementation(implementation)
    expected = logits_of(stock, inputs_of(family))
    got = logits_of(signed(stock, 0.0), inputs_of(family))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@every_family
def test_negative_mass_moves_the_outputs(family):
    difference = logits_of(signed_model(family), inputs_of(family)) - logits_of(stock_model(family), inputs_of(family))
    assert difference.abs().max() > 1e-2


@pytest.mark.parametrize("per_head", [False, True])
@every_family
def test_backends_agree_in_logits_and_gradients(family, per_head):
    layers = len(signed_layers(signed_model(family)))
    mass = [[0.05, 0.1, 0.5, 1.0]] * layers if per_head else 1.0
    results = []
    for implementation in BACKENDS:
        model = signed_model(family, mass)
        model.set_attn_implementation(implementation)
        logits = logits_of(model, inputs_of(family))
        logits.log_softmax(-1)[..., 0].sum().backward()
        results.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*results, strict=True):
        assert (got - expected).norm() <= 1e-4 * expected.norm() + 1e-5


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("family", ENCODERS + DECODERS)
def test_padding_changes_nothing(family, implementation):
    model, batch = signed_model(family), inputs_of(family)
    model.set_attn_implementation(implementation)
    together = model(**batch).logits
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length]).logits
        expected = together[row : row + 1] if together.dim() == 2 else together[row : row + 1, :length]
        torch.testing.assert_close(expected, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("implementation", BACKENDS)
def test_no_token_of_a_decoder_sees_a_later_one(family, implementation):
    model, ids = signed_model(family), inputs_of(family)["input_ids"][:1]
    model.set_attn_implementation(implementation)
    changed = ids.clone()
    changed[0, 5] = ids[0, 5] % 50 + 3
    moved = (model(ids).logits - model(changed).logits).abs().amax(-1)[0] > 1e-5
    assert moved.nonzero().flatten().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("family", [*DECODERS, "bart", "t5"])
def test_generation_with_a_cache_writes_what_it_writes_without(family):
    model = signed_model(family)
    ids = inputs_of(family)["input_ids"][:1]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    written = [model.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False)]
    assert written[0].tolist() == written[1].tolist()


@pytest.mark.parametrize("implementation", BACKENDS)
@every_family
def test_a_call_that_asks_for_attentions_gets_signed_coefficients_on_every_backend(family, implementation):
    model, inputs = signed_model(family), inputs_of(family)
    model.set_attn_implementation(implementation)
    expected = logits_of(model, inputs)
    outputs = model(**inputs, output_attentions=True)
    kinds = [name for name, found in outputs.items() if name.endswith("attentions") and found]
    assert len(kinds) == (3 if family in ("bart", "t5") else 1)
    for kind in kinds:
        assert len(outputs[kind]) == 2
        for coefficients in outputs[kind]:
            assert coefficients.min() < 0 < coefficients.max()
            assert (coefficients.abs().sum(-1) <= 1 + 1e-5).all()
    torch.testing.assert_close(logits_of(model, inputs, output_attentions=True), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_base_model_has_coefficients_too_and_the_next_call_is_fast_again(family):
    model, inputs = signed_model(family), inputs_of(family)
    assert model.base_model(**inputs, output_attentions=True).attentions[0].min() < 0
    outputs = model.base_model(**inputs)
    assert "attentions" not in outputs


def test_no_coefficient_goes_to_padding():
    batch = inputs_of("bert")
    for coefficients in signed_model("bert")(**batch, output_attentions=True).attentions:
        dropped = (batch["attention_mask"] == 0)[:, None, None].expand_as(coefficients)
        assert (coefficients[dropped] == 0).all()


@every_family
def test_gradient_checkpointing_runs_every_layer_twice_and_changes_no_gradient(family):
    models, calls = [signed_model(family) for _ in range(2)], []
    models[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in models:
        calls.append(0)
        for layer in signed_layers(model):
            layer.register_forward_hook(lambda *_: calls.__setitem__(-1, calls[-1] + 1))
        torch.manual_seed(1)  # the same coefficients are dropped in both, and again when a layer is run again
        logits_of(model.train(), inputs_of(family)).sum().backward()
    assert calls[1] == 2 * calls[0]
    for expected, got in zip(*(model.parameters() for model in models), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_gradient_checkpointing_runs_the_path_again_that_gave_the_coefficients(family):
    model, inputs = signed_model(family).train(), inputs_of(family)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    outputs = model(**inputs, output_attentions=True)
    outputs.logits.sum().backward()
    assert len(outputs.attentions) == 2
    assert "attentions" not in model(**inputs)


@pytest.mark.parametrize("mass", [1.0, [[0.0, 0.1, 0.5, 1.0]] * 2], ids=["model", "head"])
@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_the_model_compiles_into_one_graph(family, mass):
    torch._dynamo.reset()
    model = signed_model(family, mass)
    compiled = torch.compile(model, fullgraph=True)
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        logits = run(**inputs_of(family)).logits
        logits.log_softmax(-1)[..., 0].sum().backward()
        gradients.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_the_model_exports_into_one_program():
    model, inputs = signed_model("roberta"), inputs_of("roberta")
    program = torch.export.export(model, (), inputs)
    torch.testing.assert_close(program.module()(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_half_precision_costs_no_more_digits_than_the_stock_model_loses(family, dtype):
    errors = []
    for model in (stock_model(family, initializer_range=0.1), signed_model(family, initializer_range=0.1)):
        exact = logits_of(model, inputs_of(family))
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs_of(family).items()}
        half = logits_of(model.to(dtype), inputs)
        assert half.dtype == dtype
        errors.append((half.float() - exact).norm() / exact.norm())
    assert errors[1] <= 3 * errors[0]


@every_family
def test_a_saved_model_reloads_with_the_same_tensors_and_outputs(family, tmp_path):
    model = signed_model(family, 0.7)
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    torch.testing.assert_close(logits_of(loaded.eval(), inputs_of(family)), logits_of(model, inputs_of(family)))


@every_family
def test_a_stock_checkpoint_loads_with_nothing_missing_and_its_keys_are_kept(family, tmp_path):
    stock = stock_model(family)
    stock.save_pretrained(tmp_path / "stock")
    signed_class = getattr(hf_bidir, f"Bidir{type(stock).__name__}")
    model, report = signed_class.from_pretrained(tmp_path / "stock", attn_negative_mass=0.0, output_loading_info=True)
    assert not report["missing_keys"]
    torch.testing.assert_close(
        logits_of(model.eval(), inputs_of(family)), logits_of(stock, inputs_of(family)), rtol=1e-5, atol=1e-5
    )
    again = {"stock again": type(stock).from_pretrained(tmp_path / "stock"), "signed": model}
    keys = []
    for name, loaded in again.items():
        loaded.save_pretrained(tmp_path / name)
        keys.append(set(safe_open(tmp_path / name / "model.safetensors", "pt").keys()))
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("roberta", "AutoModelForSequenceClassification"),
        ("vit", "AutoModelForImageClassification"),
        ("llama", "AutoModelForCausalLM"),
        ("bart", "AutoModelForSeq2SeqLM"),
    ],
)
def test_a_saved_model_reloads_in_a_process_that_has_no_hf_bidir(family, auto, tmp_path):
    model = signed_model(family)
    model.save_pretrained(tmp_path)
    elsewhere = isolated_forward(tmp_path, auto, inputs_of(family))["logits"]
    torch.testing.assert_close(elsewhere, model(**inputs_of(family)).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_an_encoder_loaded_from_a_head_has_the_saved_tensors(family, tmp_path):
    saved = signed_model(family)
    saved.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded).__name__ == f"Bidir{type(saved.base_model).__name__}"
    for name, tensor in saved.base_model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_the_config_survives_a_round_trip_and_names_every_head(tmp_path):
    mass = [0.25, [0.1, 0.2, 0.3, 0.4]]
    signed_model("bert", mass).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.attn_negative_mass == mass
    assert config.auto_map["AutoModelForTokenClassification"] == "modeling_bidir.BidirBertForTokenClassification"
    assert config.auto_map["AutoConfig"] == "configuration_bidir.BidirBertConfig"


def test_the_auto_factories_make_the_head_of_a_config():
    config = AutoConfig.for_model("bidir_distilbert", vocab_size=60, dim=32, n_layers=1, n_heads=4, hidden_dim=40)
    assert type(AutoModelForMaskedLM.from_config(config)).__name__ == "BidirDistilBertForMaskedLM"
    config = hf_bidir.BidirDinov2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    assert isinstance(AutoModelForImageClassification.from_config(config), hf_bidir.BidirDinov2ForImageClassification)


def test_a_part_of_a_model_takes_its_attention_from_the_whole(tmp_path):
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.CLIPConfig(text_config=text | {"vocab_size": 60}, vision_config=text | {"image_size": 8})
    config.vision_config.patch_size = 4
    signed(transformers.CLIPModel(config), 0.25).save_pretrained(tmp_path)
    part = hf_bidir.BidirCLIPVisionModel.from_pretrained(tmp_path)
    assert part.config.attn_negative_mass == 0.25


def test_a_part_with_a_config_of_its_own_is_not_saved_as_softmax(tmp_path):
    model = signed_model("t5")
    with pytest.raises(ValueError, match="would be saved as softmax; save the whole model"):
        model.encoder.save_pretrained(tmp_path)


def test_a_constructor_that_copies_its_config_keeps_it_signed(tmp_path):
    shape = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 40, "vocab_size": 60}
    hf_bidir.BidirPegasusForCausalLM(hf_bidir.BidirPegasusConfig(**shape)).save_pretrained(tmp_path)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == "BidirPegasusForCausalLM"


def test_models_built_from_one_config_in_threads_leave_it_signed():
    config = BidirBertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    for _ in range(5):
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(hf_bidir.BidirBertModel, [config] * 4))
        assert type(config) is BidirBertConfig
        assert [len(signed_layers(model)) for model in models] == [1] * 4


def test_a_composite_of_two_models_is_signed_from_its_parts():
    config = transformers.BertConfig(**SHAPE | TEXT, is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config)
    model = hf_bidir.BidirEncoderDecoderModel(encoder=stock_model("bert").bert, decoder=decoder)
    assert (len(signed_layers(model)), model.config.model_type) == (6, "bidir_encoder-decoder")


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_config_says_in_memory_what_it_will_say_when_saved(family, tmp_path):
    stock = stock_model(family)
    stock.save_pretrained(tmp_path)
    kind = f"bidir_{stock.config.model_type}"
    assert signed(type(stock).from_pretrained(tmp_path)).config.model_type == kind
    assert getattr(hf_bidir, f"Bidir{type(stock).__name__}").from_pretrained(tmp_path).config.model_type == kind


def test_signing_leaves_the_stock_config_as_it_was():
    stock = stock_model("bert")
    config, before = stock.config, stock.config.to_dict()
    model = signed(stock, 0.5)
    assert model is stock
    assert config.to_dict() == before
    assert model.config is not config
    assert model.base_model.config is model.config


def test_a_change_of_the_negative_mass_reaches_every_layer():
    model, inputs = signed_model("llama", 0.0), inputs_of("llama")
    softmax = model(**inputs).logits
    model.config.attn_negative_mass = 1.0
    torch.testing.assert_close(model(**inputs).logits, signed_model("llama", 1.0)(**inputs).logits)
    assert (model(**inputs).logits - softmax).abs().max() > 1e-2


def test_a_registered_activation_reaches_every_layer(monkeypatch):
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    calls = []

    def first_key_only(scores, keep=None, dim=-1):
        calls.append(scores.shape)
        first = torch.zeros(scores.shape[:-1], dtype=torch.long)
        return torch.nn.functional.one_hot(first, scores.shape[-1]).to(scores)

    register_attn_activation("first_key_only", first_key_only)
    signed(stock_model("vit"), activation="first_key_only")(**inputs_of("vit"))
    assert calls == [(3, 4, 17, 17)] * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attn_activation": "tanmax"}, 'Did you mean "tanhmax"'),
        ({"attn_negative_mass": 1.5}, r"must lie in \[0, 1\].*got 1.5"),
        ({"attn_negative_mass": [1.0, [[0.5]]]}, r"a list with one number per head; got \[0.5\]"),
        ({"attn_negative_mass": "one"}, "must be a number"),
        ({"attn_format": 2}, r"saved by a newer hf_bidir \(attn_format 2; this version reads up to 1\)"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirBertConfig(**config)


@pytest.mark.parametrize(
    ("mass", "message"),
    [
        ([1.0], r"a list of 2 \(one per signed layer\).*got \[1.0\]"),
        ([1.0, [0.5] * 3], r"attn_negative_mass of layer 1 needs 4 numbers, one per head; got \[0.5, 0.5, 0.5\]"),
    ],
)
def test_a_list_of_negative_masses_has_to_fit_the_layers(mass, message):
    stock = stock_model("bert")
    with pytest.raises(ValueError, match=message):
        signed(stock, mass)
    assert type(stock).__name__ == "BertForSequenceClassification"  # as it was, and can be signed otherwise
    assert len(signed_layers(signed(stock, 0.5))) == 2


def test_a_list_that_is_set_later_has_to_fit_as_well():
    model = signed_model("bert")
    for mass in ([0.1], [0.1, 0.2, 0.3]):
        model.config.attn_negative_mass = mass
        with pytest.raises(ValueError, match=r"a list of 2 \(one per signed layer\)"):
            model(**inputs_of("bert"))


def test_a_stock_config_is_refused():
    with pytest.raises(ValueError, match="expected a BidirBertConfig, which has the attention fields; got BertConfig"):
        hf_bidir.BidirBertModel(stock_model("bert").config)


def test_keys_chosen_by_index_are_refused():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.DeepseekV32Config(**shape, vocab_size=60, intermediate_size=32, moe_intermediate_size=16)
    with torch.device("meta"), pytest.raises(ValueError, match=r"keys chosen by index \(DeepseekV32Attention\)"):
        signed(transformers.DeepseekV32Model(config))


def test_a_signed_model_is_not_signed_again():
    with pytest.raises(ValueError, match=r"BidirBertForSequenceClassification is signed already; set model\.config"):
        signed(signed_model("bert"))


def test_a_model_without_such_layers_is_refused_and_says_where_its_attention_is():
    config = transformers.DebertaConfig(vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ValueError, match=r"DebertaModel has no layer that .* is in encoder\.layer\.0\.attention\.self"):
        signed(transformers.DebertaModel(config))


def test_attention_outside_the_interface_is_named_and_accepted_only_when_asked(tmp_path):
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    stock = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**shape, image_size=8, patch_size=4))
    with pytest.raises(ValueError, match=r"would stay softmax: .*head\.attention.*partial=True"):
        signed(stock)
    model = signed(stock, partial=True)
    model.save_pretrained(tmp_path)
    assert hf_bidir.BidirSiglipVisionModel.from_pretrained(tmp_path).config.attn_partial


def test_a_class_that_is_no_stock_class_names_the_nearest():
    with pytest.raises(AttributeError, match=r'there is no BidirRobertForMaskedLM: .*mean "BidirRobertaForMaskedLM"'):
        hf_bidir.BidirRobertForMaskedLM  # noqa: B018


def test_a_class_of_ones_own_is_refused():
    class Mine(transformers.BertModel):
        pass

    with pytest.raises(ValueError, match=r"Mine is defined in .*only models of transformers itself"):
        signed(Mine(stock_model("bert").config))


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "paged|eager"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_an_attention_backend_that_is_not_supported_is_refused_at_load_and_later(family, name, tmp_path):
    model = signed_model(family)
    model.save_pretrained(tmp_path)
    refused = "it does not compute signed attention; choose"
    with pytest.raises(ValueError, match=refused):
        type(model).from_pretrained(tmp_path, attn_implementation=name)
    with pytest.raises(ValueError, match=refused):
        model.set_attn_implementation(name)
    stock = stock_model(family)
    stock.config._attn_implementation_internal = name
    with pytest.raises(ValueError, match=refused):
        signed(stock)


def test_a_backend_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="computes signed attention; choose"):
        BidirBertForSequenceClassification.from_pretrained("no/such-model", attn_implementation="flash_attention_2")


def test_packed_examples_are_refused_by_name():
    starts = torch.tensor([0, 5, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"LlamaAttention passes cu_seq_lens_q to its attention function"):
        signed_model("llama")(input_ids=inputs_of("llama")["input_ids"], cu_seq_lens_q=starts)


@pytest.mark.parametrize("family", IMAGE_MODELS)
def test_the_image_pipeline_runs_a_signed_model(family):
    from PIL import Image

    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    classify = pipeline("image-classification", model=signed_model(family), image_processor=processor)
    found = classify(Image.new("RGB", (8, 8)), top_k=2)
    assert {prediction["label"] for prediction in found} == {"LABEL_0", "LABEL_1"}


def test_a_stock_bert_checkpoint_becomes_tanhmax_where_nothing_else_is_said(tmp_path):
    stock_model("bert").save_pretrained(tmp_path)
    config = BidirBertForSequenceClassification.from_pretrained(tmp_path).config
    assert (config.attn_activation, config.attn_negative_mass) == ("tanhmax", 1.0)
