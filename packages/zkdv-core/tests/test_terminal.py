"""What commands print, without running one."""

import json
import math

import pytest

from zkdv.cli import _terminal as terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, with ünïcode and 漢字", "plain text, with ünïcode and 漢字"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("\u202edrowssap", r"\u202edrowssap"),
        ("\x9b31m", r"\x9b31m"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_text_of_strangers_reaches_the_terminal_escaped(text, shown):
    assert terminal.harmless(text) == shown


def test_json_has_digests_in_hexadecimal_and_no_number_that_json_lacks(capsys):
    terminal.write_json({"digest": b"\x00\xff", "distance": math.inf, "nothing": math.nan, "nested": [(1, b"\x01")]})
    assert json.loads(capsys.readouterr().out) == {
        "digest": "00ff",
        "distance": "inf",
        "nothing": "nan",
        "nested": [[1, "01"]],
    }
