"""training/seq2seq.py: train an encoder-decoder on pairs, reload, refuse."""

import shlex

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EvalPrediction

from hf_bidir import BidirRnnForSeq2SeqLM
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.tokenizer import train_words
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END
from training.seq2seq import PairDataArguments, main, read_pairs, sequence_metrics, tokenize_pairs

RUN = shlex.split(
    "--embedding_size 16 --hidden_size 32 --max_length 4 --num_train_epochs 30 --learning_rate 2e-2 "
    "--per_device_train_batch_size 16 --use_cpu --disable_tqdm true --label_smoothing_factor 0.1"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Options that name tables of three letters, and the same letters reversed."""
    folder = tmp_path_factory.mktemp("pairs")
    words = [f"{a} {b} {c}" for a in "abcd" for b in "abcd" for c in "abcd"]
    options = []
    for name, part in {"train": words, "validation": words[::8], "test": words[::4]}.items():
        file = folder / f"{name}.csv"
        Dataset.from_dict({"source": part, "target": [word[::-1] for word in part]}).to_csv(str(file), index=False)
        options += [f"--{name}_file", str(file)]
    return options


@pytest.fixture(scope="module")
def learned(pairs, tmp_path_factory):
    """The folder of a run that learned to write, and its numbers."""
    folder = tmp_path_factory.mktemp("learned")
    return folder, main([*pairs, *RUN, *AT_THE_END, "--output_dir", str(folder)])


def written(folder, *texts):
    """What the model in a folder writes for the first text, alone or padded."""
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    ids = model.generate(**tokenizer(list(texts), return_tensors="pt", padding=True))
    return model, tokenizer.decode(ids[0], skip_special_tokens=True)


def test_a_run_learns_to_write_and_its_folder_does_so_again(learned):
    folder, results = learned
    assert results["test_exact_match"] == 1.0
    model, text = written(folder, "a b c", "d")
    assert isinstance(model, BidirRnnForSeq2SeqLM)
    assert text == "c b a"
    assert "| exact match | 1.0000 |" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max_target_length 3", r"expected targets of at most 3 tokens .* in the train split"),
        ("--predict_with_generate false", "choose --metric_for_best_model loss"),
    ],
)
def test_options_that_cannot_be_used_are_one_error(pairs, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        main([*pairs, *RUN, *shlex.split(options), "--output_dir", str(tmp_path)])


def test_a_softmax_checkpoint_of_transformers_is_trained_on_and_becomes_signed(tmp_path):
    source = checkpoint_of("T5", tmp_path / "stock", head="ForConditionalGeneration")
    words = ["a good film", "one two"] * 10
    pairs = {"source": words, "target": [f"{' '.join(word.split()[::-1])} [SEP]" for word in words]}
    Dataset.from_dict(pairs).to_csv(str(tmp_path / "pairs.csv"), index=False)
    options = shlex.split(
        f"--model_name_or_path {source} --train_file {tmp_path}/pairs.csv --source_prefix 'row ' --max_length 6 "
        "--num_train_epochs 25 --per_device_train_batch_size 8 --learning_rate 1e-2 --label_smoothing_factor 0.1 "
        "--negative_mass_until 0.2 --disable_tqdm true --use_cpu"
    )
    results = main([*options, *AT_THE_END, "--output_dir", str(tmp_path / "run")])
    assert results["eval_token_accuracy"] > 0.9
    model, text = written(tmp_path / "run", "row a good film")
    assert model.config.attn_negative_mass == 1.0
    assert text == "film good a"


@pytest.fixture
def two_pairs(tmp_path):
    (tmp_path / "pairs.csv").write_text("source,target\nw1,\nw2 w3,w4\n,w5\nw6,w7 w8\n")
    return {"train_file": str(tmp_path / "pairs.csv"), "validation_file": str(tmp_path / "pairs.csv")}


def test_pairs_without_a_source_or_target_are_named(two_pairs):
    with pytest.raises(InputError, match=r"row 0 .*: no usable target; row 2 .*: no usable source"):
        read_pairs(PairDataArguments(**two_pairs))


def test_pairs_become_tokens_and_no_target_is_cut(two_pairs):
    splits = read_pairs(PairDataArguments(**two_pairs, drop_bad_rows=True))
    tokenizer = train_words([" ".join(f"w{index}" for index in range(9))], vocab_size=20, max_length=8, ends=True)
    rows = tokenize_pairs(splits, tokenizer, 2, 3, prefix="w0 ").train
    sides = [[tokenizer.decode(ids) for ids in rows[name]] for name in ("input_ids", "labels")]
    assert sides == [["w0 [EOS]", "w0 [EOS]"], ["w4 [EOS]", "w7 w8 [EOS]"]]
    with pytest.raises(InputError, match=r"at most 2 tokens.* has 3"):
        tokenize_pairs(splits, tokenizer, 2, 2)


def test_a_sequence_is_right_from_its_first_token_to_its_end_without_unknown_words_and_padding_does_not_count():
    tokenizer = train_words(["a b"], vocab_size=6, max_length=8, ends=True)
    start, end, unknown, a, b = tokenizer.convert_tokens_to_ids(["[BOS]", "[EOS]", "[UNK]", "a", "b"])
    written = [[start, a, b, end], [start, a, a, end], [start, a, b, b], [start, a, end, 0], [start, unknown, end, 0]]
    targets = [[a, b, end, 0], [a, b, end, -100], [a, b, end, -100], [a, end, -100, -100], [unknown, end, -100, -100]]
    metrics = sequence_metrics(tokenizer)(EvalPrediction(np.array(written), np.array(targets)))
    assert metrics == pytest.approx({"exact_match": 2 / 5, "token_accuracy": 10 / 13})
