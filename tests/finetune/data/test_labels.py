"""Labels become indices, and rows that cannot be used are named by their lines or left out."""

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data import sources
from hf_bidir.finetune.data.checks import listed
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import labelled_split
from hf_bidir.finetune.data.text_data import TEXT, read_texts

TEXTS = [f"{row:02}" for row in range(40)]
LABELS = ["pos", "neg"] * 20


def write(path, texts=TEXTS, labels=LABELS):
    table = Dataset.from_dict({"text": texts, "label": labels[: len(texts)]})
    {".parquet": table.to_parquet, ".csv": table.to_csv, ".jsonl": table.to_json}[path.suffix](str(path))
    return str(path)


@pytest.fixture
def train(tmp_path):
    return write(tmp_path / "train.parquet")


def read(train, **options):
    return read_texts(TextDataArguments(train_file=train, **options))


def test_a_tenth_of_the_training_data_is_held_out_by_class_in_order_and_the_notes_say_so(train):
    splits = read(train)
    assert sorted(splits.validation["label"]) == [0, 0, 1, 1]
    assert splits.train["text"][:] == sorted(splits.train["text"])
    assert sorted([*splits.train["text"], *splits.validation["text"]]) == TEXTS
    assert "4 of 40 training rows were held out" in splits.notes[0]


def test_class_names_name_the_sorted_label_values(tmp_path):
    path = write(tmp_path / "train.parquet", labels=[1, -1] * 20)
    splits = read(path, class_names=["negative", "positive"], test_file=write(tmp_path / "test.csv", ["x"], [-1]))
    assert (splits.names, splits.values) == (["negative", "positive"], ["-1", "1"])
    assert splits.test["label"][:] == [0]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_integers_are_the_same_labels_in_every_file_in_the_order_of_their_size(tmp_path, suffix):
    path = write(tmp_path / f"train{suffix}", labels=[row % 10 + 3 for row in range(40)])
    test = write(tmp_path / "test.parquet", ["x"] * 3, [3.0, 4.0, 12.0])
    splits = read(path, validation_file=path, test_file=test)
    assert splits.values == splits.names == [str(label) for label in range(3, 13)]
    assert splits.test["label"][:] == [0, 1, 9]


def hub(monkeypatch, column="label", feature=None, **labels):
    """Let the Hub hold one data set, with these labels in its splits."""
    splits = DatasetDict()
    for name, rows in labels.items():
        split = Dataset.from_dict({"sentence": [f"{name} {row}" for row in range(len(rows))], column: rows})
        splits[name] = split.cast_column(column, feature) if feature else split
    monkeypatch.setattr(sources, "load_dataset", lambda name, config: splits)


def test_class_labels_of_two_splits_are_matched_by_name(tmp_path):
    files = {}
    for name, classes in {"train": ["dog", "cat"], "validation": ["cat", "dog"]}.items():
        features = Features({"text": Value("string"), "label": ClassLabel(names=classes)})
        files[f"{name}_file"] = str(tmp_path / f"{name}.parquet")
        Dataset.from_dict({"text": ["x"] * 2, "label": [0, 1]}, features).to_parquet(files[f"{name}_file"])
    splits = read_texts(TextDataArguments(**files))
    assert splits.names == ["cat", "dog"]
    assert splits.train["label"][:] == [1, 0]
    assert splits.validation["label"][:] == [0, 1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_file": None}, "--train_file, or --dataset_name"),
        ({"train_file": None, "test_file": "t.csv", "dataset_name": "digits"}, "without other files"),
        ({"train_file": "nowhere.csv"}, "nowhere.csv"),
        ({"text_column": "txt"}, '--text_column.*"text"'),
        ({"class_names": ["only"]}, "2 different class names.*only"),
        ({"class_names": ["same", "same"]}, "'same', 'same'"),
        ({"validation_share": 0.01}, "--validation_share"),
        ({"max_length": 0}, "--max_length of at least 1; got 0"),
    ],
)
def test_options_that_do_not_fit_the_data_are_one_clear_error(train, options, named):
    with pytest.raises(InputError, match=named):
        read_texts(TextDataArguments(**({"train_file": train} | options)))


@pytest.mark.parametrize(
    ("texts", "labels", "named"),
    [
        (["good", None, " ", "x"], LABELS, r"the test split .*row 1, 2 \(from 0\): no usable text"),
        (["x"] * 4, ["pos", None, "neg", " "], r"row 1, 3 \(from 0\): no usable label"),
        (["x"] * 4, [0.5, 1.0, 0.0, 1.0], "labels .*test split: .*0.5"),
    ],
)
def test_rows_that_cannot_be_used_are_one_clear_error(tmp_path, train, texts, labels, named):
    with pytest.raises(InputError, match=named):
        read(train, test_file=write(tmp_path / "test.parquet", texts, labels))


