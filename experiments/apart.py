"""A function in a process of its own, which may die or hang in native code and takes nothing with it."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Crashed(Exception):
    """The function raised, or its process died or gave no answer in time; the text says which."""


class Apart(Generic[Item, Answer]):
    """A process that calls ``function(item, folder)`` for one item after the other.

    ``function`` is a module's own, so that the process can import it; ``folder`` is for its files, stays the
    same and is deleted with the process. After `Crashed` another process has to be made.
    """

    def __init__(self, function: Callable[[Item, Path], Answer]) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, item: Item, longest_s: float) -> Answer:
        """Return the function's value; raise `Crashed` if there is none after ``longest_s``."""
        try:
            if not self._ready:
                self._ready = bool(self._link.recv())
            self._link.send(item)
            if not self._link.poll(longest_s):
                raise Crashed(f"no answer in {longest_s:g} s")
            error, answer = self._link.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise Crashed(f"process ended: {self._process.exitcode}") from None
        if error:
            raise Crashed(error)
        value: Answer = answer
        return value

    def close(self) -> None:
        """End the process."""
        self._link.close()
        self._process.kill()
        self._process.join()


def _serve(link: Connection, function: Callable[[Any, Path], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="mainspring-apart-") as folder:
        link.send(True)
        while True:
            try:
                item = link.recv()
            except EOFError:
                return
            try:
                said: tuple[str, Any] = ("", function(item, Path(folder)))
            except Exception as error:  # Whatever escapes the function is what the caller looks for.
                said = (f"{type(error).__name__}: {error}", None)
            link.send(said)
