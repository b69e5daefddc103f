"""--lora_rank trains an adapter: saved alone, resumed, read by every command, merged, and refused for another base."""

import json
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from hf_bidir import signed
from hf_bidir.checkpoints.merge import merge_adapter
from hf_bidir.checkpoints.reading import read_model
from hf_bidir.common.errors import InputError
from hf_bidir.deploy.int8 import quantise_checkpoint
from hf_bidir.explain.checkpoint import load_checkpoint
from hf_bidir.finetune.data.tokenizer import train_byte_level, train_wordpiece
from hf_bidir.hub.evaluation import evaluate_checkpoint
from training import causal_lm, image_classification, masked_lm
from training.text_classification import main

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
RUN = shlex.split(
    "--lora_rank 4 --learning_rate 3e-2 --num_train_epochs 3 --per_device_train_batch_size 8 --max_length 16 "
    "--logging_steps 1 --use_cpu --disable_tqdm true"
)


@pytest.fixture
def base(tmp_path):
    """A signed masked language model: it has neither a classifier nor the pooler in front of one."""
    return saved(BertForMaskedLM, tmp_path / "base")


def saved(head, folder, seed=0, **fields):
    torch.manual_seed(seed)
    tokenizer = train_wordpiece(
        [f"a good bad film of train test row {row}" for row in range(48)], vocab_size=60, max_length=16
    )
    signed(head(BertConfig(vocab_size=len(tokenizer), **SHAPE, **fields)), negative_mass=0.5).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def trained(base, texts, tmp_path):
    """The folder of an adapter, and the numbers that its run printed."""
    results = main([*texts, *RUN, "--model_name_or_path", base, "--output_dir", str(tmp_path / "adapter")])
    return tmp_path / "adapter", results


def test_the_adapter_alone_is_saved_and_computes_what_training_measured(trained, tmp_path):
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


def test_an_interrupted_run_continues_to_the_same_adapter(base, texts, tmp_path, crash):
    whole, broken = (
        [*texts, *RUN, "--lora_dropout", "0.1", "--model_name_or_path", base, "--output_dir", str(tmp_path / name)]
        for name in ("whole", "broken")
    )
    main(whole)
    crash(main, broken, after_steps=8)  # 6 steps an epoch
    main(broken)
    assert json.loads((tmp_path / "broken/run.json").read_text())["resumed_from"] == "checkpoint-6"
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_card_says_what_the_adapter_is_and_where_its_base_is(trained):
    card = (trained[0] / "README.md").read_text()
    assert "base_model_relation: adapter" in card
    assert "LoRA adapter of rank 4" in card
    assert 'base = "../base"' in card  # seen from the folder of the card, where the example runs


def test_a_merged_adapter_is_a_checkpoint_with_the_same_outputs(trained, tmp_path):
    folder, _ = trained
    assert merge_adapter(folder, tmp_path / "merged") < 1e-5
    shutil.rmtree(tmp_path / "base")
    merged = read_model(tmp_path / "merged")
    assert type(merged).__name__ == "BidirBertForSequenceClassification"
    record = json.loads((tmp_path / "merged/previous_run.json").read_text())
    assert record["recipe"]["lora_rank"] == 4


def test_a_classifier_of_other_classes_gets_a_new_head(texts, tmp_path):
    base = saved(BertForSequenceClassification, tmp_path / "base", num_labels=5)
    main([*texts, *RUN, "--model_name_or_path", base, "--output_dir", str(tmp_path / "adapter")])
    model, _ = load_checkpoint(tmp_path / "adapter")
    assert model.config.num_labels == 2


