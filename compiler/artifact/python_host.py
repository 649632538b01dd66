"""Runs one Python model's ``Predictor``: the process that `python_process` starts.

The model's own Python runs this file by its path, maybe without our packages: only the standard library and
numpy are imported, and nothing that is newer than Python 3.9. It reads one JSON message at a time from a
socket and answers each with one; tensors are in memory that both processes have mapped.
"""

# What is written here must run in older versions than the rest of the project.
# ruff: noqa: B905, UP006, UP035, UP045

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
import traceback
from typing import Any, Dict, List, Optional

import numpy as np

MOST_TEXT = 2000
"""Longest text of an error, in characters."""
MOST_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""Number by which the kernel prefers to end this process when memory is short."""


class Unfit(Exception):
    """Something of `Predictor` that is not as model.toml says."""


class Host:
    """The loaded model and the memory that its tensors are in."""

    def __init__(self, told: Dict[str, Any], memory: mmap.mmap) -> None:
        self.folder = told["folder"]
        self.inputs = told["inputs"]
        self.outputs = told["outputs"]
        self.memory = memory
        self.predictor: Any = None

    def load(self) -> None:
        """Import model.py and make its `Predictor`."""
        sys.path.insert(0, self.folder)
        import model  # type: ignore[import-not-found,unused-ignore]

        if not hasattr(model, "Predictor"):
            names = [name for name in vars(model) if not name.startswith("_")]
            raise Unfit(f"model.py has no class Predictor; it has {', '.join(names[:8]) or 'nothing'}")
        self.predictor = model.Predictor(self.folder)
        if not callable(getattr(self.predictor, "predict", None)):
            raise Unfit("class Predictor in model.py has no method predict(inputs)")
        if hasattr(self.predictor, "sample"):
            # Its first run may take longer. What is wrong with it, the first batch says.
            try:
                self.predictor.predict(self.predictor.sample())
            except Exception:
                traceback.print_exc()

    def sample(self) -> Dict[str, Any]:
        """Return rows that the predictor takes, in the memory's first bytes; their shapes by name."""
        if not hasattr(self.predictor, "sample"):
            return {"shapes": None}
        given = self.predictor.sample()
        names = [each["name"] for each in self.inputs]
        self._check_names(given, names, "sample() gives the input")
        place, shapes = 0, []
        for tensor in self.inputs:
            array = _as_declared(tensor, given[tensor["name"]], "the input")
            size = array.nbytes
            if place + size > len(self.memory):
                raise Unfit(f"sample() gives {place + size:,} bytes of inputs; a batch has fewer")
            self.memory[place : place + size] = array.tobytes()
            place += size
            shapes.append(list(array.shape))
        return {"shapes": shapes}

    def run(self, told: Dict[str, Any]) -> Dict[str, Any]:
        """Have the rows in memory predicted, and put the outputs behind them; sizes of those that vary."""
        inputs = {
            tensor["name"]: self._view(tensor, shape) for tensor, shape in zip(self.inputs, told["inputs"])
        }
        found = self.predictor.predict(inputs)
        self._check_names(found, [each["name"] for each in self.outputs], "predict() returns the output")
        sizes = []
        for tensor, shape in zip(self.outputs, told["outputs"]):
            array = _as_declared(tensor, found[tensor["name"]], "the output")
            _check_shape(tensor, list(array.shape), shape, told["rows"])
            if array.size:
                np.frombuffer(self.memory, array.dtype, array.size, tensor["offset"])[:] = array.reshape(-1)
            sizes.append(list(array.shape))
        return {"shapes": sizes}

    def _view(self, tensor: Dict[str, Any], shape: List[int]) -> Any:
        count = 1
        for size in shape:
            count *= size
        view = np.frombuffer(self.memory, tensor["dtype"], count, tensor["offset"]).reshape(shape)
        view.flags.writeable = False
        return view

    @staticmethod
    def _check_names(given: Any, names: List[str], what: str) -> None:
        if not isinstance(given, dict):
            raise Unfit(f"{what}s as {type(given).__name__}; it has to be a dict of arrays by name")
        for name in names:
            if name not in given:
                raise Unfit(f"{what}s {', '.join(map(str, given)) or 'none'}, and not {name!r}")
        for name in given:
            if name not in names:
                raise Unfit(f"{what} {name!r}, which model.toml does not name; it names {', '.join(names)}")


