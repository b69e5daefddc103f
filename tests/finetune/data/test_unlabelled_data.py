"""Plain text becomes snippets, and images need no labels."""

import copy

import pytest
from datasets import Dataset
from PIL import Image
from transformers import BertTokenizerFast, ViTConfig, ViTForImageClassification, ViTImageProcessor

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import DistillationDataArguments, HealingArguments, UnlabelledTextArguments
from hf_bidir.finetune.data.unlabelled_data import (
    read_blocks,
    read_snippets,
    read_unlabelled_images,
)
from hf_bidir.finetune.heal import healing_data

WORDS = [f"w{index}" for index in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    vocabulary = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    return BertTokenizerFast(str(vocabulary))


def table(path, texts, column="text"):
    Dataset.from_dict({column: texts}).to_parquet(str(path))
    return str(path)


def words_of(split, tokenizer):
    return [tokenizer.decode(ids, skip_special_tokens=True).split() for ids in split["input_ids"]]


def test_a_long_text_becomes_snippets_that_hold_every_word_once(tokenizer, tmp_path):
    files = {name: [table(tmp_path / f"{name}.parquet", [" ".join(WORDS)])] for name in ("train", "validation")}
    data = UnlabelledTextArguments(train_file=files["train"], validation_file=files["validation"], max_length=10)
    snippets = read_snippets(data, tokenizer).train
    assert [word for snippet in words_of(snippets, tokenizer) for word in snippet] == WORDS
    assert max(map(len, snippets["input_ids"])) == 10


@pytest.mark.parametrize(("end", "added"), [("[SEP]", []), ("[MASK]", [4])])  # [SEP] ends each text already
def test_blocks_hold_all_texts_in_their_order_with_an_end_after_each_and_only_the_last_is_shorter(
    end, added, tokenizer, tmp_path
):
    texts = [" ".join(WORDS[:7]), " ", WORDS[7], " ".join(WORDS[8:])]
    files = {name: [table(tmp_path / f"{name}.parquet", texts)] for name in ("train", "validation")}
    data = UnlabelledTextArguments(train_file=files["train"], validation_file=files["validation"], max_length=16)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = end
    blocks = read_blocks(data, tokenizer).train["input_ids"]
    joined = [piece for block in blocks for piece in block]
    assert joined == [piece for text in texts if text.strip() for piece in [*tokenizer(text)["input_ids"], *added]]
    assert {len(block) for block in blocks[:-1]} == {16}
    assert 0 < len(blocks[-1]) <= 16


def test_blocks_are_evaluated_on_as_many_as_asked_for(tokenizer, tmp_path):
    files = [table(tmp_path / f"{name}.parquet", [" ".join(WORDS[:9])] * 50) for name in ("train", "validation")]
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = "[SEP]"
    options = {"train_file": files[:1], "validation_file": files[1:], "max_length": 16}
    splits = read_blocks(UnlabelledTextArguments(**options, max_eval_samples=2), tokenizer)
    assert len(splits.validation) == 2
    assert splits.notes == ["Evaluated on a random sample of 2."]


def test_several_files_are_joined_whatever_their_column_is_called(tokenizer, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("w1 w2\nw3\n\n   \nw4\n")
    files = [str(lines), table(tmp_path / "a.parquet", ["w5", None, ""], column="sentence")]
    data = UnlabelledTextArguments(train_file=files, validation_file=files)
    assert words_of(read_snippets(data, tokenizer).train, tokenizer) == [["w1", "w2"], ["w3"], ["w4"], ["w5"]]


def test_a_share_of_the_rows_is_held_out_and_the_evaluation_is_a_sample_of_it(tokenizer, tmp_path):
    file = table(tmp_path / "train.parquet", WORDS)
    splits = read_snippets(UnlabelledTextArguments(train_file=[file], validation_share=0.25), tokenizer)
    train, held_out = ({word for row in words_of(split, tokenizer) for word in row} for _, split in splits)
    assert (len(train), len(held_out), train & held_out) == (30, 10, set())
    data = UnlabelledTextArguments(train_file=[file], validation_share=0.25, max_eval_samples=7)
    assert len(read_snippets(data, tokenizer).validation) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--train_file or --dataset_name"),
        ({"train_file": ["{file}"], "text_column": "body"}, "no column body"),
        ({"train_file": ["nowhere.txt"]}, "no such file"),
        ({"train_file": ["{empty}"], "validation_file": ["{file}"]}, "train split has no text"),
        ({"validation_file": ["{file}"]}, "--train_file beside --validation_file"),
        ({"train_file": ["{file}"], "validation_share": 1.5}, "validation_share between 0 and 1"),
        ({"train_file": ["{file}"], "max_eval_samples": 0}, "max_eval_samples of at least 1"),
    ],
)
def test_bad_data_is_an_input_error(tokenizer, tmp_path, options, message):
    names = {"file": table(tmp_path / "a.parquet", WORDS), "empty": table(tmp_path / "b.parquet", ["", " "])}
    options = {k: [f.format(**names) for f in v] if isinstance(v, list) else v for k, v in options.items()}
    with pytest.raises(InputError, match=message):
        read_snippets(UnlabelledTextArguments(**options), tokenizer)


def test_a_flat_folder_of_images_needs_no_labels_and_an_image_that_cannot_be_read_is_named(tmp_path):
    for index in range(8):
        Image.new("L", (4, 4), index).save(tmp_path / f"{index}.png")
    data = DistillationDataArguments(train_file=[str(tmp_path)], validation_share=0.25)
    splits = read_unlabelled_images(data)
    assert (len(splits.train), len(splits.validation)) == (6, 2)
    assert splits.train.column_names == ["image"]
    (tmp_path / "4.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"no readable image in row \d of the \w+ split as .* \(from 0\): .*4\.png"):
        read_unlabelled_images(data)


def vit(**fields):
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(**shape, image_size=8, patch_size=4, **fields))


def test_a_model_of_one_channel_is_healed_with_grey_images(tmp_path):
    for index in range(4):
        Image.new("RGBA", (8, 8), (index, 0, 0, 9)).save(tmp_path / f"{index}.png")
    processor = ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[0.5], image_std=[0.5])
    data = DistillationDataArguments(train_file=[str(tmp_path)], validation_share=0.5, flip=True)
    args = HealingArguments(output_dir=str(tmp_path / "run"), use_cpu=True)
    splits, collators, _ = healing_data(data, args, "vit", vit(num_channels=1), [processor])
    for collator in collators:
        assert collator(list(splits.train))["pixel_values"].shape == (2, 1, 8, 8)
