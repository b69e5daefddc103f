"""A causal language model learns a text from scratch and from a checkpoint."""

import shlex

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_bidir.common.errors import InputError
from hf_bidir.hub import evaluate_checkpoint
from tests.training.checkpoints_of_others import checkpoint_of
from tests.training.conftest import AT_THE_END, read
from training.causal_lm import CausalModelArguments, main

SENTENCE = "the quick brown fox jumps over the lazy dog; naïve, isn't it? 狐"
SHAPE = shlex.split("--vocab_size 300 --hidden_size 32 --num_hidden_layers 2 --num_attention_heads 2")
RUN = shlex.split(
    "--block_size 16 --intermediate_size 64 --max_steps 40 --per_device_train_batch_size 8 --learning_rate 2e-2 "
    "--use_cpu --disable_tqdm true --label_smoothing_factor 0.1"
)
BRIEF = shlex.split("--block_size 8 --max_steps 2 --use_cpu --disable_tqdm true")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Options that name a text whose lines are all the same, and which has empty lines, also for validation."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join([SENTENCE, "", "  "] * 100), encoding="utf-8")
    return ["--train_file", str(file), "--validation_file", str(file)]


@pytest.fixture(scope="module")
def learned(text, tmp_path_factory):
    """The folder of a run that learned the text, and its numbers."""
    folder = tmp_path_factory.mktemp("learned")
    return folder, main([*text, *SHAPE, *RUN, *AT_THE_END, "--output_dir", str(folder)])


def test_a_new_model_learns_a_text_and_its_folder_loads_and_generates_it(learned):
    folder, results = learned
    assert results["eval_perplexity"] < 2
    model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert type(model).__name__ == "BidirLlamaForCausalLM"
    assert model.config.attn_negative_mass == 1.0
    written = model.generate(**tokenizer("the quick", return_tensors="pt"), max_new_tokens=60, do_sample=False)
    assert tokenizer.decode(written[0], skip_special_tokens=True).startswith(SENTENCE)
    assert model.get_input_embeddings().weight[model.config.eos_token_id].abs().sum() > 0


def test_its_perplexity_is_measured_again_from_the_files(learned, text):
    folder, results = learned
    measured = evaluate_checkpoint(folder, text[1])
    assert measured.split == "validation"
    assert measured.scores["perplexity"] == pytest.approx(results["eval_perplexity"], rel=1e-4)


def test_a_softmax_checkpoint_of_few_positions_goes_on_while_its_negative_mass_rises(text, tmp_path):
    source = checkpoint_of("GPT2", tmp_path / "stock", head="LMHeadModel", n_positions=8)
    words = [*text, *BRIEF, *AT_THE_END, "--model_name_or_path", source, "--negative_mass_until", "0.5"]
    main([*words, "--output_dir", str(tmp_path / "run")])
    assert read(tmp_path / "run/config.json")["attn_negative_mass"] == 1.0


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("DistilBert", "'distilbert', which has no AutoModelForCausalLM; it has AutoModel, "),
        ("Electra", "Electra is an encoder"),
    ],
)
def test_an_encoder_is_no_causal_language_model(family, message, text, tmp_path):
    with pytest.raises(InputError, match=message):
        main([*text, "--model_name_or_path", checkpoint_of(family, tmp_path / family)])


def test_heads_of_an_odd_width_are_refused_before_the_text_is_read():
    CausalModelArguments(hidden_size=30, num_attention_heads=3)
    with pytest.raises(InputError, match=r"even width.*hidden_size 27"):
        CausalModelArguments(hidden_size=27, num_attention_heads=3)
