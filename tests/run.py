"""Run the tests tier by tier: ``python -m tests.run quick|rest|TIER``.

* ``quick`` (`make test`): the unit tests on all cores, then the heart of the tier *cluster*, which leaves a
  core free; lint and types beside both, at niceness 10. Nothing needs to be compiled: the pure cores run as
  Python.
* ``rest`` (`make test-rest`): what is left. What keeps real time runs one after the other: cluster and lab.
  Beside that run patient, whose tests wait for states, however long it takes (niceness 10), and
  codegen, which only computes, on the time that is left over of all cores (SCHED_IDLE). Last, on all cores,
  run the unit tests again that run compiled code (`tests.tiers.COMPILED`), with the compiled cores; their
  property tests draw all examples only here.
* a tier alone (`make test-cluster` ...).

A failure is a failure, but for the few tests with the marker ``timing``, which measure real time: if they
alone failed, each of those runs once more when all else has ended, and what the host took from this machine
is printed for both runs. How long each test took is kept in `out/tests/` as JUnit's XML; pytest prints the
ten slowest. At the end stands what was skipped, and what brings it back (`tests/skips.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

from tests import skips
from tests.tiers import TESTS, TIERS

ROOT = TESTS.parent
KEPT = ROOT / "out" / "tests"
PYTEST = (sys.executable, "-m", "pytest")
CHECKS = ("make", "--no-print-directory", "lint", "types")
INTERPRETED = {"MAINSPRING_NATIVE": "0"}
CACHING = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "out" / "bytecode")}
"""Tests start thousands of processes. Where an image forbids Python to write bytecode, each of them would
compile what it imports, which is half of a short process. It is kept apart, so the tree stays as it was."""
IDLE_TIMEOUT_S = 1_500
"""Longest that a test may take where others come first."""
FAILED = 1
"""Pytest's exit code where all ran and some failed."""


class Part(NamedTuple):
    """One run of pytest."""

    name: str
    """Of the file below `out/tests/` that keeps its durations."""
    options: Sequence[str]
    interpreted: bool = False
    """Whether the pure cores run as Python, compiled or not."""

    @property
    def kept(self) -> Path:
        """The file that keeps how long its tests took."""
        return KEPT / f"{self.name}.xml"

    @property
    def command(self) -> list[str]:
        """What to run."""
        return [*PYTEST, *self.options, "--durations=10", f"--junitxml={self.kept}"]

    @property
    def environment(self) -> dict[str, str]:
        """Variables to run it with."""
        return {**os.environ, **(INTERPRETED if self.interpreted else {})}


class Failure(NamedTuple):
    """A test that failed, as the kept durations have it."""

    timing: str | None
    """How to run it again, if it has the marker `timing`."""
    host: str


def tier(name: str, *options: str) -> Part:
    """Return the run of one whole tier, alone."""
    return Part(name, (f"--tier={name}", *options), interpreted=name == "unit")


ON_ALL_CORES = ("-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile")
UNIT = Part("unit", ("--tier=unit", "--fewer-examples", *ON_ALL_CORES), True)
HEART = Part("heart", ("--tier=heart",), True)
CODEGEN = Part("codegen", ("--tier=codegen", *ON_ALL_CORES, "--timeout", str(IDLE_TIMEOUT_S)))
COMPILED = Part("compiled", ("--tier=compiled", *ON_ALL_CORES))
WAITING = (Part("cluster", ("--tier=cluster", "--not-heart")), tier("lab"))
PATIENT = tier("patient")


def run(part: Part) -> int:
    """Run one part; return pytest's exit code."""
    print(f"\n== {part.name} ==", flush=True)
    part.kept.unlink(missing_ok=True)
    return subprocess.call(part.command, cwd=ROOT, env=part.environment)


