"""Folders of Python models for tests."""

from __future__ import annotations

from pathlib import Path

TENSORS = """
[[inputs]]
name = "x"
dtype = "float32"
shape = [3]

[[outputs]]
name = "y"
dtype = "float32"
shape = [3]
"""
DOUBLES = 'return {"y": inputs["x"] * 2}'
HEAD = 'rows = "independent"\nbatch_sizes = [1, 2, 4]\nmemory_mb = 256\nstart_s = 300\n'


def folder(
    path: Path, predict: str = DOUBLES, head: str = HEAD, tensors: str = TENSORS, before: str = ""
) -> Path:
    """Make the folder of a model whose `predict` has this body; ``before`` is more of the class."""
    body = "\n".join(f"        {line}" for line in predict.splitlines())
    more = "\n".join(f"    {line}" for line in before.splitlines())
    if "def __init__" not in before:
        more += "\n    def __init__(self, folder):\n        self.folder = folder\n"
    code = "import ctypes, os, sys, time\nimport numpy as np\n"
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.py").write_text(
        f"{code}\nclass Predictor:\n{more}\n    def predict(self, inputs):\n{body}\n"
    )
    (path / "model.toml").write_text(head + tensors)
    return path


ODD = """
value = float(inputs["x"][0, 0])
if value == 1001: os._exit(3)
if value == 1002:
    while True: pass
if value == 1003: time.sleep(1000)
if value == 1004: block = bytearray(1 << 30)
if value == 1005: ctypes.string_at(0)
if value == 1006: raise ValueError("x may not be 1006")
if value == 1007: return {"y": inputs["x"][:, :2]}
if value == 1008: print("noise " * 4000)
return {"y": inputs["x"] * 2}
"""
"""The body of a `predict` that fails in the way that its first value says, and doubles all others."""
EXITS, LOOPS, SLEEPS, NO_MEMORY, SEGFAULTS, REFUSES, UNFIT, PRINTS = range(1001, 1009)
