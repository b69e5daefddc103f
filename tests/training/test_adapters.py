"""--lora_rank trains an adapter: saved alone, resumed, read by every command, merged, and refused for another base."""

import re
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
)
from typer.testing import CliRunner

from hf_bidir import signed
from hf_bidir.checkpoints.convert import merge_adapter, restore_softmax
from hf_bidir.checkpoints.examples import example_inputs
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.cli import app
from hf_bidir.common.errors import InputError
from hf_bidir.deploy.int8 import quantise_checkpoint
from hf_bidir.explain.inputs.checkpoint import load_checkpoint
from hf_bidir.finetune.data.tokenizer import train_wordpiece
from hf_bidir.hub.card import card_differences
from hf_bidir.hub.evaluate import evaluate_checkpoint
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END, read, tables
from training import causal_lm, seq2seq
from training.text_classification import main

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
RUN = shlex.split(
    "--lora_rank 4 --learning_rate 3e-2 --num_train_epochs 3 --per_device_train_batch_size 8 --max_length 16 --use_cpu "
    "--disable_tqdm true"
)
BRIEF = shlex.split("--lora_rank 2 --max_steps 20 --use_cpu --disable_tqdm true --warmup_ratio 0 --learning_rate")


def save_base(folder, seed=0):
    """A signed masked language model: it has neither a classifier nor the pooler in front of one."""
    torch.manual_seed(seed)
    texts = [f"a good bad film of train test row {row}" for row in range(48)]
    tokenizer = train_wordpiece(texts, vocab_size=60, max_length=16)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SHAPE))
    signed(model, negative_mass=0.5).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ["--model_name_or_path", str(folder)]


@pytest.fixture
def base(tmp_path):
    """The option that names a base."""
    return save_base(tmp_path / "base")


