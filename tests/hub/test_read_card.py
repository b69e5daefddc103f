"""read_card: a README.md that cannot be read is named, with the cause."""

import pytest
from typer.testing import CliRunner

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.cli import app
from hf_bidir.common.card import read_card


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"---\nlicense: [mit\n---\n# Mine\n",
            r"header of run/README.md is not that of a model card: while parsing .*line 1",
        ),
        (b"---\n- mit\n---\n# Mine\n", "is not that of a model card: repo card metadata block should be a dict"),
        (b"---\n1: mit\n---\n# Mine\n", r"is not that of a model card: .*keywords must be strings"),
        (b"---\nlicense: mit\n# Mine\n", "the header of run/README.md has no end. Correct the header, between the two"),
        ("# Für".encode("cp1252"), r"run/README.md is not UTF-8 .*position 3.*save it as UTF-8"),
    ],
)
def test_a_readme_that_cannot_be_read_is_named_with_the_cause(tmp_path, content, message):
    (tmp_path / "run").mkdir()
    readme = tmp_path / "run/README.md"
    readme.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_card(readme)


def test_a_mark_of_utf_8_does_not_hide_the_header_of_a_readme(tmp_path):
    (tmp_path / "README.md").write_bytes("---\nlicense: mit\n---\n# Für\n".encode("utf-8-sig"))
    assert read_card(tmp_path / "README.md").data.license == "mit"


@pytest.mark.parametrize("command", [["card"], ["card", "--check"], ["push", "--dry-run", "me/mine"], ["evaluate"]])
def test_commands_say_in_one_line_that_the_readme_cannot_be_read(tmp_path, command):
    small = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 8)
    config = BidirBertConfig(**small, num_hidden_layers=1, num_attention_heads=1)
    BidirBertForSequenceClassification(config).save_pretrained(tmp_path / "mine")
    (tmp_path / "mine/README.md").write_text("---\nlicense: [mit\n---\n", encoding="utf-8")
    name, *options = command
    told = CliRunner().invoke(app, [name, str(tmp_path / "mine"), *reversed(options)])
    assert (told.exit_code, len(told.stderr.splitlines())) == (2, 1), told.output
    assert "the header of mine/README.md is not that of a model card" in told.stderr