def test_a_decoder_gets_an_adapter_of_the_named_layers(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five\n" * 200)
    tokenizer = train_byte_level(["one two three four five"], vocab_size=300, max_length=16)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    stock = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=32, **ends)
    )
    signed(stock).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    words = shlex.split(
        "--lora_rank 2 --lora_targets c_attn c_fc --max_steps 60 --learning_rate 3e-2 --use_cpu --block_size 8"
    )
    words += [
        "--disable_tqdm",
        "true",
        "--train_file",
        str(tmp_path / "text.txt"),
        "--output_dir",
        str(tmp_path / "run"),
    ]
    results = causal_lm.main([*words, "--model_name_or_path", str(tmp_path / "base")])
    assert results["eval_perplexity"] < len(tokenizer) / 2  # of random weights: about its size
    names = load_file(tmp_path / "run/adapter_model.safetensors")
    assert all("c_attn" in name or "c_fc" in name for name in names)
    measured = evaluate_checkpoint(tmp_path / "run", str(tmp_path / "text.txt"), split="validation")
    assert measured.scores["perplexity"] < len(tokenizer) / 2


def test_masked_words_are_learnt_by_an_adapter(base, texts, tmp_path):
    words = shlex.split("--lora_rank 2 --max_steps 2 --use_cpu --disable_tqdm true --max_length 16")
    files = ["--train_file", texts[1], "--model_name_or_path", base, "--output_dir", str(tmp_path / "run")]
    masked_lm.main([*words, *files])
    assert type(read_model(tmp_path / "run")).__name__ == "BidirBertForMaskedLM"


def other_base(tmp_path):
    saved(BertForMaskedLM, tmp_path / "other", seed=1)
    return {"base": tmp_path / "other"}, "another base model than"


def missing_base(tmp_path):
    (tmp_path / "base").rename(tmp_path / "moved")
    return {}, "there is none"


def half_an_adapter(tmp_path):
    file = tmp_path / "adapter/adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(sorted(weights)[0])
    save_file(weights, file)
    return {}, "1 weights are only in one of them"


def of_another_shape(tmp_path):
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)
    return {}, "does not fit BidirBertForSequenceClassification"


@pytest.mark.parametrize("spoil", [other_base, missing_base, half_an_adapter, of_another_shape])
def test_an_adapter_that_does_not_fit_is_refused_and_nothing_is_written(trained, tmp_path, spoil):
    options, message = spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged", **options)
    assert not (tmp_path / "merged").exists()


def test_a_base_that_has_moved_can_be_named(trained, tmp_path):
    (tmp_path / "base").rename(tmp_path / "moved")
    assert merge_adapter(tmp_path / "adapter", tmp_path / "merged", base=tmp_path / "moved") < 1e-5


def test_a_complete_checkpoint_is_not_merged(base, tmp_path):
    with pytest.raises(ValueError, match="is not an adapter"):
        merge_adapter(base, tmp_path / "merged")


def test_an_adapter_is_neither_quantised_nor_trained_on(trained, texts, tmp_path):
    folder, _ = trained
    with pytest.raises(ValueError, match="quantised only when merged"):
        quantise_checkpoint(folder, tmp_path / "int8")
    with pytest.raises(InputError, match="is an adapter; train on from the merged model"):
        main([*texts, "--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "again")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lora_rank 0", "lora_rank of at least 1"),
        ("--lora_dropout 1", r"lora_dropout in \[0, 1\)"),
        ("--attn_negative_mass 1", "leave out --attn_negative_mass"),
        ("--negative_mass_until 0.5", "leave out --lora_rank"),
        ("--lora_targets nothing", "--lora_targets: "),
    ],
)
def test_options_that_an_adapter_cannot_have_are_refused(base, texts, tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        main([*texts, *RUN, *shlex.split(words), "--model_name_or_path", base, "--output_dir", str(tmp_path / "run")])


def test_an_adapter_needs_a_signed_checkpoint(texts, tmp_path):
    BertForMaskedLM(BertConfig(vocab_size=60, **SHAPE)).save_pretrained(tmp_path / "stock")
    with pytest.raises(InputError, match="sign it first: hf-bidir convert"):
        main([*texts, *RUN, "--model_name_or_path", str(tmp_path / "stock")])
    with pytest.raises(InputError, match="name one as --model_name_or_path"):
        main([*texts, *RUN])
    with pytest.raises(InputError, match="--lora_alpha needs --lora_rank"):
        image_classification.main(["--dataset_name", "digits", "--lora_alpha", "8"])
