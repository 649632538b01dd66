"""What `mainspring up` says of its start: a line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TextIO

_NUMBERS = re.compile(r"\d[\d,.]*")


class Progress:
    """Shows the step that a start has come to; call it as often as is convenient."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._rewrites = self._file.isatty()
        self._shown = ""
        self._open = False

    def __call__(self, step: str) -> None:
        """Show a step unless it is shown; in a file, of steps that differ in their numbers the first."""
        if step == self._shown:
            return
        before, self._shown = self._shown, step
        if self._rewrites:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._file.write(f"\r\x1b[K{f'mainspring: {step} ...'[:width]}")
            self._open = True
        elif _NUMBERS.sub("", step) != _NUMBERS.sub("", before):
            self._file.write(f"mainspring: {step} ...\n")
        self._file.flush()

    def briefly(self, step: str) -> None:
        """Show a step on a terminal alone."""
        if self._rewrites:
            self(step)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(f"mainspring: {text}", file=self._file, flush=True)

    def clear(self) -> None:
        """Remove the step from a terminal."""
        if self._open:
            self._file.write("\r\x1b[K")
            self._file.flush()
        self._open = False
        self._shown = ""
