"""Tables as files: dialects, a cache by content, and errors that name the file."""

import os

import pytest

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.sources import read_hub, read_table


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("name", "separator"), [("table.csv", ";"), ("TABLE.CSV", "\t"), ("table.tsv", "|"), ("a table [1].csv", ",")]
)
def test_the_separator_is_that_of_the_header_whatever_the_file_is_called(tmp_path, name, separator):
    lines = [("text", "label"), ('"a, b"', "1"), ("Ärger", "2")]
    file = write(tmp_path / name, "".join(f"{separator.join(line)}\n" for line in lines), "utf-8-sig")
    assert read_table(file)[:] == {"text": ["a, b", "Ärger"], "label": ["1", "2"]}


def test_columns_of_a_csv_file_are_texts_as_they_are_written(tmp_path):
    table = read_table(write(tmp_path / "a.csv", '\nsource, target,\n007, 1.50,\nNA,"a, b",\n'))
    assert table["source"][:] == ["007", "NA"]
    assert table["target"][:] == ["1.50", "a, b"]


def test_a_column_of_commas_in_a_tsv_file_is_one_column(tmp_path):
    assert read_table(write(tmp_path / "a.tsv", "text\na, b\n"))[:] == {"text": ["a, b"]}


@pytest.mark.parametrize("read", [read_table, lambda file: read_hub(os.path.dirname(file), None)["train"]])
def test_a_replaced_file_gives_its_own_rows_also_where_path_size_and_time_are_the_same(tmp_path, read):
    for texts in (["good", "evil"], ["evil", "good"]):
        file = write(tmp_path / "train.csv", "\n".join(["text", *texts]))
        os.utime(file, (315532800, 315532800))  # as archives with fixed times, `cp -p` and `rsync -t` set it
        assert read(file)["text"][:] == texts


@pytest.mark.parametrize(
    ("name", "content", "encoding", "named"),
    [
        ("a.csv", "text,label\nx,1\none, two,1\n", "utf-8", "a.csv.* 2 fields in line 3"),
        ("a.csv", "text,label\none, two,1\nx,1\n", "utf-8", "2 fields .*a.csv.* ','"),
        ("a.csv", 'text,label\nx,1\n"open,1\nx,1\n', "utf-8", "a.csv.*EOF inside string"),
        ("a.csv", "text,label\nÄrger,2\n", "cp1252", "a.csv.*utf-8.*0xc4"),
        ("a.txt", "Ärger\n", "cp1252", "a.txt.*utf-8.*0xc4"),
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', "utf-8", "a.jsonl.*JSON"),
        ("a.parquet", "x", "utf-8", "a.parquet.*Parquet"),
        ("a.csv", "text,label\n", "utf-8", "a.csv.*no data"),
        ("a.csv", "", "utf-8", "a.csv"),
        ("a.log", "x\n", "utf-8", r"\.parquet, \.csv.*a.log"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_with_the_cause(tmp_path, name, content, encoding, named):
    with pytest.raises(InputError, match=named) as error:
        read_table(write(tmp_path / name, content, encoding))
    assert len(str(error.value).splitlines()) == 1
