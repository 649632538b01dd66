"""The causes of a failed run of ONNX Runtime's: what its inputs hold, or a reason that lies elsewhere.

Names, dtypes, shapes and sizes of inputs are checked before a run, and every executable has run on samples
and on zeros. So what fails in a node of the graph, and not for want of memory, fails on what the inputs hold:
an index out of range, a text that is no number, lengths that an output has no room for.
"""

from __future__ import annotations

import re

from mainspring.compiler.artifact.errors import ExecutableError, ValuesError
from mainspring.compiler.artifact.manifest import ExecutableInfo

_PREALLOCATED = "pre-allocated output"
"""Part of ONNX Runtime's error for an output whose shape does not fit the memory that it was given."""
_OTHER_SHAPE = (
    "an output's shape for these inputs differs from the one that the model was compiled with; only inputs "
    "that give outputs of that shape can be answered"
)
_NODE = re.compile(r"while running (\S+) node\. Name:'([^']*)' Status Message: (.*)", re.DOTALL)
_OF_MEMORY = re.compile(r"allocat|out of memory", re.IGNORECASE)
_MOST_CHARACTERS = 500
"""Most characters of ONNX Runtime's message that are passed on to whoever sent the inputs."""


def not_run(info: ExecutableInfo, batch_size: int, error: Exception) -> ExecutableError:
    """Return what a run's error, or that of binding what it reads and writes, says of the executable."""
    return ExecutableError(f"executable {info.executable[:12]} failed at batch size {batch_size}: {error}")


def failed(info: ExecutableInfo, batch_size: int, error: Exception) -> ExecutableError:
    """Return what the error of a run says: `ValuesError` if the inputs' values are at fault."""
    said = str(error)
    if _PREALLOCATED in said:
        return ValuesError(_OTHER_SHAPE)
    if isinstance(error, ValueError):
        return ValuesError(said)
    node = _NODE.search(said)
    if node is None or _OF_MEMORY.search(said) is not None:
        return not_run(info, batch_size, error)
    kind, name, why = node.groups()
    called = f" {name!r}" if name else ""
    return ValuesError(f"the model's node {kind}{called} fails on these values: {_short(why)}")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
