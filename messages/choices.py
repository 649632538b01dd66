"""Choices by name: the known words behind one that is unknown, and classes of a user's own. Pure."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LONGEST: Final = 100
"""Characters of a word that are compared."""
_LIKENESS: Final = 0.5
"""Least likeness of a word that is suggested, from 0 to 1 for the same one."""
_ALSO_CALLED: Final = {"gpu": "cuda", "nvidia": "cuda"}
"""Words that people write for a known one that looks otherwise."""


def one_of(word: str, known: Iterable[str]) -> str:
    """Return the known words as the end of a sentence: ``edf, fifo; did you mean 'fifo'?``."""
    words = [*known]
    return ", ".join(words) + did_you_mean(word, words)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ``; did you mean 'fifo'?`` with the known word that is most like this one, whatever the case of
    its letters; if none is like it, ``otherwise`` behind a semicolon, or nothing."""
    if near := nearest(word, known):
        return f"; did you mean {near!r}?"
    return f"; {otherwise}" if otherwise else ""


def nearest(word: str, known: Iterable[str], likeness: float = _LIKENESS) -> str:
    """Return the known word that is most like this one, whatever the case of letters; empty if none is."""
    by_small = {each.lower(): each for each in known if each}
    small = word[:_LONGEST].lower()
    near = get_close_matches(_ALSO_CALLED.get(small, small), by_small, n=1, cutoff=likeness)
    return by_small[near[0]] if near else ""


def policy_named(name: str, known: Mapping[str, type[T]], base: type[Any]) -> type[T]:
    """Return a known policy, or that of ``package.module:Class``; raise ValueError if there is none."""
    if name in known:
        return known[name]
    names = sorted(known)
    if ":" not in name:
        raise ValueError(
            f"there is no policy {name!r}; choose one of {', '.join(names)}, or name a class of your own as "
            f"package.module:Class{did_you_mean(name, names)}"
        )
    found: Any = imported("policy", name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"policy {name!r} is not a subclass of {base.__module__}.{base.__qualname__}")
    return found


def imported(what: str, name: str) -> Any:
    """Return what ``package.module:NAME`` names; raise ValueError, which says ``what`` that is."""
    module, _, wanted = name.partition(":")
    try:
        return getattr(importlib.import_module(module), wanted)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {name!r} can't be imported: {error}") from None
