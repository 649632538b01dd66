"""What goes wrong when a model is compiled, stored or opened, in words for the person who asked."""

from __future__ import annotations


class CompileError(Exception):
    """The model can't be compiled; the text names the node or tensor, and what would help."""


class StoreError(Exception):
    """An artifact is missing, altered or not usable here; the text names the path and the remedy."""


class ExecutableError(Exception):
    """An executable does not open or does not run; the text names it and says why."""
