"""--lora_rank trains an adapter: saved alone, resumed, read by every command, merged, and refused for another base."""

import json
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)
from typer.testing import CliRunner

from hf_bidir import signed
from hf_bidir.checkpoints.adapters import required_adapter
from hf_bidir.checkpoints.convert import merge_adapter, restore_softmax
from hf_bidir.checkpoints.kinds import example_inputs
from hf_bidir.checkpoints.reading import read_adapted, read_model
from hf_bidir.cli import app
from hf_bidir.common.errors import InputError
from hf_bidir.deploy.int8 import quantise_checkpoint
from hf_bidir.explain.inputs.checkpoint import load_checkpoint
from hf_bidir.finetune.data.tokenizer import train_byte_level, train_wordpiece
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.evaluate import evaluate_checkpoint
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import tables
from training import causal_lm, image_classification, masked_lm, seq2seq, text_classification
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a base, an adapter that was trained on it, and its data; and the numbers that the run printed."""
    folder = tmp_path_factory.mktemp("finished")
    results = main(
        [*tables(folder), *RUN, "--model_name_or_path", saved(BertForMaskedLM, folder / "base"),
         "--output_dir", str(folder / "adapter")]
    )  # fmt: skip
    return folder, results


@pytest.fixture
def trained(finished, tmp_path):
    """A copy of the adapter beside a copy of its base, and the numbers that the run printed."""
    folder, results = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "adapter/adapter_config.json"
    config.write_text(config.read_text().replace(str(folder / "base"), str(tmp_path / "base")))
    return tmp_path / "adapter", results


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


SENTENCES = ["a good film of train", "bad"]
CLASSIFIERS = {  # with heads of several layers, a padding token of the run's own, encoders of other names
    "GPT2": text_classification.main,
    "CLIP": image_classification.main,
}


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_any_classifier_is_read_as_it_was_trained(family, texts, tmp_path, monkeypatch):
    fields = {"pad_token_id": 7} if family == "GPT2" else {}  # not that of the tokenizer
    checkpoint_of(family, tmp_path / "base", **fields)
    signed(AutoModel.from_pretrained(tmp_path / "base")).save_pretrained(tmp_path / "base")
    images = CLASSIFIERS[family] is image_classification.main
    data = ["--dataset_name", "digits", "--max_train_samples", "32"] if images else [*texts, "--max_length", "16"]
    words = shlex.split(
        "--lora_rank 2 --max_steps 2 --learning_rate 0.1 --use_cpu --disable_tqdm true --warmup_ratio 0"
    )
    kept = []
    monkeypatch.setattr(SignedTrainer, "save_model", spied(SignedTrainer.save_model, kept))
    given = [*data, *words, "--model_name_or_path", str(tmp_path / "base"), "--output_dir", str(tmp_path / "run")]
    CLASSIFIERS[family](given)
    trained, read = kept[-1].eval(), read_model(tmp_path / "run")
    inputs = example_inputs(read)
    if not images:  # padded
        inputs = AutoTokenizer.from_pretrained(tmp_path / "run")(SENTENCES, padding=True, return_tensors="pt")
    torch.testing.assert_close(read(**inputs).logits, trained(**inputs).logits, atol=1e-5, rtol=1e-4)
    with trained.disable_adapter():
        assert (trained(**inputs).logits - read(**inputs).logits).abs().max() > 1e-3
    idle = [name for name, weight in trained.named_parameters() if weight.requires_grad and weight.grad is None]
    assert not idle


def spied(save, models):
    """The method `save_model`, which also keeps the model, with gradients of one more step."""

    def saving(trainer, *args, **kwargs):
        save(trainer, *args, **kwargs)
        trainer.model.zero_grad()
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.model.train()(**batch).loss.backward()
        models.append(trainer.model)

    return saving


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


def shown(folder, monkeypatch):
    """The names that the example of a card sets."""
    monkeypatch.chdir(folder)
    names = {}
    exec((folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0], names)
    return names


def test_the_card_says_what_the_adapter_is_and_its_example_computes_the_same(trained, monkeypatch):
    folder, _ = trained
    expected, tokenizer = load_checkpoint(folder)
    text = (folder / "README.md").read_text()
    assert "LoRA adapter of rank 4" in text
    inputs = tokenizer("a charming film with a weak ending", return_tensors="pt")
    example = shown(folder, monkeypatch)
    torch.testing.assert_close(example["outputs"].logits, expected(**inputs).logits)


def test_an_encoder_decoder_writes_what_it_wrote_in_training(tmp_path, monkeypatch):
    rows = "\n".join(f"{word} film,{word} row" for word in ["good", "bad"] * 20)
    (tmp_path / "pairs.csv").write_text(f"source,target\n{rows}")
    checkpoint_of("T5", tmp_path / "base", "ForConditionalGeneration")
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    signed(base).save_pretrained(tmp_path / "base")
    words = shlex.split("--lora_rank 4 --max_steps 20 --learning_rate 0.1 --use_cpu --disable_tqdm true --max_length 8")
    words += ["--source_prefix", "film: ", "--model_name_or_path", str(tmp_path / "base")]
    kept = []
    monkeypatch.setattr(SignedTrainer, "save_model", spied(SignedTrainer.save_model, kept))
    seq2seq.main([*words, "--train_file", str(tmp_path / "pairs.csv"), "--output_dir", str(tmp_path / "run")])
    inputs = AutoTokenizer.from_pretrained(tmp_path / "run")(["film: good film"], return_tensors="pt")
    ids = {"input_ids": inputs["input_ids"]}
    written = kept[-1].eval().generate(**ids).tolist()
    assert read_model(tmp_path / "run").generate(**ids).tolist() == written
    assert shown(tmp_path / "run", monkeypatch)["model"].generate(**ids).tolist() == written


def test_a_merged_adapter_is_a_checkpoint_with_the_same_outputs(trained, tmp_path):
    folder, _ = trained
    separate = read_adapted(required_adapter(folder)).get_base_model()
    told = CliRunner().invoke(app, ["merge", str(folder), str(tmp_path / "merged")])
    assert told.exit_code == 0, told.output
    shutil.rmtree(tmp_path / "base")
    merged, inputs = read_model(tmp_path / "merged"), example_inputs(separate)
    assert type(merged).__name__ == "BidirBertForSequenceClassification"
    torch.testing.assert_close(merged(**inputs).logits, separate(**inputs).logits, atol=1e-4, rtol=1e-4)
    record = json.loads((tmp_path / "merged/previous_run.json").read_text())
    assert record["recipe"]["lora_rank"] == 4


def test_the_folder_of_the_base_is_not_overwritten(trained, tmp_path):
    with pytest.raises(FileExistsError, match="without the source"):
        merge_adapter(trained[0], tmp_path / "base", overwrite=True)


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
    words = shlex.split("--lora_rank 2 --lora_targets c_attn c_fc --max_steps 60 --learning_rate 3e-2 --block_size 8")
    words += ["--use_cpu", "--train_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "run")]
    results = causal_lm.main([*words, "--model_name_or_path", str(tmp_path / "base")])
    assert results["eval_perplexity"] < len(tokenizer) / 2  # of random weights: about its size
    names = load_file(tmp_path / "run/adapter_model.safetensors")
    assert all("c_attn" in name or "c_fc" in name for name in names)
    measured = evaluate_checkpoint(tmp_path / "run", str(tmp_path / "text.txt"), split="validation")
    assert measured.scores["perplexity"] < len(tokenizer) / 2


def test_masked_words_are_learnt_by_an_adapter_of_a_checkpoint_that_has_their_output_layer(base, texts, tmp_path):
    words = shlex.split("--lora_rank 2 --max_steps 2 --use_cpu --disable_tqdm true --max_length 16")
    words += ["--train_file", texts[1], "--output_dir", str(tmp_path / "run")]
    without = saved(BertForSequenceClassification, tmp_path / "classifier")
    with pytest.raises(InputError, match=r"lacks 6 weights of BidirBertForMaskedLM, such as cls\.predictions"):
        masked_lm.main([*words, "--model_name_or_path", without])
    masked_lm.main([*words, "--model_name_or_path", base])
    assert type(read_model(tmp_path / "run")).__name__ == "BidirBertForMaskedLM"


def other_base(tmp_path):
    saved(BertForMaskedLM, tmp_path / "other", seed=1)
    return {"base": tmp_path / "other"}, r"another base model than .*, whose weights have the SHA-256"


def other_attention(tmp_path):
    file = tmp_path / "base/config.json"
    file.write_text(file.read_text().replace('"attn_negative_mass": 0.5', '"attn_negative_mass": 0.25'))
    return {}, "attn_negative_mass 0.25; it was trained with 0.5"


def missing_base(tmp_path):
    (tmp_path / "base").rename(tmp_path / "moved")
    return {}, "there is none"


def truncated_base(tmp_path):
    file = tmp_path / "base/model.safetensors"
    file.write_bytes(file.read_bytes()[:999])
    (tmp_path / "adapter/run.json").unlink()  # whose digest would refuse it before
    return {}, "is no BidirBertForSequenceClassification"


def missing_weights(tmp_path):
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    return {}, "has no adapter_model.safetensors"


def truncated_config(tmp_path):
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(file.read_text()[:50])
    return {}, r"expected JSON in UTF-8 in .*adapter_config\.json"


def another_kind(tmp_path):
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(file.read_text().replace('"LORA"', '"PREFIX_TUNING"'))
    return {}, "is a PREFIX_TUNING adapter; expected LORA"


def its_own_base(tmp_path):
    return {"base": tmp_path / "adapter"}, "is an adapter itself; merge it first"


def truncated_adapter(tmp_path):
    file = tmp_path / "adapter/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:999])
    return {}, "cannot be read"


def half_an_adapter(tmp_path):
    file = tmp_path / "adapter/adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(next(name for name in sorted(weights) if "lora_A" in name))
    save_file(weights, file)
    return {}, "1 weights are only in one of them"


def of_another_shape(tmp_path):
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)
    return {}, "does not fit BidirBertForSequenceClassification"


SPOILT = [
    other_base, other_attention, missing_base, truncated_base, missing_weights, truncated_config, another_kind,
    its_own_base, truncated_adapter, half_an_adapter, of_another_shape,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILT)
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


def test_layers_that_share_a_weight_get_no_adapter(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five\n" * 200)
    checkpoint_of("GPT2", tmp_path / "base", "LMHeadModel")
    signed(AutoModelForCausalLM.from_pretrained(tmp_path / "base")).save_pretrained(tmp_path / "base")
    words = shlex.split("--lora_rank 2 --lora_targets lm_head --max_steps 1 --use_cpu --block_size 8")
    words += ["--train_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "run")]
    with pytest.raises(InputError, match="the embeddings and the output layer share one weight"):
        causal_lm.main([*words, "--model_name_or_path", str(tmp_path / "base")])


def test_an_adapter_without_a_record_is_read_with_the_classes_of_its_base(trained):
    (trained[0] / "run.json").unlink()
    assert read_model(trained[0]).config.id2label == {0: "LABEL_0", 1: "LABEL_1"}


def test_an_adapter_is_neither_quantised_nor_restored_nor_trained_on(trained, texts, tmp_path):
    folder, _ = trained
    with pytest.raises(ValueError, match="quantised only when merged"):
        quantise_checkpoint(folder, tmp_path / "int8")
    with pytest.raises(ValueError, match="is an adapter; merge it first"):
        restore_softmax(folder, tmp_path / "stock")
    for more in ([], ["--lora_rank", "2"]):
        with pytest.raises(InputError, match="is an adapter; train on from the merged model"):
            main([*texts, *more, "--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "again")])


def test_a_run_is_not_continued_on_another_base(base, texts, tmp_path, crash):
    words = [*texts, *RUN, "--model_name_or_path", base, "--output_dir", str(tmp_path / "run")]
    crash(main, words, after_steps=8)
    saved(BertForMaskedLM, tmp_path / "base", seed=1)
    with pytest.raises(InputError, match="the weights or the attention of the base model differ"):
        main(words)


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
    with pytest.raises(InputError, match="sign it first, for instance by hf-bidir convert"):
        main([*texts, *RUN, "--model_name_or_path", str(tmp_path / "stock")])
    with pytest.raises(InputError, match="name one as --model_name_or_path"):
        main([*texts, *RUN])
    (tmp_path / "rnn").mkdir()
    (tmp_path / "rnn/config.json").write_text('{"model_type": "bidir_rnn"}')
    with pytest.raises(InputError, match="is recurrent; adapters are for transformers"):
        main([*texts, *RUN, "--model_name_or_path", str(tmp_path / "rnn")])
    with pytest.raises(InputError, match="--lora_alpha needs --lora_rank"):
        image_classification.main(["--dataset_name", "digits", "--lora_alpha", "8"])
