"""Masked language modelling learns words, raises the negative mass, and can be resumed."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.masking import MaskingCollator
from tests.training.checkpoints_of_others import checkpoint_of
from training.masked_lm import main

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RUN = shlex.split(
    "--max_steps 80 --per_device_train_batch_size 16 --learning_rate 1e-2 --logging_steps 1 --use_cpu "
    "--disable_tqdm true --negative_mass_until 0.3 --eval_steps 40 --save_steps 20 --save_total_limit 5 "
    "--attn_implementation eager"
)
WORDS = "one two three four five six seven eight"


@pytest.fixture
def options(tmp_path):
    """Options that name a softmax encoder and a text in which every line is the same."""
    folder, vocabulary = tmp_path / "bert", tmp_path / "vocab.txt"
    torch.manual_seed(0)
    BertModel(BertConfig(**SHAPE, vocab_size=13)).save_pretrained(folder)
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]))
    BertTokenizerFast(str(vocabulary)).save_pretrained(folder)
    (tmp_path / "text.txt").write_text("\n".join([WORDS] * 200))
    return ["--model_name_or_path", str(folder), "--train_file", str(tmp_path / "text.txt"), *RUN]


def test_masked_words_are_found_at_full_negative_mass(options, tmp_path):
    results = main([*options, "--output_dir", str(tmp_path / "run")])
    assert results["eval_masked_accuracy"] > 0.8
    assert json.loads((tmp_path / "run/config.json").read_text())["attn_negative_mass"] == 1.0
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "run").config.attn_activation == "tanhmax"


def test_an_interrupted_run_continues_to_the_same_weights(options, tmp_path, crash):
    main([*options, "--output_dir", str(tmp_path / "whole")])
    again = [*options, "--output_dir", str(tmp_path / "crashed")]
    crash(main, again, after_steps=30)
    main(again)
    whole, crashed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "crashed"))
    for name, weight in whole.items():
        torch.testing.assert_close(crashed[name], weight, msg=name)


@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "Electra", "ModernBert"])
def test_any_encoder_continues_with_its_own_vocabulary(family, options, tmp_path):
    source = checkpoint_of(family, tmp_path / "stock")
    words = ["--model_name_or_path", source, "--max_steps", "4", "--learning_rate", "1e-3"]
    results = main([*options, *words, "--output_dir", str(tmp_path / "run")])
    assert 0 < results["eval_loss"] < 10
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert type(model).__name__ == f"Bidir{family}ForMaskedLM"
    assert model.config.attn_negative_mass == 1.0


def test_a_model_that_masks_nothing_is_refused(options, tmp_path):
    with pytest.raises(InputError, match="'gpt2', which has no AutoModelForMaskedLM; it has AutoModel, "):
        main([*options, "--model_name_or_path", checkpoint_of("GPT2", tmp_path / "stock")])


def test_a_tokenizer_without_a_mask_is_refused(options, tmp_path):
    source = checkpoint_of("Roberta", tmp_path / "stock")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(source)
    with pytest.raises(InputError, match="has no mask token"):
        main([*options, "--model_name_or_path", source])


def test_a_checkpoint_to_start_from_is_required():
    with pytest.raises(InputError, match="expected --model_name_or_path"):
        main(["--train_file", "text.txt"])


def test_a_model_continues_from_its_own_negative_mass(options, tmp_path):
    main([*options, "--max_steps", "2", "--negative_mass_end", "0.5", "--output_dir", str(tmp_path / "half")])
    again = [*options, "--model_name_or_path", str(tmp_path / "half"), "--max_steps", "2", "--save_steps", "1"]
    main([*again, "--negative_mass_until", "1", "--output_dir", str(tmp_path / "whole")])
    first = json.loads((tmp_path / "whole/checkpoint-1/config.json").read_text())
    assert first["attn_negative_mass"] == 0.5


def test_masks_do_not_depend_on_the_worker_that_makes_the_batch(options, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(options[1])
    rows = [tokenizer(WORDS) for _ in range(8)]
    for row in rows:
        row.pop("token_type_ids", None)
    collator = MaskingCollator(tokenizer, 0.3)
    batches = [list(DataLoader(rows, batch_size=2, collate_fn=collator, num_workers=workers)) for workers in (0, 2)]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one["input_ids"], other["input_ids"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mask_share", "1.5"], "mask_share between 0 and 1"),
        (["--attn_negative_mass", "0.5"], "leave out --attn_negative_mass"),
        (["--attn_activation", "softmax"], "leave out --attn_activation"),
        (["--max_length", "600"], "at most 512"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        main([*options, *words, "--output_dir", str(tmp_path / "out")])
