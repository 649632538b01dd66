"""What goes wrong when a model is compiled, stored or opened, in words for the person who asked."""

from __future__ import annotations

AS_IT_IS = (
    "`mainspring compile --whole`, or `max_batch_size: 0` and the whole shapes as dims in config.pbtxt, "
    "serves the model as it is, one request at a time"
)
"""The way out for models whose rows can't be told apart."""


class CompileError(Exception):
    """The model can't be compiled; the text names the node or tensor, and what would help."""


class RowsMix(CompileError):
    """Outputs of a row are others beside other rows, so requests of strangers may not share an execution."""


class StoreError(Exception):
    """An artifact is missing, altered or not usable here; the text names the path and the remedy."""


class ExecutableError(Exception):
    """An executable does not open or does not run; the text names it and says why."""