def signed_checkpoint(auto, family, folder, head="Model", **fields):
    checkpoint_of(family, folder, head, **fields)
    signed(auto.from_pretrained(folder)).save_pretrained(folder)
    return ["--model_name_or_path", str(folder)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a base, an adapter that was trained on it, and its data; and the numbers that the run printed."""
    folder = tmp_path_factory.mktemp("finished")
    words = [*tables(folder), *RUN, *save_base(folder / "base")]
    return folder, main([*words, "--output_dir", str(folder / "adapter")])


@pytest.fixture
def trained(finished, tmp_path):
    """A copy of the adapter beside a copy of its base, and the numbers that the run printed."""
    folder, results = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "adapter/adapter_config.json", str(folder / "base"), str(tmp_path / "base"))
    return tmp_path / "adapter", results


def edit(file, old, new):
    file.write_text(file.read_text().replace(old, new))


def test_the_adapter_alone_is_saved_and_every_part_of_it_matters(trained, tmp_path):
    folder, results = trained
    assert results["test_accuracy"] == 1.0
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "config.json").exists()  # transformers would look for complete weights beside it
    names = {name.partition(".lora_")[0] for name in load_file(folder / "adapter_model.safetensors")}
    assert {"base_model.model.classifier.weight", "base_model.model.bert.pooler.dense.weight"} <= names
    measured = evaluate_checkpoint(folder, str(tmp_path / "test.parquet"))
    assert measured.scores["accuracy"] == results["test_accuracy"]
    model, _ = load_checkpoint(folder)
    assert (model.config.attn_negative_mass, model.config.id2label) == (0.5, {0: "bad", 1: "good"})


def test_an_interrupted_run_continues_to_the_same_adapter_and_not_on_another_base(
    finished, base, texts, tmp_path, crash
):
    words = [*texts, *RUN, *base, "--output_dir", str(tmp_path / "run")]
    crash(main, words, after_steps=8)  # 6 steps an epoch
    save_base(tmp_path / "base", seed=1)
    with pytest.raises(InputError, match="base of the adapter was"):
        main(words)
    save_base(tmp_path / "base")
    main(words)
    assert read(tmp_path / "run/run.json")["resumed_from"] == "checkpoint-6"
    whole, resumed = (
        load_file(place / "adapter_model.safetensors") for place in (finished[0] / "adapter", tmp_path / "run")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def shown(folder, monkeypatch):
    """The names that the example of a card sets."""
    monkeypatch.chdir(folder)
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)), names)
    return names


def test_the_example_of_the_card_computes_the_same(trained, monkeypatch):
    folder, _ = trained
    expected, tokenizer = load_checkpoint(folder)
    inputs = tokenizer("a charming film", return_tensors="pt")
    torch.testing.assert_close(shown(folder, monkeypatch)["outputs"].logits, expected(**inputs).logits)


def test_an_adapter_of_an_encoder_decoder_writes_the_same_by_this_package_and_by_peft(tmp_path, monkeypatch):
    rows = "\n".join(f"{word} film,{word} row" for word in ["good", "bad"] * 20)
    (tmp_path / "pairs.csv").write_text(f"source,target\n{rows}")
    words = signed_checkpoint(AutoModelForSeq2SeqLM, "T5", tmp_path / "base", "ForConditionalGeneration")
    words += [*BRIEF, "0.1", *AT_THE_END, "--max_length", "8", "--source_prefix", "film: "]
    seq2seq.main([*words, "--train_file", str(tmp_path / "pairs.csv"), "--output_dir", str(tmp_path / "run")])
    ids = AutoTokenizer.from_pretrained(tmp_path / "run")(["film: good film"], return_tensors="pt")["input_ids"]
    written = open_checkpoint(tmp_path / "run").model().generate(input_ids=ids).tolist()
    assert shown(tmp_path / "run", monkeypatch)["model"].generate(input_ids=ids).tolist() == written


def test_a_merged_adapter_is_a_checkpoint_with_the_same_outputs(trained, tmp_path):
    folder, _ = trained
    separate = open_checkpoint(folder).adapted().get_base_model()
    told = CliRunner().invoke(app, ["merge", str(folder), str(tmp_path / "merged")])
    assert told.exit_code == 0, told.output
    shutil.rmtree(tmp_path / "base")
    merged, inputs = open_checkpoint(tmp_path / "merged").model(), example_inputs(separate)
    assert type(merged).__name__ == "BidirBertForSequenceClassification"
    torch.testing.assert_close(merged(**inputs).logits, separate(**inputs).logits, atol=1e-4, rtol=1e-4)
    assert read(tmp_path / "merged/previous_run.json")["recipe"]["lora_rank"] == 4


def test_a_decoder_gets_an_adapter_of_the_named_layers_that_share_no_weight(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five\n" * 200)
    words = signed_checkpoint(AutoModelForCausalLM, "GPT2", tmp_path / "base", "LMHeadModel")
    words += [*BRIEF, "0.1", *AT_THE_END, "--block_size", "8"]
    words += ["--train_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "run"), "--lora_targets"]
    with pytest.raises(InputError, match="the embeddings and the output layer share one weight"):
        causal_lm.main([*words, "lm_head"])
    results = causal_lm.main([*words, "c_attn", "c_fc"])
    assert results["eval_perplexity"] < 30  # of random weights: about the size of the vocabulary, 60
    names = load_file(tmp_path / "run/adapter_model.safetensors")
    assert all("c_attn" in name or "c_fc" in name for name in names)


def half_an_adapter(place):
    weights = load_file(place / WEIGHTS)
    weights.pop(next(name for name in sorted(weights) if "lora_A" in name))
    save_file(weights, place / WEIGHTS)


CONFIG, WEIGHTS = "adapter/adapter_config.json", "adapter/adapter_model.safetensors"
SPOILT = {
    "is an adapter itself; merge it first": lambda place: edit(
        place / CONFIG, str(place / "base"), str(place / "adapter")
    ),
    "1 weights are only in one of them": half_an_adapter,
}


@pytest.mark.parametrize("message", SPOILT)
def test_an_adapter_that_does_not_fit_is_refused_and_nothing_is_written(trained, tmp_path, message):
    SPOILT[message](tmp_path)
    with pytest.raises(ValueError, match=message):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_an_adapter_is_neither_quantised_nor_restored_nor_trained_on(trained, texts, tmp_path):
    folder, _ = trained
    with pytest.raises(ValueError, match="merge it before it is quantised"):
        quantise_checkpoint(folder, tmp_path / "int8")
    with pytest.raises(ValueError, match="is an adapter; merge it first"):
        restore_softmax(folder, tmp_path / "stock")
    with pytest.raises(InputError, match="is an adapter; merge it and train the result"):
        main([*texts, "--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "again")])


def test_an_adapter_needs_layers_that_the_checkpoint_has(base, texts, tmp_path):
    with pytest.raises(InputError, match=r"--lora_.*target_modules"):
        main([*texts, *RUN, *base, "--lora_targets", "nothing", "--output_dir", str(tmp_path / "run")])


def plain_logits(folder):
    """By transformers alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, id2label={0: "bad", 1: "good"})
    return model(**AutoTokenizer.from_pretrained(folder)("a good film", return_tensors="pt")).logits


def own_logits(folder):
    model, tokenizer = load_checkpoint(folder)
    return model(**tokenizer("a good film", return_tensors="pt")).logits


def test_an_adapter_of_a_stock_checkpoint_keeps_softmax_and_loads_by_transformers_too(texts, tmp_path):
    stock = checkpoint_of("Roberta", tmp_path / "stock")
    main([*texts, *RUN, "--model_name_or_path", stock, "--output_dir", str(tmp_path / "adapter")])
    checkpoint = open_checkpoint(tmp_path / "adapter")
    assert type(checkpoint.model()).__name__ == "RobertaForSequenceClassification"
    torch.testing.assert_close(own_logits(tmp_path / "adapter"), plain_logits(tmp_path / "adapter"))
    card = (tmp_path / "adapter/README.md").read_text()
    assert "for the softmax model `../stock`" in card
    assert "trust_remote_code" not in card


def test_the_base_is_found_where_transformers_looks_and_beside_the_adapter(texts, tmp_path, monkeypatch):
    save_base(tmp_path / "clone/base")
    monkeypatch.chdir(tmp_path)
    main([*texts, *RUN, "--model_name_or_path", "clone/base", "--output_dir", "clone/adapter"])
    logits = plain_logits("clone/adapter")
    torch.testing.assert_close(own_logits("clone/adapter"), logits)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    torch.testing.assert_close(own_logits("../clone/adapter"), logits)
    assert card_differences(tmp_path / "clone/adapter") == []
