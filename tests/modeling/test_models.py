"""What holds of every bidir model: equality with the stock model, save and load, backends, errors."""

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    pipeline,
)

import hf_bidir
from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirBertModel,
    BidirViTConfig,
    BidirViTForImageClassification,
    BidirViTModel,
    register_attn_activation,
)
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.modeling import activations

COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**COMMON, **NO_DROPOUT, "vocab_size": 60}
VIT = {**COMMON, "image_size": 8, "patch_size": 2, "num_channels": 1}

BERT_HEADS = {
    "AutoModel": "BidirBertModel",
    "AutoModelForSequenceClassification": "BidirBertForSequenceClassification",
    "AutoModelForMaskedLM": "BidirBertForMaskedLM",
    "AutoModelForTokenClassification": "BidirBertForTokenClassification",
    "AutoModelForQuestionAnswering": "BidirBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "BidirBertForMultipleChoice",
}
VIT_HEADS = {"AutoModel": "BidirViTModel", "AutoModelForImageClassification": "BidirViTForImageClassification"}

FAMILIES = ["bert", "vit"]


def sentences() -> dict[str, torch.Tensor]:
    """Three sentences of 9, 6 and 2 tokens."""
    generator = torch.Generator().manual_seed(0)
    keep = (torch.arange(9) < torch.tensor([[9], [6], [2]])).long()
    return {"input_ids": torch.randint(1, 60, (3, 9), generator=generator) * keep, "attention_mask": keep}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))}


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    return sentences() if family == "bert" else images()


def classifier(family: str, **config):
    torch.manual_seed(0)
    if family == "bert":
        return BidirBertForSequenceClassification(BidirBertConfig(**BERT | config)).eval()
    return BidirViTForImageClassification(BidirViTConfig(**VIT | config)).eval()


def stock_classifier(family: str, initializer_range: float = 0.5):
    """A stock model, by default with weights large enough that its attention is far from uniform."""
    torch.manual_seed(0)
    if family == "bert":
        return BertForSequenceClassification(BertConfig(**BERT, initializer_range=initializer_range)).eval()
    return ViTForImageClassification(ViTConfig(**VIT, initializer_range=initializer_range)).eval()


def bidir_class(family: str):
    return BidirBertForSequenceClassification if family == "bert" else BidirViTForImageClassification


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_mode_equals_the_stock_model_to_1e_6(family, implementation, tmp_path):
    stock = stock_classifier(family)
    stock.save_pretrained(tmp_path)
    stock = type(stock).from_pretrained(tmp_path, attn_implementation=implementation)
    bidir, report = bidir_class(family).from_pretrained(
        tmp_path, attn_activation="softmax", attn_implementation=implementation, output_loading_info=True
    )
    expected, got = (model.eval()(**inputs_of(family)).logits for model in (stock, bidir))
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_tanhmax_mode_differs_from_the_stock_model(family, tmp_path):
    stock = stock_classifier(family)
    stock.save_pretrained(tmp_path)
    bidir = bidir_class(family).from_pretrained(tmp_path).eval()
    difference = bidir(**inputs_of(family)).logits - stock(**inputs_of(family)).logits
    assert difference.abs().max() > 1e-2


@pytest.mark.parametrize("mass", [1.0, [0.2, 0.7], [[0.05, 0.1, 0.5, 1.0]] * 2], ids=["model", "layer", "head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eager_and_sdpa_agree_to_1e_5_in_logits_and_gradients(family, mass):
    results = []
    for implementation in ("eager", "sdpa"):
        model = classifier(family, attn_negative_mass=mass, initializer_range=0.1)
        model.set_attn_implementation(implementation)
        logits = model(**inputs_of(family)).logits
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_changes_no_logit(implementation):
    model = classifier("bert", initializer_range=0.3)
    model.set_attn_implementation(implementation)
    batch = sentences()
    together = model(**batch).logits
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length]).logits
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_returns_coefficients_of_both_signs_for_every_layer(family):
    model = classifier(family)
    model.set_attn_implementation("eager")
    attentions = model(**inputs_of(family), output_attentions=True).attentions
    length = 9 if family == "bert" else 17
    assert [tuple(a.shape) for a in attentions] == [(3, 4, length, length)] * 2
    for coefficients in attentions:
        assert coefficients.min() < 0 < coefficients.max()
        assert (coefficients.abs().sum(-1) <= 1 + 1e-6).all()


