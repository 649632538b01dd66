"""Python lists and numbers as arrays of a model's own type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS = "biuf"


def is_plain(value: object) -> bool:
    """Whether a value says nothing of its type: a list, a tuple or a number of Python's."""
    return isinstance(value, list | tuple | bool | int | float)


def cast_plain(name: str, value: object, dtype: str) -> NDArray[Any]:
    """Return Python numbers, in lists or alone, as an array of ``dtype``; raise TypeError if they don't fit.

    Real numbers are rounded to the nearest one of the type; whole numbers and truth values must be kept as
    they are.
    """
    wanted = np.dtype(dtype)
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if given.size == 0 and given.dtype == np.float64:
        return given.astype(wanted)
    if given.dtype.kind not in _NUMBERS or wanted.kind not in _NUMBERS:
        raise TypeError(
            f"input {name!r} is a {type(value).__name__} that makes an array of {given.dtype}, and the model "
            f"takes {dtype}; pass a numpy array of numbers"
        )
    with np.errstate(all="ignore"):
        cast = given.astype(wanted)
        kept = _kept(given, cast)
    if kept is not True:
        raise TypeError(
            f"input {name!r} holds {kept}, which {dtype}, the model's type, can't hold; "
            f"pass numbers that it can, or a numpy array of {dtype}"
        )
    return cast


def _kept(given: NDArray[Any], cast: NDArray[Any]) -> Any:
    """Return True if an array holds what it is to, else the first number that it does not hold."""
    if cast.dtype.kind == "f":
        # Beyond the largest number of the type; a whole number beyond what it counts in ones.
        lost = np.isfinite(given) & ~np.isfinite(cast)
        if given.dtype.kind in "iu":
            lost |= cast.astype(np.float64) != given
    elif given.dtype.kind == "f":
        lost = ~np.isfinite(given) | (cast.astype(np.float64) != given)
    else:
        lost = cast.astype(object) != given.astype(object)
    lost = np.asarray(lost)
    return given[lost].reshape(-1)[0] if lost.any() else True
