"""One table of ``mainspring.toml`` to one configuration struct, with errors that name what would be right.

A key that the struct does not have, a value of the wrong type and a missing key are each a `ConfigError`
that says file, table, key, and the nearest right key or what was expected. Nothing is guessed or ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec

Config = TypeVar("Config", bound=msgspec.Struct)

UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "bytes": "bytes",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
}
"""The endings of names that are units."""


class ConfigError(Exception):
    """The configuration can't be used; the text names the file, the key and what would be right."""


def build(struct: type[Config], table: Mapping[str, Any], where: str, elsewhere: Mapping[str, str]) -> Config:
    """Return the struct with the table's values; ``where`` names file and table in errors.

    ``elsewhere`` says for keys of other tables which table they belong to.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where} has no key {key!r}{suggestion(key, list(fields), elsewhere)}")
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            raise ConfigError(_wrong_value(where, key, value, fields[key].type, error)) from None
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        raise ConfigError(f"{where} needs the key {missing[0]!r}")
    try:
        return struct(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from None


def suggestion(key: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    """Return the end of an error's sentence about an unknown key: what was probably meant."""
    for name in known:
        stem, unit = split_unit(name)
        if unit and split_unit(key)[0] == stem:
            return f": it is given in {UNITS[unit]}, as {name!r}"
    if key in elsewhere:
        return f": it belongs to [{elsewhere[key]}]"
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; it knows {', '.join(sorted(known))}"


def split_unit(name: str) -> tuple[str, str]:
    """Return the name without its unit, and the unit, which is empty if it has none."""
    stem, _, ending = name.rpartition("_")
    return (stem, ending) if stem and ending in UNITS else (name, "")


def _wrong_value(where: str, key: str, value: Any, kind: Any, error: msgspec.ValidationError) -> str:
    unit = split_unit(key)[1]
    if isinstance(value, str) and unit and re.fullmatch(r"\s*[\d.]+\s*[A-Za-z]*\s*", value):
        return f"{where}: {key} is a plain number of {UNITS[unit]}, not the text {value!r}"
    expected = f"a number of {UNITS[unit]}" if unit else _type_name(kind)
    reason = str(error)
    detail = f" ({reason[0].lower()}{reason[1:]})" if not reason.startswith("Expected") else ""
    return f"{where}: {key} expects {expected}, not {value!r}{detail}"


def _type_name(kind: Any) -> str:
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a text in quotes",
        bool: "true or false",
        type(None): "nothing",
    }
    arguments = get_args(kind)
    if kind in names:
        return names[kind]
    if arguments and get_origin(kind) in (tuple, list):
        return f"a list, each item {_type_name(arguments[0])}"
    return " or ".join(_type_name(part) for part in arguments if part is not type(None)) or str(kind)