def test_no_coefficient_goes_to_padding():
    model = classifier("bert")
    model.set_attn_implementation("eager")
    batch = sentences()
    for coefficients in model(**batch, output_attentions=True).attentions:
        dropped = (batch["attention_mask"] == 0)[:, None, None].expand_as(coefficients)
        assert (coefficients[dropped] == 0).all()


@pytest.mark.parametrize("whole", [True, False], ids=["the head", "its base model"])
@pytest.mark.parametrize("family", FAMILIES)
def test_asking_a_fast_path_for_coefficients_says_which_backend_has_them(family, whole):
    model = classifier(family)
    with pytest.raises(ValueError, match=r'needs attn_implementation="eager".*set_attn_implementation'):
        (model if whole else model.base_model)(**inputs_of(family), output_attentions=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_runs_every_layer_twice_and_changes_no_gradient(family):
    models = [classifier(family, attention_probs_dropout_prob=0.3) for _ in range(2)]
    models[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    calls = []
    for model in models:
        calls.append(0)
        for module in model.modules():
            if isinstance(module, model.signed_attention):
                module.register_forward_hook(lambda *_: calls.__setitem__(-1, calls[-1] + 1))
        torch.manual_seed(1)  # the same coefficients are dropped in both, and again when a layer is run again
        model.train()(**inputs_of(family)).logits.sum().backward()
    assert calls == [2, 4]
    for expected, got in zip(*(model.parameters() for model in models), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(got.grad, expected.grad)


@pytest.mark.parametrize("mass", [1.0, [[0.0, 0.1, 0.5, 1.0]] * 2], ids=["model", "head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_compiles_into_one_graph(family, mass):
    torch._dynamo.reset()
    model = classifier(family, attn_negative_mass=mass, initializer_range=0.3).train()
    compiled = torch.compile(model, fullgraph=True)
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        logits = run(**inputs_of(family)).logits
        logits.sum().backward()
        gradients.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_costs_no_more_digits_than_the_stock_model_loses(family, dtype, tmp_path):
    stock = stock_classifier(family, initializer_range=0.1)
    stock.save_pretrained(tmp_path)
    errors = []
    for model in (stock, bidir_class(family).from_pretrained(tmp_path).eval()):
        exact = model(**inputs_of(family)).logits
        half = model.to(dtype)(**inputs_of(family)).logits
        assert half.dtype == dtype
        errors.append((half.float() - exact).norm() / exact.norm())
    assert errors[1] <= 2 * errors[0]


@pytest.mark.parametrize(("auto_class", "name"), BERT_HEADS.items())
def test_every_bert_head_reloads_in_an_isolated_process(auto_class, name, tmp_path):
    torch.manual_seed(0)
    model = getattr(hf_bidir, name)(BidirBertConfig(**BERT)).eval()
    batch = sentences()
    if name.endswith("MultipleChoice"):
        batch = {key: tensor.unsqueeze(1).repeat(1, 2, 1) for key, tensor in batch.items()}
    assert_reloads_elsewhere(model, auto_class, batch, tmp_path)


@pytest.mark.parametrize(("auto_class", "name"), VIT_HEADS.items())
def test_every_vit_head_reloads_in_an_isolated_process(auto_class, name, tmp_path):
    torch.manual_seed(0)
    assert_reloads_elsewhere(getattr(hf_bidir, name)(BidirViTConfig(**VIT)).eval(), auto_class, images(), tmp_path)


def assert_reloads_elsewhere(model, auto_class, batch, folder):
    model.save_pretrained(folder)
    elsewhere = isolated_forward(folder, auto_class, batch)
    with torch.no_grad():
        here = {name: tensor for name, tensor in model(**batch).items() if isinstance(tensor, torch.Tensor)}
    assert elsewhere.keys() == here.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(elsewhere[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_loaded_from_a_head_has_the_saved_tensors(family, tmp_path):
    saved = classifier(family, initializer_range=0.5)
    saved.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).state_dict()
    base = saved.base_model.state_dict()
    assert len(base) > 20
    for name, tensor in base.items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bidir_checkpoint_has_the_key_names_of_a_stock_checkpoint(family, tmp_path):
    for name, model in (("bidir", classifier(family)), ("stock", stock_classifier(family))):
        model.save_pretrained(tmp_path / name)
    with (
        safe_open(tmp_path / "bidir" / "model.safetensors", "pt") as bidir,
        safe_open(tmp_path / "stock" / "model.safetensors", "pt") as stock,
    ):
        assert sorted(bidir.keys()) == sorted(stock.keys())


@pytest.mark.parametrize("stock", [BertModel(BertConfig(**BERT)), ViTModel(ViTConfig(**VIT))], ids=FAMILIES)
def test_a_stock_encoder_loads_with_nothing_missing(stock, tmp_path):
    stock.save_pretrained(tmp_path)
    encoder = BidirBertModel if isinstance(stock, BertModel) else BidirViTModel
    loaded, report = encoder.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    for name, tensor in stock.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_survives_a_round_trip(family, tmp_path):
    model = classifier(family, attn_activation="tanhmax", attn_negative_mass=[0.25, [0.1, 0.2, 0.3, 0.4]])
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.attn_negative_mass == [0.25, [0.1, 0.2, 0.3, 0.4]]
    assert set(config.auto_map) == {"AutoConfig", *(BERT_HEADS if family == "bert" else VIT_HEADS)}


def test_the_auto_factories_know_the_heads():
    assert isinstance(
        AutoModelForSequenceClassification.from_config(BidirBertConfig(**BERT)), BidirBertForSequenceClassification
    )
    assert isinstance(
        AutoModelForImageClassification.from_config(BidirViTConfig(**VIT)), BidirViTForImageClassification
    )


def test_a_registered_activation_reaches_every_layer(monkeypatch):
    monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))
    calls = []

    def first_key_only(scores, keep=None, dim=-1):
        calls.append(scores.shape)
        return torch.nn.functional.one_hot(torch.zeros(scores.shape[:-1], dtype=torch.long), scores.shape[-1]).to(
            scores
        )

    register_attn_activation("first_key_only", first_key_only)
    classifier("vit", attn_activation="first_key_only")(**images())
    assert calls == [(3, 4, 17, 17)] * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attn_activation": "tanmax"}, 'Did you mean "tanhmax"'),
        ({"attn_negative_mass": 1.5}, r"must lie in \[0, 1\].*got 1.5"),
        ({"attn_negative_mass": [1.0]}, r"a list of 2 \(one per layer\).*got \[1.0\]"),
        ({"attn_negative_mass": [1.0, [0.5] * 3]}, r"a list of 4 \(heads\); got the layer \[0.5, 0.5, 0.5\]"),
        ({"attn_negative_mass": "one"}, "must be a number"),
        ({"is_decoder": True}, "describes an encoder; got is_decoder=True"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention=True"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirBertConfig(**BERT | config)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "fast"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_attention_backend_that_is_not_supported_is_refused_at_load(family, name, tmp_path):
    classifier(family).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f'attn_implementation="{name}" cannot compute signed attention; choose "sdpa"'
    ):
        bidir_class(family).from_pretrained(tmp_path, attn_implementation=name)


@pytest.mark.parametrize("argument", ["encoder_hidden_states", "past_key_values"])
def test_signed_bert_refuses_the_arguments_of_a_decoder(argument):
    attention = classifier("bert").bert.encoder.layer[0].attention.self
    with pytest.raises(ValueError, match=f"{argument} is not supported"):
        attention(torch.zeros(1, 2, 32), **{argument: torch.zeros(1, 2, 32)})


def test_the_image_pipeline_runs_a_bidir_checkpoint(tmp_path):
    from PIL import Image
    from transformers import ViTImageProcessor

    model = classifier("vit", num_channels=3)
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    classify = pipeline("image-classification", model=model, image_processor=processor)
    answers = classify(Image.new("RGB", (8, 8)), top_k=2)
    assert {answer["label"] for answer in answers} == {"LABEL_0", "LABEL_1"}
