"""The text format of protocol buffers, read without a schema: what ``config.pbtxt`` is written in. Pure.

Syntax as at https://protobuf.dev/reference/protobuf/textformat-spec/, without extensions and ``Any``. What a
value must be, the reader of its field decides; each value knows its line, so that errors can name it:
protobuf's own reader forgets the lines of what it has read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_DEPTH = 100
"""Messages within messages."""
MAX_CHARACTERS = 1 << 20
MAX_VALUES = 20_000
"""Most values in the whole text, each piece of a quoted text counted: what people write has hundreds, and
reading this many takes a fraction of a second."""
_MOST_DIGITS = 100

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n\f\v]+|\#[^\n]*)+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:,;-])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "?": b"?", "\\": b"\\", "'": b"'", '"': b'"',
}  # fmt: skip
_SPECIAL = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_CLOSING = {"{": "}", "<": ">"}


class SyntaxFault(ValueError):
    """The text is not in the text format; the message says at which line, and what was expected."""


class Word(str):
    """An identifier as a value: the name of an enum's value, ``true`` or ``false``."""

    __slots__ = ()


class Entry(NamedTuple):
    """One value of a field, and where it stands."""

    value: Message | Word | str | int | float
    line: int


class Message(dict[str, list[Entry]]):
    """The values of each field, in their order; a field that stands more than once has more than one."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str) -> Message:
    """Return the fields of the text; raise `SyntaxFault`.

    It takes time in proportion to the text, and no longer than `MAX_VALUES` take.
    """
    if len(text) > MAX_CHARACTERS:
        raise SyntaxFault(f"it has {len(text):,} characters; more than {MAX_CHARACTERS:,} make no sense")
    return _Reader(_tokens(text)).message("", 0)


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            what = "a text that does not end on its line" if text[at] in "\"'" else repr(text[at])
            raise SyntaxFault(f"line {line}: {what} can't stand here")
        if found.lastgroup != "space":
            yield _Token(str(found.lastgroup), found[0], line)
        line += found[0].count("\n")
        at = found.end()
    yield _Token("end", "the end", line)


class _Reader:
    """Goes through the tokens once."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self._tokens = tokens
        self._next = next(tokens)
        self._values = 0

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens, token)
        return token

    def _count(self) -> None:
        """Count a value, or a piece of one."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise SyntaxFault(
                f"line {self._next.line}: more than {MAX_VALUES:,} values make no sense; leave some out"
            )

    def _taken(self, *marks: str) -> str:
        """Take the next token if it is one of these marks; return it, or an empty text."""
        return self._take().text if self._next.kind == "mark" and self._next.text in marks else ""

    def _fail(self, expected: str) -> SyntaxFault:
        token = self._next
        return SyntaxFault(f"line {token.line}: {expected} is expected, not {token.text[:40]}")

    def message(self, closing: str, depth: int) -> Message:
        """Read fields up to ``closing``, or to the end of the text."""
        if depth > MAX_DEPTH:
            raise SyntaxFault(f"line {self._next.line}: messages are nested more than {MAX_DEPTH} deep")
        found = Message()
        while not (self._next.kind == "end" if not closing else self._taken(closing)):
            name = self._next
            if name.kind != "word":
                raise self._fail(f"the name of a field{f' or {closing!r}' if closing else ''}")
            self._take()
            self._field(found.setdefault(name.text, []), depth)
            self._taken(",", ";")
        return found

    def _field(self, entries: list[Entry], depth: int) -> None:
        """Read a field's value, or its values in a list."""
        self._count()
        colon = bool(self._taken(":"))
        if not self._taken("["):
            entries.append(self._value(depth, scalar=colon))
            return
        if self._taken("]"):
            return
        while True:
            self._count()
            entries.append(self._value(depth, scalar=colon))
            if self._taken("]"):
                return
            if not self._taken(","):
                raise self._fail("',' or ']'")

    def _value(self, depth: int, *, scalar: bool) -> Entry:
        line = self._next.line
        if opening := self._taken("{", "<"):
            return Entry(self.message(_CLOSING[opening], depth + 1), line)
        if not scalar:
            raise self._fail("':' or '{'")
        if self._next.kind == "text":
            return Entry(self._text(), line)
        sign = -1 if self._taken("-") else 1
        token = self._next
        if token.kind == "number":
            self._take()
            return Entry(sign * _number(token), line)
        if token.kind == "word" and (sign > 0 or token.text.lower() in _SPECIAL):
            self._take()
            special = _SPECIAL.get(token.text.lower())
            return Entry(Word(token.text) if special is None else sign * special, line)
        raise self._fail("a number" if sign < 0 else "a value")

    def _text(self) -> str:
        """Read texts that follow one another: they are one."""
        line, data = self._next.line, b""
        while self._next.kind == "text":
            self._count()
            data += _unescaped(self._take())
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SyntaxFault(f"line {line}: the text is not UTF-8") from None


def _number(token: _Token) -> int | float:
    text = token.text
    if len(text) >= _MOST_DIGITS:
        # Of this size no field takes any, and Python writes no such number out in an error.
        return float("inf")
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if text.isdigit():
        if len(text) > 1 and text[0] == "0":
            if set(text) & {"8", "9"}:
                raise SyntaxFault(
                    f"line {token.line}: {text} begins with 0 and so is octal, where 8 and 9 are none"
                )
            return int(text, 8)
        return int(text)
    return float(text.rstrip("fF"))


def _unescaped(token: _Token) -> bytes:
    """Return the bytes that a quoted text stands for."""
    body, found, at = token.text[1:-1], bytearray(), 0
    for escape in _ESCAPE.finditer(body):
        found += body[at : escape.start()].encode()
        found += _escaped(escape, token.line)
        at = escape.end()
    found += body[at:].encode()
    return bytes(found)


def _escaped(escape: re.Match[str], line: int) -> bytes:
    octal, byte, short, long, letter = escape.groups()
    if octal or byte:
        return (int(octal, 8) & 0xFF if octal else int(byte, 16)).to_bytes()
    if short or long:
        number = int(short or long, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise SyntaxFault(f"line {line}: {escape[0]} is not a character")
        return chr(number).encode()
    if letter not in _LETTERS:
        raise SyntaxFault(f"line {line}: {escape[0]!r} is not an escape")
    return _LETTERS[letter]
