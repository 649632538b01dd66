"""A policy's options from what the configuration gives, with errors that say what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import msgspec


class NoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a policy that has none."""


def read_options(policy: str, struct: type[msgspec.Struct], given: Mapping[str, object]) -> msgspec.Struct:
    """Return the options of a policy; raise ValueError for an unknown key or a value of the wrong type."""
    known = [field.name for field in msgspec.structs.fields(struct)]
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            has = f"it has {', '.join(known)}" if known else "it has none"
            hint = f"did you mean {nearest[0]!r}?" if nearest else has
            raise ValueError(f"policy {policy!r} has no option {key!r}; {hint}")
    try:
        return msgspec.convert(dict(given), struct)
    except msgspec.ValidationError as error:
        raise ValueError(f"policy {policy!r}: {error}") from None
