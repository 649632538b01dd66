"""Which tests may be skipped: the one list of reasons, and what brings each of them back.

After a run, `report` says what was skipped. With ``TESTS_SKIPS=strict``, as `.ci/run` has it, a test that was
skipped for a reason that is not on the list fails the run: what a machine lacks must not pass for green.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

STRICT = os.environ.get("TESTS_SKIPS") == "strict"
GPU = "a machine with a GPU (docs/gpu-check.md)"
SHARED = "the files that are not in the repository, beside it in ../shared"

ALLOWED: dict[str, str] = {
    # What only a GPU, or NVIDIA's toolkit, has.
    r"CuPy is for machines with a GPU|NVML's bindings|could not import 'pynvml'": GPU,
    r"nvcc is not installed|NVIDIA's compiler says|cuda\.h is nowhere": "NVIDIA's CUDA toolkit",
    r"NVRTC|make test-codegen installs it|could not import 'nvidia": "make test-codegen, with PyPI",
    # What is large, and has a command of its own.
    r"Ray (Serve )?is not installed": "make ray",
    r"schemathesis is not installed": "make schemathesis",
    r"openai is not installed": "make openai",
    r"etcd3gw is not installed": "pip install -e .[ha]",
    r"etcd is not installed": "apt-get install etcd-server",
    r"could not import '(torch|onnxscript)'": "pip install torch onnxscript",
    r"a Python model of the zoo needs": "pip install pillow tokenizers",
    # Files that can't be in the repository.
    r"there is no table of profiles at|Ribbon's artifact is not here|is not on this machine$": SHARED,
    # What this kernel, processor or user is.
    r"root may write anywhere": "a user other than root",
    r"only root can|no control group can be made here|permissions do not bind root": "root",
    r"has no IPv6|this host has no such address": "a machine with IPv6",
    r"no huge pages|pool of huge pages can't be changed|no four huge pages": "huge pages of the kernel",
    r"no memory nodes": "a kernel with NUMA",
    r"convolutions have no blocks": "a processor with AVX2 or AVX-512",
    r"needs a core beside|needs a second core": "two cores",
    r"no link can be made slow here": "a kernel with tc's netem",
    r"systemd( 250 or later)? is not installed": "apt-get install systemd, on a machine that it may run",
    # The opposite of what is installed: each has a counterpart that runs here.
    r"CuPy is installed here|a driver is here|has a CUDA provider": "an environment without that",
    r"compiled constants are literals": "MAINSPRING_NATIVE=0",
    r"^not compiled: make native$|needs Valgrind, and make native": "make native, and Valgrind",
    # Chance, and the network.
    r"no id came again|the time is over": "another run",
    r"the package index can't be reached": "a network with PyPI",
}
"""Pattern of a reason that pytest gives: what brings the test back."""


def skipped(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the test and the reason of each skip that JUnit's files tell."""
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            skip = case.find("skipped")
            if skip is not None and skip.get("type") != "pytest.xfail":
                yield f"{case.get('classname', '')}.{case.get('name')}", skip.get("message", "")


def remedy(reason: str) -> str | None:
    """Return what brings a test back that was skipped for this reason; None if that is not allowed."""
    return next((brings for pattern, brings in ALLOWED.items() if re.search(pattern, reason)), None)


def report(files: Iterable[Path], *, strict: bool = STRICT) -> int:
    """Print what was skipped and what brings it back; return 1 if that is to fail the run, else 0."""
    found = [(test, " ".join(reason.split())) for test, reason in skipped(files)]
    unknown = [(test, reason) for test, reason in found if remedy(reason) is None]
    if found:
        print(f"\n== {len(found)} tests were skipped ==", flush=True)
    for reason, count in Counter(reason for _, reason in found).most_common():
        print(f"{count:5} {reason}\n      to run: {remedy(reason) or 'install what it names'}")
    if strict and unknown:
        print("\nskipped for a reason that tests/skips.py does not allow:")
        print(*(f"  {test}: {reason}" for test, reason in unknown), sep="\n", flush=True)
    return int(strict and bool(unknown))