def _as_declared(tensor: Dict[str, Any], given: Any, what: str) -> Any:
    """Return an array of the declared dtype; texts are encoded."""
    name, dtype = tensor["name"], np.dtype(tensor["dtype"])
    array = np.asarray(given)
    if dtype.kind == "S":
        return _as_slots(array, dtype, f"{what} {name!r}")
    if array.dtype != dtype:
        raise Unfit(f"{what} {name!r} is {array.dtype}; model.toml says {dtype}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _as_slots(array: Any, dtype: Any, what: str) -> Any:
    if array.dtype.kind not in "SUO":
        raise Unfit(f"{what} is {array.dtype}; model.toml says bytes")
    cells = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
    for index, cell in enumerate(cells):
        if not isinstance(cell, bytes):
            raise Unfit(f"element {index} of {what} is {type(cell).__name__}; model.toml says bytes")
        if len(cell) > dtype.itemsize:
            raise Unfit(
                f"element {index} of {what} has {len(cell):,} bytes; most_bytes is {dtype.itemsize:,}"
            )
    return np.array(cells, dtype).reshape(array.shape)


def _check_shape(tensor: Dict[str, Any], found: List[int], shape: List[int], rows: Optional[int]) -> None:
    """Compare an output's shape; ``rows`` is None for a model without an axis of rows."""
    name, axes = tensor["name"], {axis + (rows is not None) for axis in tensor["varies"]}
    if rows is not None and found and len(found) == len(shape) and found[0] != rows:
        raise Unfit(f"the output {name!r} has {found[0]} rows for a batch of {rows}")
    fits = len(found) == len(shape) and all(
        size <= most if axis in axes else size == most for axis, (size, most) in enumerate(zip(found, shape))
    )
    if not fits:
        told = [f"<={size}" if axis in axes else str(size) for axis, size in enumerate(shape)]
        raise Unfit(f"the output {name!r} is of shape {found}; model.toml says [{', '.join(told)}]")


def _told(error: BaseException) -> Dict[str, Any]:
    """Return an error as an answer: its kind and one line about it, with the place in the model's code."""
    if isinstance(error, MemoryError):
        return {"kind": "memory", "error": ""}
    if isinstance(error, Unfit):
        return {"kind": "unfit", "error": str(error)[:MOST_TEXT]}
    # Behind the last line of the model's own code, libraries raise.
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__]
    own = [
        each for each in frames if not each.filename.startswith("<") and "site-packages" not in each.filename
    ]
    place = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        place = f" ({os.path.basename(error.filename or '')}, line {error.lineno})"
        error = type(error)(error.msg)
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, ValueError):
        return {"kind": "values", "error": text[:MOST_TEXT] or said, "place": place}
    return {"kind": "failed", "error": said[:MOST_TEXT], "place": place}


def _bound(memory_bytes: int) -> None:
    """Bound this process's memory, and have it go first where the machine's is short; leave no core file."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))
    except OSError:
        pass


def main(control: int, memory: int, parent: int) -> None:
    """Serve until the socket closes. ``control`` and ``memory`` are descriptors."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    link = socket.socket(fileno=control)
    # What the model starts must not keep them.
    os.set_inheritable(control, False)
    told = json.loads(link.recv(MOST_BYTES))
    _bound(told["memory_bytes"])
    host = Host(told, mmap.mmap(memory, told["size"]))
    os.close(memory)
    jobs = {"load": lambda _: host.load(), "sample": lambda _: host.sample(), "run": host.run}
    message: Dict[str, Any] = {"do": "load"}
    while True:
        try:
            answer = jobs[message["do"]](message) or {}
        except Exception as error:
            if message["do"] == "load" or not isinstance(error, (Unfit, ValueError, MemoryError)):
                traceback.print_exc()
            answer = _told(error)
        except SystemExit as error:
            # At once: the worker waits, and what model.py left to be done at the end may take long.
            code = error.code
            os._exit(code & 0xFF if isinstance(code, int) else 1 if code else 0)
        link.send(json.dumps(answer).encode())
        received = link.recv(MOST_BYTES)
        if not received:
            return
        message = json.loads(received)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
