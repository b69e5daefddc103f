"""Plain text becomes snippets and blocks."""

import copy
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import BertTokenizerFast

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import UnlabelledTextArguments
from hf_bidir.finetune.data.splits import sampled
from hf_bidir.finetune.data.text_data import (
    cut_into_blocks,
    cut_into_snippets,
    fit_max_length,
    read_documents,
)

WORDS = [f"w{index}" for index in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    vocabulary = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    return BertTokenizerFast(str(vocabulary))


def table(folder, texts, column="text"):
    Dataset.from_dict({column: texts}).to_parquet(str(folder / "texts.parquet"))
    return str(folder / "texts.parquet")


def documents(*files):
    return read_documents(UnlabelledTextArguments(train_file=files, validation_file=files))


def words_of(split, tokenizer):
    return [tokenizer.decode(ids, skip_special_tokens=True).split() for ids in split["input_ids"]]


def test_a_long_text_becomes_snippets_that_hold_every_word_once(tokenizer, tmp_path):
    splits = documents(table(tmp_path, [" ".join(WORDS)]))
    snippets = cut_into_snippets(splits, tokenizer, 10).train
    assert [word for snippet in words_of(snippets, tokenizer) for word in snippet] == WORDS
    assert max(map(len, snippets["input_ids"])) == 10


@pytest.mark.parametrize(("end", "added"), [("[SEP]", []), ("[MASK]", [4])])  # [SEP] ends each text already
def test_blocks_hold_all_texts_in_their_order_with_an_end_after_each_and_no_rest(end, added, tokenizer, tmp_path):
    texts, tokenizer = [" ".join(WORDS[:7]), " ", WORDS[7], " ".join(WORDS[8:])], copy.deepcopy(tokenizer)
    tokenizer.eos_token = end
    splits = documents(table(tmp_path, texts))
    tokens = [piece for text in texts if text.strip() for piece in [*tokenizer(text)["input_ids"], *added]]
    blocks = cut_into_blocks(splits, tokenizer, 8).train
    assert [piece for block in blocks["input_ids"] for piece in block] == tokens[: len(tokens) // 8 * 8]
    assert blocks["labels"][:] == blocks["input_ids"][:]
    assert len(cut_into_blocks(splits, tokenizer, len(tokens)).train) == 1
    with pytest.raises(InputError, match=f"train split .* {len(tokens) + 1}"):
        cut_into_blocks(splits, tokenizer, len(tokens) + 1)


def test_several_files_are_joined_whatever_their_column_is_called(tmp_path):
    (tmp_path / "lines.txt").write_text("w1 w2\nw3\n\n   \nw4\n")
    splits = documents(str(tmp_path / "lines.txt"), table(tmp_path, ["w5", None, ""], column="sentence"))
    assert splits.train["text"][:] == ["w1 w2", "w3", "w4", "w5"]


def test_a_share_of_the_rows_is_held_out_and_the_evaluation_is_a_sample_of_it(tmp_path, caplog):
    data = UnlabelledTextArguments(train_file=[table(tmp_path, WORDS)], validation_share=0.25)
    train, held_out = (set(split["text"]) for _, split in read_documents(data))
    assert (len(train), len(held_out), train & held_out) == (30, 10, set())
    for most, rows, notes in ((7, 7, 1), (10, 10, 0), (None, 10, 0)):
        data.max_eval_samples = most
        caplog.clear()
        sample = sampled(read_documents(data), data)
        assert (len(sample.validation), sum("random sample" in note for note in sample.notes)) == (rows, notes)
        assert caplog.text.count("random sample") == notes


def test_a_split_without_text_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="train split has no row"):
        documents(table(tmp_path, ["", " "]))


def test_the_length_is_lowered_to_the_positions_of_the_model(caplog):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BidirBertModel(BidirBertConfig(**shape, vocab_size=30, max_position_embeddings=32))
    for length, notes in ((31, 0), (32, 0), (33, 1)):
        data = SimpleNamespace(max_length=length)
        fit_max_length(data, model)
        assert (data.max_length, len(caplog.records)) == (min(length, 32), notes)
