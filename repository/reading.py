"""Typed reading of a message's fields, with errors and warnings that name line and field. Pure."""

from __future__ import annotations

from mainspring.messages.choices import did_you_mean
from mainspring.repository.fields import APART, OVER, READ, REFUSED
from mainspring.repository.textproto import Entry, Message, Word

MOST_WARNINGS = 50
"""Most warnings of one file: after these comes one that says so."""
LISTS = frozenset({"gpus"})
"""Fields of many values, of which 0 is one like any other."""


class ConfigFault(ValueError):
    """The configuration can't be served as it is; the text names line and field, and what would be right."""


class Fields:
    """One message of the file. Warnings of all messages go to one list."""

    def __init__(self, message: Message, kind: str, warnings: list[str], line: int = 1) -> None:
        """``kind`` is the name of the field that the message is the value of; "" is the file itself."""
        self.kind = kind
        self.warnings = warnings
        self.where = f"line {line}"
        self._message = message
        self._line = line

    def check(self) -> None:
        """Warn of each field that is not honoured, here and further in; raise `ConfigFault` for some."""
        for name, entries in self._message.items():
            refusal = REFUSED.get(self.kind, {}).get(name)
            if refusal is not None and not _is_false(entries):
                raise ConfigFault(f"{self.place(name)}: {name} can't be honoured: {refusal}")
            if name in READ[self.kind]:
                kind = APART.get((self.kind, name), name)
                for entry in entries:
                    if isinstance(entry.value, Message) and kind in READ:
                        Fields(entry.value, kind, self.warnings, entry.line).check()
            elif refusal is None:
                self._warn_of(name, entries)

    def _warn_of(self, name: str, entries: list[Entry]) -> None:
        if len(self.warnings) > MOST_WARNINGS:
            return
        over = OVER.get(self.kind, {})
        if name in over:
            if name in LISTS or not _is_false(entries):
                self.warn(name, over[name])
            return
        known = [*READ[self.kind], *over, *REFUSED.get(self.kind, {})]
        self.warn(name, f"Mainspring does not know it{did_you_mean(name, known)}")

    def warn(self, name: str, why: str) -> None:
        """Say that a field is not honoured, and why that is so."""
        if len(self.warnings) == MOST_WARNINGS:
            self.warnings.append(f"{self.place(name)}: there is more that is ignored, from this line on")
        if len(self.warnings) > MOST_WARNINGS:
            return
        whose = f" of {self.kind}" if self.kind else ""
        self.warnings.append(f"{self.place(name)}: {name[:80]}{whose} is ignored: {why}")

    def place(self, name: str) -> str:
        """Return where the field stands, or its message if it does not."""
        entries = self._message.get(name)
        return f"line {entries[0].line}" if entries else self.where

    def has(self, name: str) -> bool:
        """Return whether the field is there."""
        return name in self._message

    def messages(self, name: str) -> list[Fields]:
        """Return every value of a field whose values are messages."""
        found = []
        for entry in self._message.get(name, []):
            if not isinstance(entry.value, Message):
                raise self._wrong(name, entry, "a message in braces")
            kind = APART.get((self.kind, name), name)
            found.append(Fields(entry.value, kind, self.warnings, entry.line))
        return found

    def message(self, name: str) -> Fields | None:
        """Return the one message of this name, if it is there; raise `ConfigFault` if it is there twice."""
        found = self.messages(name)
        if len(found) > 1:
            raise ConfigFault(f"{found[1].where}: {name} stands here again; it may stand once")
        return found[0] if found else None

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        entry = self._one(name)
        if entry is None:
            return default
        if not isinstance(entry.value, str) or isinstance(entry.value, Word):
            raise self._wrong(name, entry, "a text in quotes")
        return entry.value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return every value of a field whose values are texts."""
        found = []
        for entry in self._message.get(name, []):
            if not isinstance(entry.value, str) or isinstance(entry.value, Word) or not entry.value:
                raise self._wrong(name, entry, "a text in quotes")
            found.append(str(entry.value))
        return tuple(found)

    def word(self, name: str, default: str) -> str:
        """Return an enum's value."""
        entry = self._one(name)
        if entry is None:
            return default
        if not isinstance(entry.value, Word):
            raise self._wrong(name, entry, "a name without quotes")
        return str(entry.value)

    def flag(self, name: str) -> bool:
        """Return a truth value, false if it is not there."""
        entry = self._one(name)
        if entry is None:
            return False
        if entry.value not in ("true", "false", "t", "f", "True", "False", 0, 1):
            raise self._wrong(name, entry, "true or false")
        return not _is_false([entry])

    def number(self, name: str, default: int | None, least: int, most: int) -> int | None:
        """Return a whole number within bounds."""
        entry = self._one(name)
        return default if entry is None else self._number(name, entry, least, most)

    def count(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds that has a default."""
        found = self.number(name, default, least, most)
        assert found is not None
        return found

    def numbers(self, name: str, least: int, most: int) -> tuple[int, ...]:
        """Return every value of a field whose values are whole numbers within bounds."""
        return tuple(self._number(name, entry, least, most) for entry in self._message.get(name, []))

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return every value of a field whose values are truth values."""
        return tuple(not _is_false([entry]) for entry in self._message.get(name, []))

    def reals(self, name: str) -> tuple[float, ...]:
        """Return every value of a field whose values are numbers."""
        found = []
        for entry in self._message.get(name, []):
            if isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
                raise self._wrong(name, entry, "a number")
            found.append(float(entry.value))
        return tuple(found)

    def _number(self, name: str, entry: Entry, least: int, most: int) -> int:
        if not isinstance(entry.value, int):
            raise self._wrong(name, entry, "a whole number")
        if not least <= entry.value <= most:
            raise ConfigFault(
                f"line {entry.line}: {name} is {entry.value}; it must be from {least} to {most}"
            )
        return entry.value

    def _one(self, name: str) -> Entry | None:
        entries = self._message.get(name, [])
        if len(entries) > 1:
            raise ConfigFault(f"line {entries[1].line}: {name} stands here again; it may stand once")
        return entries[0] if entries else None

    def _wrong(self, name: str, entry: Entry, expected: str) -> ConfigFault:
        given = "a message" if isinstance(entry.value, Message) else repr(entry.value)[:60]
        return ConfigFault(f"line {entry.line}: {name} must be {expected}, not {given}")


def _is_false(entries: list[Entry]) -> bool:
    """Say whether a field means the same as its absence."""
    return all(entry.value in ("false", "f", "False", 0, "") for entry in entries)
