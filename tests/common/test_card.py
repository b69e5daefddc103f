"""The header of a README.md, whatever bytes and blanks are around it."""

import pytest

from hf_bidir.common.card import parsed_card, with_note

HEADER = "---\nlicense: mit\n---\n"
HEADERS = {
    "plain": HEADER,
    "byte-order mark": f"\ufeff{HEADER}",
    "nothing after it": HEADER.rstrip("\n"),
    "blanks at the ends of its lines": HEADER.replace("---", "--- "),
    "line breaks of Windows": HEADER.replace("\n", "\r\n"),
    "blank line above": f"\n{HEADER}",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("text", ["", "# Für\n"])
def test_a_note_stands_between_the_header_and_the_text(header, text):
    content = (header + text * header.endswith("\n")).encode()
    assert parsed_card(content, "it").data.license == "mit"
    card = parsed_card(with_note(content, "a note"), "it")
    assert card.data.license == "mit"
    assert card.text.strip() == f"> a note\n\n{text * header.endswith(chr(10))}".strip()


@pytest.mark.parametrize("content", ["# Für\n".encode(), "# Für\n".encode("cp1252"), b""])
def test_a_note_stands_above_a_text_without_a_header_in_any_encoding(content):
    assert with_note(content, "a note") == b"\n> a note\n\n" + content
