import json

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.arguments import TextDataArguments
from hf_bidir.finetune.data.splits import labelled_splits
from hf_bidir.finetune.data.text_data import read_texts

TEXTS, LABELS = ["good", "bad", "fine", "poor"] * 10, ["pos", "neg"] * 20


def write(path, texts=TEXTS, labels=LABELS, columns=("text", "label")):
    table = Dataset.from_dict(dict(zip(columns, (texts, labels[: len(texts)]), strict=True)))
    {".parquet": table.to_parquet, ".csv": table.to_csv, ".jsonl": table.to_json}[path.suffix](str(path))
    return str(path)


@pytest.fixture
def train(tmp_path):
    return write(tmp_path / "train.parquet")


def read(train, **options):
    return read_texts(TextDataArguments(train_file=train, **options))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_every_kind_of_table_is_read_alike(tmp_path, suffix):
    splits = read(write(tmp_path / f"train{suffix}"), validation_file=write(tmp_path / f"other{suffix}"))
    assert splits.train["text"][:] == TEXTS
    assert [splits.names[label] for label in splits.train["label"]] == LABELS


def test_a_list_of_json_objects_is_read(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]))
    assert read(str(path)).names == ["neg", "pos"]


def test_a_csv_text_that_reads_null_stays_a_text(tmp_path):
    path = write(tmp_path / "train.csv", ["null", "NA"] * 20)
    splits = read(path, validation_file=path)
    assert splits.train["text"][:2] == ["null", "NA"]


def test_a_tenth_of_the_training_data_is_held_out_by_class_and_the_notes_say_so(train):
    splits = read(train)
    assert sorted(splits.validation["label"]) == [0, 0, 1, 1]
    assert len(splits.train) == 36
    assert "held out" in splits.notes[0]


def test_class_names_name_the_sorted_label_values(tmp_path):
    path = write(tmp_path / "train.parquet", labels=[1, -1] * 20)
    splits = read(path, class_names=["negative", "positive"], validation_file=path)
    assert splits.names == ["negative", "positive"]
    assert splits.train["label"][:2] == [1, 0]


def test_class_labels_of_two_splits_are_matched_by_name():
    def split(names):
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        return Dataset.from_dict({"text": ["x"] * 4, "label": [0, 1, 0, 1]}, features)

    raw = {"train": split(["cat", "dog"]), "validation": split(["dog", "cat"])}
    splits = labelled_splits(raw, TextDataArguments(), None, ("text",))
    assert splits.names == ["cat", "dog"]
    assert splits.validation["label"][:] == [1, 0, 1, 0]


def test_a_test_file_with_one_label_of_minus_one_keeps_it(tmp_path):
    path = write(tmp_path / "train.parquet", labels=[1, -1] * 20)
    test = write(tmp_path / "test.parquet", ["x"] * 3, [-1] * 3)
    assert len(read(path, test_file=test).test) == 3


def test_class_shares_sum_to_one(train):
    assert read(train).class_shares() == {"neg": 0.5, "pos": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_file": None}, "expected training data"),
        ({"train_file": "nowhere.csv"}, "expected a data file at nowhere.csv"),
        ({"text_column": "txt"}, 'no column txt; its columns are: text, label.*Did you mean "text"'),
        ({"label_column": "stars"}, "no column stars; its columns are: text, label"),
        ({"class_names": ["only"]}, "expected 2 different class names"),
        ({"validation_share": 1.5}, "validation_share between 0 and 1"),
    ],
)
def test_options_that_do_not_fit_the_data_are_one_clear_error(train, options, message):
    with pytest.raises(InputError, match=message):
        read_texts(TextDataArguments(**({"train_file": train} | options)))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["good", None, " ", "x"], ["pos", "neg"] * 2, r"missing in 2 of the test split \(from 0: 1, 2"),
        (["x"] * 4, ["pos", "neg", "meh", "meh"], r"labels that the train split lacks: 'meh' \(2 rows\)"),
        (["x"] * 4, ["pos", None, "neg", "neg"], "row 1 of the test split has no label"),
        (["x"] * 4, [0.5, 1.0, 0.0, 1.0], "expected integers or strings as labels; row 0 .* has 0.5"),
        ([], [], "test.parquet has no rows"),
    ],
)
def test_rows_that_cannot_be_used_are_one_clear_error(tmp_path, texts, labels, message):
    train, test = write(tmp_path / "train.parquet"), write(tmp_path / "test.parquet", texts, labels)
    with pytest.raises(InputError, match=message):
        read(train, test_file=test)


def test_a_single_class_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="expected at least two classes"):
        read(write(tmp_path / "train.parquet", labels=["pos"] * 40))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.log", "good\n", "expected a file that ends in .parquet, .csv"),
        ("train.parquet", "not a table", "cannot read .* as parquet"),
        ("train.csv", "", "is empty"),
    ],
)
def test_a_file_that_is_no_table_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read(str(tmp_path / name))


ROWS = [f"the film number {row}" for row in range(12)]


def test_evaluation_texts_that_repeat_a_training_text_are_counted_in_a_note_and_kept(tmp_path):
    test = write(tmp_path / "test.parquet", ["THE film  number 3", "new"])
    train = write(tmp_path / "train.parquet", ROWS)
    splits = read(train, validation_file=write(tmp_path / "validation.parquet", ["fine", "bad"]), test_file=test)
    assert splits.notes == [
        "1 of 2 test texts repeat a text of an earlier split (same first 100 characters: 1). They were kept; "
        "--remove_repeated removes them."
    ]
    assert len(splits.test) == 2


def test_evaluation_texts_that_repeat_a_training_text_are_removed_on_request(tmp_path):
    train, test = write(tmp_path / "train.parquet", ROWS), write(tmp_path / "test.parquet", ["new", ROWS[3], ROWS[3]])
    splits = read(train, validation_share=0.5, test_file=test, remove_repeated=True)
    assert splits.test["text"][:] == ["new"]
    assert (len(splits.train), len(splits.validation)) == (6, 6)
    assert "They were removed" in splits.notes[-1]


def test_removal_of_every_evaluation_text_is_refused(train):
    with pytest.raises(InputError, match="every text of the validation split repeats"):
        read(train, validation_file=train, remove_repeated=True)