@contextmanager
def beside(
    title: str, command: Sequence[str], lower: Callable[[int], None] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the block, with its process lowered if so asked; then print what it said."""
    apart = lower is not None
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, start_new_session=apart)
        if lower is not None:
            lower(process.pid)
        try:
            yield process
            print(f"\n== {title}, which ran beside ==", flush=True)
            process.wait()
        finally:
            process.kill()
            if apart:
                # Ctrl-C does not reach another session.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _show(output)


def let_follow(process: int) -> None:
    """Have what is not as nice come before a session's first process and all that it starts."""
    _lower_session(process, 10)
    os.setpriority(os.PRIO_PROCESS, process, max(10, os.getpriority(os.PRIO_PROCESS, 0)))


def let_idle(process: int) -> None:
    """Give a session's first process, and all that it starts, nothing but idle time, if the system allows."""
    _lower_session(process, 19)
    try:
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, process, 19)


def _lower_session(process: int, niceness: int) -> None:
    # Linux may share the cores between sessions first: how nice a process is counts only within its own.
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(str(niceness))


def quick() -> int:
    """Run what `make test` runs; return the exit code."""
    with beside("lint and types", CHECKS, let_follow) as checks:
        # One after the other: what runs beside is nice to what keeps real time, as patient is.
        codes = {part: run(part) for part in (UNIT, HEART)}
    return settle(codes) or checks.returncode


def rest() -> int:
    """Run all that `make test` leaves out; return the exit code."""
    print("codegen and patient run beside what follows", flush=True)
    for part in (CODEGEN, PATIENT):
        part.kept.unlink(missing_ok=True)
    with beside("codegen", CODEGEN.command, let_idle) as computing:
        with beside("patient", PATIENT.command, let_follow) as waiting:
            codes = {part: run(part) for part in WAITING}
        codes |= {PATIENT: waiting.returncode, COMPILED: run(COMPILED)}
    return settle({**codes, CODEGEN: computing.returncode})


def settle(codes: dict[Part, int]) -> int:
    """Return the exit code of parts that ended so; if timing tests alone failed, they run again before."""
    # A part that ended without saying what failed was killed, or never began.
    told = all(code == 0 or (code == FAILED and part.kept.exists()) for part, code in codes.items())
    failed = (
        [(part, failure) for part, code in codes.items() if code for failure in failures(part)]
        if told
        else []
    )
    if not failed or not all(failure.timing for _, failure in failed):
        return max(map(abs, codes.values()))
    return max(_once_more(part, failure) for part, failure in failed)


def failures(part: Part) -> list[Failure]:
    """Read which tests failed."""
    cases = ElementTree.parse(part.kept).iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [Failure(_property(case, "timing"), _property(case, "host") or "") for case in failed]


def _property(case: ElementTree.Element, name: str) -> str | None:
    return next((kept.get("value") for kept in case.iter("property") if kept.get("name") == name), None)


def _once_more(part: Part, failure: Failure) -> int:
    """Run a timing test again; print what the host took in both runs, and return the exit code."""
    assert failure.timing is not None
    second = part._replace(name=f"{part.name}-again", options=(failure.timing,))
    print(f"\n{failure.timing} measures real time and failed: once more, alone", flush=True)
    code = run(second)
    case = next(ElementTree.parse(second.kept).iter("testcase"))
    print(
        f"  failed in {failure.host}",
        f"  {'failed' if code else 'passed'} in {_property(case, 'host')}",
        sep="\n",
    )
    return code


def _show(output: IO[bytes]) -> None:
    output.seek(0)
    sys.stdout.flush()
    sys.stdout.buffer.write(output.read())
    sys.stdout.flush()


RUNS: dict[str, Callable[[], int]] = {"quick": quick, "rest": rest}


def main(arguments: Sequence[str]) -> int:
    """Run the tests that the arguments name; return the exit code."""
    began = time.time()
    os.environ.update(CACHING)
    match arguments:
        case [name] if name in RUNS:
            code = RUNS[name]()
        case [name] if name in TIERS:
            # A run that a signal ended has a negative one.
            code = abs(run(tier(name)))
        case _:
            print(f"usage: python -m tests.run {'|'.join((*RUNS, *TIERS))}", file=sys.stderr)
            return 2
    told = [file for file in sorted(KEPT.glob("*.xml")) if file.stat().st_mtime >= began]
    code = max(code, skips.report(told))
    print(f"\n{arguments[0]}: {'FAILED' if code else 'passed'}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
