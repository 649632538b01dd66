"""What a program takes on that imports the client."""

from __future__ import annotations

import subprocess
import sys

ALLOWED = {"mainspring", "numpy", "zmq", "msgspec", "typing_extensions"}
"""pyzmq imports the last one where it happens to be installed, and does without it elsewhere."""


def test_the_client_needs_numpy_pyzmq_and_msgspec_alone() -> None:
    script = """
import sys
before = set(sys.modules)
from mainspring import AsyncClient, Client
Client("tcp://127.0.0.1:1").close()
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(name for name in names if name not in sys.stdlib_module_names))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    compiled = ("_", "cython_runtime", "mainspring_")
    others = {name for name in ran.stdout.split() if not name.startswith(compiled)}
    assert others <= ALLOWED, others - ALLOWED
