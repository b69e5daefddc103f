"""Masked language modelling learns words and raises the negative mass."""

import shlex

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertModel, BertTokenizerFast, EvalPrediction

from hf_bidir.common.errors import InputError
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END
from training.masked_lm import main, masked_word_metrics

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RUN = shlex.split(
    "--max_steps 60 --per_device_train_batch_size 16 --learning_rate 2e-2 --use_cpu --disable_tqdm true "
    "--negative_mass_until 0.3"
)
WORDS = "one two three four five six seven eight"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Options of a run that starts from a softmax encoder, with a text whose lines are the same; and its numbers."""
    folder = tmp_path_factory.mktemp("learned")
    torch.manual_seed(0)
    BertModel(BertConfig(**SHAPE, vocab_size=13)).save_pretrained(folder / "bert")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    (folder / "text.txt").write_text("\n".join([WORDS] * 200))
    start = ["--model_name_or_path", str(folder / "bert"), "--train_file", str(folder / "text.txt")]
    options = [*start, *RUN, *AT_THE_END, "--output_dir", str(folder / "run")]
    return options, main(options)


def test_masked_words_are_found_at_full_negative_mass(learned):
    options, results = learned
    assert results["eval_masked_accuracy"] > 0.8
    config = AutoModelForMaskedLM.from_pretrained(options[-1]).config
    assert (config.attn_activation, config.attn_negative_mass) == ("tanhmax", 1.0)


def test_a_checkpoint_that_masks_words_is_required(learned, tmp_path):
    with pytest.raises(InputError, match="expected --model_name_or_path"):
        main(["--train_file", "text.txt"])
    with pytest.raises(InputError, match="'gpt2', which has no AutoModelForMaskedLM; it has AutoModel, "):
        main([*learned[0], "--model_name_or_path", checkpoint_of("GPT2", tmp_path / "gpt2")])


def test_a_share_of_masked_tokens_in_percent_is_refused(learned):
    with pytest.raises(InputError, match="--mask_share between 0 and 1; got 15"):
        main([*learned[0], "--mask_share", "15"])


def test_only_masked_words_are_counted():
    truth, predicted = np.array([[-100, 3, 4], [5, -100, -100]]), np.array([[9, 3, 9], [5, 9, 9]])
    assert masked_word_metrics(EvalPrediction(predicted, truth))["masked_accuracy"] == pytest.approx(2 / 3)
