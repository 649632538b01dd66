"""The known words that a message for people gives behind one that is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

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


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like this one, whatever the case of letters; empty if none is."""
    by_small = {each.lower(): each for each in known if each}
    small = word[:_LONGEST].lower()
    near = get_close_matches(_ALSO_CALLED.get(small, small), by_small, n=1, cutoff=_LIKENESS)
    return by_small[near[0]] if near else ""
