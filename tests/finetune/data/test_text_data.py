import json

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import TextDataArguments
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import labelled_split, labelled_splits
from hf_bidir.finetune.data.text_data import fit_max_length, read_texts

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


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".json"])
def test_every_kind_of_table_is_read_alike(tmp_path, suffix):
    file = tmp_path / f"train{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps([{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]))
    else:
        write(file)
    splits = read(str(file), validation_file=str(file))
    assert splits.train["text"][:] == TEXTS
    assert [splits.names[label] for label in splits.train["label"]] == LABELS


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_file": None}, "expected training data"),
        ({"train_file": "nowhere.csv"}, "expected a data file at nowhere.csv"),
        ({"text_column": "txt"}, 'no column txt; its columns are: text, label.*Did you mean "text"'),
        ({"label_column": "stars"}, "no column stars; its columns are: text, label"),
        ({"class_names": ["only"]}, "expected 2 different class names"),
        ({"class_names": ["same", "same"]}, r"'same' \(0, 1\)"),
        ({"validation_share": 1.5}, "validation_share between 0 and 1"),
    ],
)
def test_options_that_do_not_fit_the_data_are_one_clear_error(train, options, message):
    with pytest.raises(InputError, match=message):
        read_texts(TextDataArguments(**({"train_file": train} | options)))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (
            ["good", None, " ", "x"],
            ["pos", "neg"] * 2,
            r"test.parquet \(the test split\), rows 1, 2 \(from 0\): no text",
        ),
        (["x"] * 4, ["pos", "neg", "meh", "meh"], r"that the train split lacks: 'meh' \(2\); it has 'neg', 'pos'"),
        (["x"] * 4, ["pos", None, "neg", "neg"], r"row 1 \(from 0\): no label"),
        (["x"] * 4, [1.0, float("nan"), 0.0, 1.0], r"row 1 \(from 0\): no label"),
        (["x"] * 4, [0.5, 1.0, 0.0, 1.0], "expected integers or names as labels; it has '0.5'"),
        (["x"] * 4, [[0, 1]] * 4, r"expected integers or names as labels; it has '\[0, 1\]'"),
        ([1, 2, 3, 4], ["pos", "neg"] * 2, "expected texts as text; the column holds 1"),
    ],
)
def test_rows_that_cannot_be_used_are_one_clear_error(tmp_path, texts, labels, message):
    train, test = write(tmp_path / "train.parquet"), write(tmp_path / "test.parquet", texts, labels)
    with pytest.raises(InputError, match=message):
        read(train, test_file=test)


BAD = [
    ("", "pos"),  # line 42, after the header and 40 rows
    ("two\nlines", ""),  # lines 43 and 44
    ("x", "POS"),
    ("x", "neg "),
    ("x", "rare"),
]


@pytest.fixture
def bad_files(tmp_path):
    """A training and a test file with rows that cannot be used."""
    train = write(tmp_path / "train.csv", [*TEXTS, *(text for text, _ in BAD)], [*LABELS, *(label for _, label in BAD)])
    test = write(tmp_path / "test.csv", ["x", "y", "z"], ["pos", "", "rare"])
    return {"train_file": train, "test_file": test}


def test_one_error_names_every_problem_of_every_split_by_the_lines_of_the_files(bad_files):
    with pytest.raises(InputError) as error:
        read_texts(TextDataArguments(**bad_files))
    assert str(error.value).splitlines() == [
        "the data cannot be used:",
        "- train.csv (the train split), line 42: no text",
        "- train.csv (the train split), line 43: no label",
        "- train.csv (the train split), lines 45, 46: labels that differ only by case or blanks from one with more "
        "rows: 'POS' from 'pos', 'neg ' from 'neg'; --class_names keeps them",
        "- train.csv (the train split), line 47: no other row of class 'rare', so none can be held out for validation",
        "- test.csv (the test split), line 3: no label",
        "- test.csv (the test split), line 4: labels that the train split lacks: 'rare' (1); it has 'neg', 'pos'",
        "Correct these 7 rows, or pass --drop_bad_rows to go on without them.",
    ]


def test_rows_that_cannot_be_used_are_left_out_on_request_and_the_notes_say_which(bad_files):
    splits = read_texts(TextDataArguments(**bad_files, drop_bad_rows=True))
    assert sorted([*splits.train["text"], *splits.validation["text"]]) == sorted(TEXTS)
    assert splits.test["text"][:] == ["x"]
    assert splits.notes[0].startswith("7 rows were left out. train.csv (the train split), line 42: no text;")


def test_a_missing_column_is_reported_beside_the_rows_and_cannot_be_left_out(tmp_path, bad_files):
    bad_files["test_file"] = write(tmp_path / "other.csv", ["x"], ["pos"], columns=("text", "labl"))
    with pytest.raises(
        InputError, match=r"line 42: no text(?s:.*)other.csv .* has no column label or labels;.*\"labl\""
    ):
        read_texts(TextDataArguments(**bad_files, drop_bad_rows=True))


