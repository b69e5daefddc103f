"""The header of a README.md, whatever bytes and line breaks are around it."""

import pytest

from hf_bidir.common.card import parsed_card, rounded, with_note

HEADER = "---\nlicense: mit\n---\n"
HEADERS = {
    "plain": HEADER,
    "byte-order mark": f"\ufeff{HEADER}",
    "nothing after it": HEADER.rstrip("\n"),
    "line breaks of Windows": HEADER.replace("\n", "\r\n"),
    "blank line above": f"\n{HEADER}",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_note_stands_between_the_header_and_the_text(header):
    text = "# Für\n" if header.endswith("\n") else ""
    content = (header + text).encode()
    assert parsed_card(content, "it").data.license == "mit"
    card = parsed_card(with_note(content, "a note"), "it")
    assert card.data.license == "mit"
    assert card.text.strip() == f"> a note\n\n{text}".strip()


@pytest.mark.parametrize("content", ["# Für\n".encode(), "# Für\n".encode("cp1252"), b""])
def test_a_note_stands_above_a_text_without_a_header_in_any_encoding(content):
    assert with_note(content, "a note") == b"\n> a note\n\n" + content


@pytest.mark.parametrize(
    ("value", "printed"), [(0.81254, "0.8125"), (0, "0.0000"), (0.001, "0.0010"), (0.00012345, "0.0001234")]
)
def test_small_numbers_have_four_significant_digits(value, printed):
    assert rounded(value) == rounded(-value).removeprefix("-") == printed
