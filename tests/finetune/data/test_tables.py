"""Tables as files: separators, encodings, lines, and why a file cannot be read."""

import os

import pandas as pd
import pytest
from datasets import config

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import PairDataArguments
from hf_bidir.finetune.data.sources import read_hub, read_table, row_lines
from hf_bidir.finetune.data.text_data import read_pairs

ROWS = {"text": ["a, b", "Ärger"], "label": ["1", "2"]}


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("name", "separator"), [("table.csv", ";"), ("TABLE.CSV", "\t"), ("table.tsv", "|"), ("a table [1].csv", ",")]
)
def test_the_separator_is_that_of_the_header_whatever_the_file_is_called(tmp_path, name, separator):
    lines = [("text", "label"), ('"a, b"', "1"), ("Ärger", "2")]
    file = write(tmp_path / name, "".join(f"{separator.join(line)}\n" for line in lines))
    assert read_table(file)[:] == ROWS


def same_time(path):
    """As archives with fixed times, `cp -p` and `rsync -t` set it."""
    os.utime(path, (315532800, 315532800))


WRITERS = {
    "csv": lambda rows, path: rows.to_csv(path, index=False),
    "jsonl": lambda rows, path: rows.to_json(path, orient="records", lines=True),
    "txt": lambda rows, path: path.write_text("\n".join(rows["text"])),
    "parquet": lambda rows, path: rows.to_parquet(path),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_replaced_file_gives_its_own_rows_also_where_path_size_and_time_are_the_same(tmp_path, suffix):
    for texts in (["good", "evil"], ["evil", "good"]):
        WRITERS[suffix](pd.DataFrame({"text": texts}), file := tmp_path / f"table.{suffix}")
        same_time(file)
        assert read_table(str(file)).map(lambda row: {"copy": row["text"]})["copy"][:] == texts


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "a.csv/datasets")
    with pytest.raises(InputError, match=r"expected HF_HOME to be a folder that can be written; \S+/datasets is not"):
        read_table(write(tmp_path / "a.csv", "text\na\n"))


def test_a_local_data_set_with_a_replaced_file_gives_its_own_rows(tmp_path):
    for texts in (["good", "evil"], ["evil", "good"]):
        WRITERS["csv"](pd.DataFrame({"text": texts}), file := tmp_path / "train.csv")
        same_time(file)
        assert read_hub(str(tmp_path), None)["train"]["text"][:] == texts


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_a_file_says_by_its_first_bytes_that_it_is_utf_16(tmp_path, encoding, suffix):
    content = {"csv": "text\nÄrger\n", "jsonl": '{"text": "Ärger"}\n', "txt": "Ärger\n"}[suffix]
    assert read_table(write(tmp_path / f"table.{suffix}", content, encoding))[:] == {"text": ["Ärger"]}


def test_columns_of_a_csv_file_are_texts_as_they_are_written(tmp_path):
    pairs = "source,target\n007,1.50\n010,2.0\nNA,null\n"
    file = write(tmp_path / "pairs.csv", pairs)
    splits = read_pairs(PairDataArguments(train_file=file, validation_file=file))
    assert splits.train[:] == {"source": ["007", "010", "NA"], "target": ["1.50", "2.0", "null"]}


def test_blanks_after_a_separator_belong_to_neither_names_nor_values(tmp_path):
    assert read_table(write(tmp_path / "a.csv", 'text, label\n"a, b", 1\n'))[:] == {"text": ["a, b"], "label": ["1"]}


def test_blank_lines_above_the_header_do_not_count(tmp_path):
    file = write(tmp_path / "a.csv", "\n  \ntext;label\na, b;1\n")
    assert read_table(file)[:] == {"text": ["a, b"], "label": ["1"]}
    assert row_lines(tmp_path / "a.csv") == [4]


def test_several_columns_may_have_no_name(tmp_path):
    table = read_table(write(tmp_path / "a.csv", "text,label,,\nx,1,,\n"))
    assert table.select_columns(["text", "label"])[:] == {"text": ["x"], "label": ["1"]}


def test_names_of_rows_as_r_writes_them_are_no_column(tmp_path):
    file = write(tmp_path / "a.csv", "text,label\n1,x,a\n2,y,b\n")
    assert read_table(file)[:] == {"text": ["x", "y"], "label": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "content", "encoding", "message"),
    [
        ("a.csv", "text,label\nx,1\none, two,1\n", "utf-8", r"header has 2 fields, line 3 has 3; put quotes .* ','"),
        ("a.csv", "text,label\none, two,1\nx,1\n", "utf-8", "header has 2 fields, line 2 has 3"),
        ("a.csv", 'text,label\n"two\nlines",1\n"open,1\nx,1\n', "utf-8", "a quote that opens in line 4 does not close"),
        ("a.csv", "text,label\nx,1\nÄrger,2\n", "cp1252", "line 3 holds .* 0xc4 .*'Ärger,2'.*save the file as UTF-8"),
        ("a.txt", "x\nÄrger\n", "cp1252", "line 2 holds the byte 0xc4"),
        ("a.jsonl", '{"text": "Ärger"}\n', "cp1252", "line 1 holds the byte 0xc4"),
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', "utf-8", "line 3 is not JSON"),
        ("a.jsonl", '{"text": "x"}\n["x"]\n', "utf-8", "line 2 holds a list; expected an object"),
        ("a.jsonl", '{"a": 1}\n\n{"a": "x"}\n', "utf-8", "a is a number in line 1 and a text in line 3"),
        ("a.parquet", "x", "utf-8", "cannot read .* as parquet: Parquet file size is 1 bytes"),
        ("a.csv", "text,label\n", "utf-8", "has no rows"),
        ("a.csv", "", "utf-8", "is empty"),
        ("a.csv", "text;label;text\nx;1;y\n", "utf-8", "columns 1 and 3 of .*a.csv are both called 'text'"),
        ("a.log", "x\n", "utf-8", "expected a file that ends in .parquet, .csv"),
        ("a.csv", "sep=;\ntext;label\nx;1\n", "utf-8", "a.csv, line 1: 'sep=;' is a command to Excel, .* remove the"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_with_the_cause(tmp_path, caplog, name, content, encoding, message):
    with pytest.raises(InputError, match=message) as error:
        read_table(write(tmp_path / name, content, encoding))
    assert len(str(error.value).splitlines()) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.csv", 'text,label\nx,1\n\n   \n"two\nlines",1\ny,2\n', [2, 5, 7]),
        ("a.jsonl", '{"text": "x"}\n\n{"text": "y"}\n', [1, 3]),
        ("a.json", '[{"text": "x"},\n{"text": "y"}]\n', []),
        ("a.parquet", "", []),
    ],
)
def test_a_row_is_named_by_the_line_where_it_begins(tmp_path, name, content, lines):
    assert row_lines(tmp_path / write(tmp_path / name, content)) == lines


def test_pairs_without_a_source_or_target_are_named_by_line_or_left_out(tmp_path):
    file = write(tmp_path / "pairs.csv", "source,target\na,\nb,c\n,d\ne,f\n")
    with pytest.raises(InputError, match=r"line 4: no source\n- .* line 2: no target\nCorrect these 2 rows"):
        read_pairs(PairDataArguments(train_file=file))
    splits = read_pairs(PairDataArguments(train_file=file, validation_share=0.5, drop_bad_rows=True))
    assert len(splits.train) + len(splits.validation) == 2
