"""What terminals send, as names of keys."""

from __future__ import annotations

import os
import pty
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.console.terminal.running import Keyboard, keys


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ("q", ["q"]),
        ("12 \t\r\x7f", ["1", "2", "space", "tab", "enter", "backspace"]),
        ("\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "page up", "page down"]),
        ("\x1b[H\x1b[4~\x1b[Z", ["home", "end", "back tab"]),
        ("\x1b", ["escape"]),
        ("\x1bx", ["escape", "x"]),
        ("\x1b[15~a", ["a"]),
        ("\x1b[", []),
        ("\x01\x02z", ["z"]),
        ("ä{}", ["ä", "{", "}"]),
    ],
)
def test_bytes_are_named(sent: str, named: list[str]) -> None:
    assert list(keys(sent)) == named


@given(st.text())
def test_nothing_that_is_sent_fails(sent: str) -> None:
    assert all(name and name.isprintable() for name in keys(sent))


def test_a_terminal_is_left_as_it_was() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with Keyboard(theirs) as keyboard:
        assert keyboard.pressed() == []
        os.write(ours, b"1\x1b[B")
        assert keyboard.pressed() == ["1", "down"], "keys come without a line's end"
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
    assert termios.tcgetattr(theirs) == before
    with pytest.raises(ValueError, match="test"), Keyboard(theirs):
        raise ValueError("test")
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)


def test_a_terminal_that_is_gone_says_so() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert Keyboard(reading).pressed() == ["hung up"]
    os.close(reading)
