import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.arguments import TextModelArguments
from hf_bidir.finetune.errors import InputError
from hf_bidir.finetune.models import Family, build_model, checkpoint_config

BERT = Family(BidirBertForSequenceClassification, BidirBertConfig, stock_type="bert")
SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
QUERY = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def stock(tmp_path):
    """A saved stock encoder, without any head."""
    BertModel(BertConfig(**SHAPE)).save_pretrained(tmp_path)
    return tmp_path


def rewrite_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def build(folder, names=("no", "yes"), **options):
    arguments = TextModelArguments(model_name_or_path=str(folder), **options)
    return build_model(BERT, arguments, checkpoint_config(BERT, arguments, list(names)))


def test_an_encoder_without_a_head_or_a_pooler_is_a_start(stock):
    saved = load_file(stock / "model.safetensors")[QUERY]
    rewrite_weights(stock, lambda weights: [weights.pop(f"pooler.dense.{name}") for name in ("weight", "bias")])
    assert torch.equal(build(stock).bert.state_dict()[QUERY], saved)


def test_a_head_for_another_number_of_classes_is_replaced(stock, tmp_path):
    build(stock).save_pretrained(tmp_path / "two")
    assert build(tmp_path / "two", names=("bad", "fair", "good")).classifier.out_features == 3


def test_a_softmax_checkpoint_can_start_to_learn_its_negative_mass(stock):
    model = build(stock, learn_negative_mass=True, attn_negative_mass=0.25)
    assert model.bert.encoder.layer[0].attention.self.negative_mass_logit.sigmoid().tolist() == pytest.approx([0.25])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(QUERY), rf"1 missing keys: bert\.{QUERY}"),
        (lambda weights: weights.update({QUERY: torch.zeros(4, 8)}), rf"1 mismatched keys: bert\.{QUERY}"),
    ],
    ids=["missing", "of another shape"],
)
def test_a_checkpoint_whose_encoder_would_stay_random_is_one_clear_error(stock, change, message):
    rewrite_weights(stock, change)
    with pytest.raises(InputError, match=f"is not a usable checkpoint.*{message}"):
        build(stock)


@pytest.mark.parametrize("share", [0, 0.1, 0.9])
def test_a_weight_file_that_is_cut_is_one_clear_error(stock, share):
    whole = (stock / "model.safetensors").read_bytes()
    (stock / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match="is not a usable checkpoint"):
        build(stock)
