"""Masked language modelling learns words, raises the negative mass, and can be interrupted."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertModel, BertTokenizer

from hf_bidir.finetune.errors import InputError
from training.masked_lm import main

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RUN = shlex.split(
    "--max_steps 80 --per_device_train_batch_size 16 --learning_rate 1e-2 --logging_steps 1 --use_cpu "
    "--disable_tqdm true --eval_steps 40 --save_steps 20 --save_total_limit 5 --attn_implementation eager"
)
WORDS = "one two three four five six seven eight"


@pytest.fixture
def options(tmp_path):
    """Options that name a softmax encoder and a text in which every line is the same."""
    folder, vocabulary = tmp_path / "bert", tmp_path / "vocab.txt"
    torch.manual_seed(0)
    BertModel(BertConfig(**SHAPE, vocab_size=13)).save_pretrained(folder)
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]))
    BertTokenizer(str(vocabulary)).save_pretrained(folder)
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


def test_a_checkpoint_to_start_from_is_required():
    with pytest.raises(InputError, match="expected --model_name_or_path"):
        main(["--train_file", "text.txt"])
