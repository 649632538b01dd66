"""Errors of compiling, storing and opening a model, in words for the person who runs it."""

from __future__ import annotations

import os
import pwd
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AS_IT_IS = (
    "`mainspring compile --whole`, or `max_batch_size: 0` and the whole shapes as dims in config.pbtxt, "
    "serves the model as it is, one request at a time"
)
"""The remedy for models whose rows can't be separated."""


class CompileError(Exception):
    """The model can't be compiled; the text names the node or tensor, and what would help."""


class RowsMix(CompileError):
    """A row's outputs depend on other rows, so requests of different callers may not share an execution."""


class NoRows(CompileError):
    """The model has no axis that holds a request's rows; it may still be served whole."""


class CannotRun(CompileError):
    """Stock ONNX Runtime fails on the values that the model was tried with; it may run on others."""


class TextsTooLong(CannotRun):
    """Texts that it makes of its inputs don't fit their slots."""


class Overlong(Exception):
    """The same of samples for which shorter ones are to be tried, at whatever size it was seen."""


class NoSample(CannotRun):
    """It fails on all samples; on the operator's word the model may be served unverified."""


class StoreError(Exception):
    """An artifact is missing, altered or not usable here; the text names the path and the remedy."""


class ExecutableError(Exception):
    """An executable does not open or does not run; the text names the executable and says why."""


class Interrupted(ExecutableError):
    """A run was ended before it had computed its outputs, as was asked for."""


class ValuesError(ExecutableError):
    """A run failed on what its inputs hold; the text, which is for who sent them, says where and why."""


def let_go(error: BaseException) -> None:
    """Free what the functions that an error ended had in memory: what is tried next needs the room."""
    cause: BaseException | None = error
    # An error that is raised again from a later one is that one's context, too.
    seen = list[BaseException]()
    while cause is not None and cause not in seen:
        seen.append(cause)
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


@contextmanager
def malformed() -> Iterator[None]:
    """Turn errors of the onnx library about a contradictory model into a `CompileError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError) as error:
        raise CompileError(
            f"the model is malformed ({type(error).__name__}: {error}); see what "
            "onnx.checker.check_model says of it, so that the model's author can export it again"
        ) from error


@contextmanager
def reading(path: Path, root: Path) -> Iterator[None]:
    """Turn a refused permission to read ``path``, of the store ``root``, into a `StoreError`."""
    try:
        yield
    except PermissionError as error:
        denied = Path(error.filename or path)
        raise StoreError(
            f"can't read {denied}: {error.strerror}{owner_of(denied, error)}; its owner can make the store "
            f"readable with `chmod -R a+rX {root}`, or choose another store with --store DIR"
        ) from error


def owner_of(path: Path, error: OSError) -> str:
    """Return the owner of the path, or of the nearest folder above it, for the end of an error's sentence."""
    if not isinstance(error, PermissionError):
        return ""
    for place in (path, *path.parents):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        return f" ({place} belongs to {_user(owner)}, this is {_user(os.geteuid())})"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