def test_a_split_of_which_no_row_is_left_is_one_clear_error(tmp_path, train):
    test = write(tmp_path / "test.parquet", ["x"] * 2, ["meh"] * 2)
    with pytest.raises(InputError, match=r"No row of test.parquet \(the test split\) can be used"):
        read(train, test_file=test, drop_bad_rows=True)


def test_the_report_of_a_large_table_is_short(tmp_path):
    with pytest.raises(InputError) as error:
        read(write(tmp_path / "train.csv", ["x"] * 400, [f"{row % 300} words" for row in range(400)]))
    assert "lines 102, 103, 104, 105, 106 and 195 more: no other row of class '100 words'" in str(error.value)
    assert len(str(error.value)) < 1000


def test_class_names_keep_labels_that_differ_only_by_case(tmp_path):
    path = write(tmp_path / "train.csv", labels=["a", "A"] * 20)
    assert read(path, class_names=["capital", "small"]).values == ["A", "a"]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_integers_stored_as_text_are_the_same_labels_in_the_order_of_their_size(tmp_path, suffix):
    labels = [(row % 12) + 1 for row in range(36)]
    path = write(tmp_path / f"train{suffix}", [f"t {row}" for row in range(36)], list(map(str, labels)))
    test = write(tmp_path / "test.parquet", ["x"] * 3, [1.0, 2.0, 12.0])
    splits = read(path, validation_file=path, test_file=test)
    assert splits.values == splits.names == [str(label) for label in range(1, 13)]
    assert splits.test["label"][:] == [0, 1, 11]


VERSIONS = ["3.8", "3.10"] * 20


@pytest.mark.parametrize(
    ("suffix", "names"), [(".parquet", None), (".jsonl", None), (".jsonl", ["new", "old"]), (".csv", ["new", "old"])]
)
def test_texts_that_look_like_decimals_may_be_labels(tmp_path, suffix, names):
    path = write(tmp_path / f"train{suffix}", labels=VERSIONS)
    splits = read(path, validation_file=path, class_names=names)
    assert splits.values == ["3.10", "3.8"]
    assert splits.names == (names or splits.values)


@pytest.mark.parametrize(
    ("suffix", "labels", "names", "message"),
    [
        (".csv", VERSIONS, None, "labels; it has '3.10'; if these are classes, name them with --class_names"),
        (".parquet", [3.8, 3.1] * 20, ["old", "new"], r"labels; it has '3.1'$"),
    ],
)
def test_decimals_in_a_column_without_type_or_of_numbers_are_no_classes(tmp_path, suffix, labels, names, message):
    with pytest.raises(InputError, match=f"(?m){message}"):
        read(write(tmp_path / f"train{suffix}", labels=labels), class_names=names)


def test_a_model_of_versions_is_evaluated_on_a_csv_file(tmp_path):
    table = read_table(write(tmp_path / "test.csv", labels=VERSIONS))
    options = {"column": None, "guesses": ("text",), "names": ["3.10", "3.8"], "name": "test"}
    split = labelled_split(table, TextDataArguments(), **options, file=str(tmp_path / "test.csv"))
    assert split["label"][:2] == [1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["a"] * 5 + ["b"] * 5 + ["rare"] * 2,
            r"2 of 12 rows for validation: both parts need each of the 3 classes, of which \"rare\" has the fewest",
        ),
        (["pos"] * 12, "expected at least two classes"),
    ],
)
def test_classes_that_cannot_be_held_out_are_one_clear_error(tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "train.parquet", [f"text {row}" for row in range(12)], labels))


ROWS = [f"the film number {row}" for row in range(12)]


@pytest.mark.parametrize("remove", [False, True])
def test_evaluation_texts_that_repeat_a_training_text_are_counted_and_removed_on_request(tmp_path, remove):
    test = write(tmp_path / "test.parquet", ["new", "THE film  number 3", ROWS[3]])
    splits = read(write(tmp_path / "train.parquet", ROWS), validation_share=0.5, test_file=test, remove_repeated=remove)
    done = "removed." if remove else "kept; --remove_repeated removes them."
    assert splits.notes[-1] == (
        "2 of 3 test texts repeat a text of an earlier split (same first 100 characters: 2). They were " + done
    )
    assert splits.test["text"][:] == (["new"] if remove else ["new", "THE film  number 3", ROWS[3]])
    assert (len(splits.train), len(splits.validation)) == (6, 6)


def test_removal_of_every_evaluation_text_is_refused(train):
    with pytest.raises(InputError, match="every text of the validation split repeats"):
        read(train, validation_file=train, remove_repeated=True)


@pytest.fixture
def model():
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BidirBertModel(BidirBertConfig(**shape, vocab_size=30, max_position_embeddings=32))


def test_the_default_length_is_lowered_to_the_positions_of_the_model_and_a_longer_one_refused(model):
    data = TextDataArguments()
    fit_max_length(data, {}, model, "some-bert")
    assert data.max_length == 32
    with pytest.raises(InputError, match="at most 32, the positions that some-bert has; got 64; pass --max_length 32"):
        fit_max_length(TextDataArguments(max_length=64), {"max_length": 64}, model, "some-bert")
