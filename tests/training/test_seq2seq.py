"""training/seq2seq.py: train an encoder-decoder on pairs, reload, refuse."""

import shlex

import pytest
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_bidir import BidirRnnForSeq2SeqLM
from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END
from training.seq2seq import main

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
