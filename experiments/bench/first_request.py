"""Time of the README's first command from nothing to the first answered request.

``make first-request`` clones the last commit of this repository to a new folder and runs ``make demo`` there
with a new environment, noting when each line came. It needs git, make and Python alone. The cache of pip is
left as it is, or left out with ``--no-cache``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGINS = "Replaying"


def main() -> int:
    """Measure once; return the exit code, 1 if no request was answered."""
    parser = argparse.ArgumentParser("make first-request", description=__doc__)
    parser.add_argument("--no-cache", action="store_true", help="have pip download everything again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        clone = Path(folder, "mainspring")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        sent, code = _demonstrate(clone, began, no_cache=options.no_cache)
    if code or sent is None:
        print("the demonstration failed: no first request", file=sys.stderr)
        return 1
    cores = len(os.sched_getaffinity(0))
    print(f"first request after {sent:.0f} s ({cores} cores, load {os.getloadavg()[0]:.1f} at the end)")
    return 0


def _demonstrate(clone: Path, began: float, *, no_cache: bool) -> tuple[float | None, int]:
    environment = {**os.environ, **({"PIP_NO_CACHE_DIR": "1"} if no_cache else {})}
    command = ["make", "demo", f"PYTHON={sys.executable}", "ARGS=--duration 2"]
    sent = None
    with subprocess.Popen(
        command, cwd=clone, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as made:
        assert made.stdout is not None
        for line in made.stdout:
            passed = time.monotonic() - began
            print(f"{passed:6.1f} s  {line}", end="", flush=True)
            if line.startswith(BEGINS):
                sent = passed
    return sent, made.returncode


if __name__ == "__main__":
    sys.exit(main())