BAD = {"": "pos", "x": ""}  # after 40 rows


@pytest.fixture
def bad_files(tmp_path):
    """A training and a test file with rows that cannot be used."""
    train = write(tmp_path / "train.csv", [*TEXTS, *BAD], [*LABELS, *BAD.values()])
    test = write(tmp_path / "test.csv", ["x", "y", "z"], ["pos", "", "rare"])
    return {"train_file": train, "test_file": test}


def test_one_error_names_every_problem_of_a_split(train, bad_files):
    problems = "row 40 .*: no usable text; row 41 .*: no usable label"
    with pytest.raises(InputError, match=f"train .*{problems}.*--drop_bad_rows"):
        read_texts(TextDataArguments(**bad_files))
    with pytest.raises(InputError, match=r"test .*row 1 .*: no usable label; row 2 .*: unknown .* rare; .* neg, pos"):
        read(train, test_file=bad_files["test_file"])


def test_rows_that_cannot_be_used_are_left_out_on_request_and_the_notes_say_which(bad_files):
    splits = read_texts(TextDataArguments(**bad_files, drop_bad_rows=True))
    assert sorted([*splits.train["text"], *splits.validation["text"]]) == TEXTS
    assert splits.test["text"][:] == ["x"]
    assert "row 40 (from 0): no usable text" in splits.notes[0]


def test_a_class_of_one_row_is_no_problem_where_nothing_is_held_out(tmp_path, train):
    path = write(tmp_path / "rare.parquet", [*TEXTS, "x"], [*LABELS, "rare"])
    with pytest.raises(InputError, match=r"--validation_file .*only 1 member"):
        read(path)
    assert read(path, validation_file=train).names == ["neg", "pos", "rare"]


def test_a_split_of_which_no_row_is_left_is_one_clear_error(tmp_path, train):
    test = write(tmp_path / "test.parquet", ["x"] * 2, ["meh"] * 2)
    with pytest.raises(InputError, match="test split has no row"):
        read(train, test_file=test, drop_bad_rows=True)
    options = TextDataArguments(drop_bad_rows=True)
    with pytest.raises(InputError, match="test split has no row"):  # in an evaluation
        labelled_split(read_table(test), "test", options, TEXT, [["neg", "pos"]])
    with pytest.raises(InputError, match=r"two classes.*\['pos'\]"):
        read(write(tmp_path / "one.parquet", labels=["pos"] * 40))


def test_the_report_of_a_large_table_is_short():
    assert listed(list(range(5))) == "0, 1, 2, 3, 4"
    assert listed(list(range(1006))) == "0, 1, 2, 3, 4 and 1,001 more"


@pytest.mark.parametrize(("column", "options"), [("labels", {}), ("stars", {"label_column": "stars"})])
def test_a_validation_split_replaces_a_test_split_without_labels_and_the_notes_say_so(monkeypatch, column, options):
    feature = ClassLabel(names=["neg", "pos"])
    hub(monkeypatch, column, feature, train=[0, 1] * 10, validation=[1, 1, 0], test=[-1, -1])
    splits = read_texts(TextDataArguments(dataset_name="glue/sst2", **options))
    assert splits.test["label"][:] == [1, 1, 0]
    assert ["hides its test labels" in splits.notes[0], "held out" in splits.notes[1]] == [True, True]


def test_a_test_split_is_left_out_where_nothing_can_replace_it_and_kept_where_it_has_labels(monkeypatch):
    hub(monkeypatch, train=[0, 1] * 10, test=[-1, -1])
    assert read_texts(TextDataArguments(dataset_name="some/data")).test is None
    hub(monkeypatch, train=[0, 1], validation=[1], test=[0, 1])
    assert [len(split) for _, split in read_texts(TextDataArguments(dataset_name="some/data"))] == [2, 1, 2]


def test_a_data_set_that_cannot_be_used_is_one_clear_error(monkeypatch):
    hub(monkeypatch, validation=[0, 1])
    with pytest.raises(InputError, match="train split in 'some/data'; it has: validation"):
        sources.read_hub("some/data", None)

    def load_dataset(name, config):
        raise ConnectionError("no network")

    monkeypatch.setattr(sources, "load_dataset", load_dataset)
    with pytest.raises(InputError, match=r"'some/data'.*no network"):
        sources.read_hub("some/data", None)
