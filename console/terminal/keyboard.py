"""Bytes of a terminal to names of keys, one after the other as they come."""

from __future__ import annotations

import os
import select
import termios
import tty
from collections.abc import Iterator
from types import TracebackType

_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[7~": "home",
    "[8~": "end",
    "[5~": "page up",
    "[6~": "page down",
    "[Z": "back tab",
}
"""Names of keys by the sequence that terminals send after an escape."""
_LONGEST = 8
"""Characters of an escape sequence at most; a longer one is none."""
_CONTROL = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", " ": "space"}


def keys(text: str) -> Iterator[str]:
    """Yield the names of keys in what a terminal sent; unknown sequences are passed over."""
    while text:
        first, text = text[0], text[1:]
        if first != "\x1b":
            name = _CONTROL.get(first, first)
            if name.isprintable():
                yield name
        elif not text or text[0] not in "[O":
            yield "escape"
        else:
            length = next((at for at in range(1, min(len(text), _LONGEST)) if "@" <= text[at] <= "~"), None)
            if length is None:
                return
            sequence, text = text[: length + 1], text[length + 1 :]
            if sequence in _SEQUENCES:
                yield _SEQUENCES[sequence]


class Keyboard:
    """The terminal of a process, so that keys come as they are pressed and are not shown."""

    def __init__(self, descriptor: int) -> None:
        """Take a descriptor that is a terminal's."""
        self._descriptor = descriptor

    def __enter__(self) -> Keyboard:
        """Change how the terminal sends keys."""
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def pressed(self) -> list[str]:
        """Return the keys that were pressed since the last call; ``["hung up"]`` if the terminal is gone."""
        if not select.select([self._descriptor], [], [], 0)[0]:
            return []
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:
            data = b""
        return [*keys(data.decode(errors="ignore"))] if data else ["hung up"]
