"""Run all tests in the time of the longer half: ``python -m tests.halves [PYTEST ARGUMENTS]``.

Much of the suite waits, for real sockets, processes and deadlines. What only computes runs beside it on the
processor time that is left over: it is of the lowest kind of priority there is (SCHED_IDLE), so what is under
way in real time hardly notices it. With arguments everything runs one after the other, as pytest does.

A shared machine may take both cores away for seconds, and a few tests of what runs in real time can't tell
that from a defect. So when few have failed, those run once more when all else has ended: what fails twice has
failed. Those that passed only then are listed at the very end.

The ten slowest tests of each half are printed, and how long every test took is kept in `out/tests/` (JUnit's
XML).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMPUTES = (
    "cli/verbs/test_compile_and_zoo.py",
    "cli/verbs/test_simulate.py",
    "compiler",
    "emulator",
    "experiments/test_baseline_agreement.py",
    "experiments/test_policies.py",
    "experiments/test_policy_agreement.py",
    "messages",
    "scheduler",
    "simulator",
    "telemetry",
)
"""Tests that know no real time."""
TIMEOUT_S = 1_500
"""Longest that one of their tests may take: they may have to wait for the others."""
FEW = 20
"""At most so many that failed run once more: more than these are no accident."""
FAILED = 1
"""Pytest's exit code where all ran and some failed."""
TESTS = Path(__file__).parent
PYTEST = (sys.executable, "-m", "pytest")


def let_idle(process: int) -> None:
    """Give a process, and all that it will start, nothing but idle time, where the system lets it."""
    try:
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, process, 19)


def run_both(tests: Path, caches: tuple[Path, Path]) -> tuple[int, int]:
    """Run the half that waits and beside it the half that computes; return both exit codes."""
    kept = tests.parent / "out" / "tests"
    computing = [str(tests / name) for name in COMPUTES if (tests / name).exists()]
    waiting = [str(tests), *(f"--ignore={path}" for path in computing)]
    with tempfile.TemporaryFile() as output:
        beside = [
            *PYTEST,
            *computing,
            "--timeout",
            str(TIMEOUT_S),
            *_recorded(kept / "computing.xml", caches[1]),
        ]
        with subprocess.Popen(beside, stdout=output, stderr=output, cwd=tests.parent) as half:
            let_idle(half.pid)
            print(f"pytest {' '.join(f'tests/{name}' for name in COMPUTES)} runs beside:", flush=True)
            alone = [*PYTEST, *waiting, *_recorded(kept / "waiting.xml", caches[0])]
            waited = subprocess.call(alone, cwd=tests.parent)
            print("and beside that:", flush=True)
            computed = half.wait()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return waited, computed


def _recorded(durations: Path, cache: Path) -> list[str]:
    """Return the options that keep how long each test took, and what failed."""
    return ["--durations=10", f"--junitxml={durations}", "-o", f"cache_dir={cache}"]


def failures(cache: Path) -> list[str]:
    """Return the tests that failed in the run that kept this cache, as pytest names them."""
    kept = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(kept.read_text())) if kept.exists() else []


def once_more(tests: Path, names: list[str]) -> int:
    """Run tests that failed once more, with nothing beside them; return the exit code."""
    print(f"{len(names)} failed, perhaps for want of processor time; once more, alone:", flush=True)
    code = subprocess.call([*PYTEST, *names], cwd=tests.parent)
    if code == 0:
        print(f"passed only when run alone ({len(names)}):", *names, sep="\n  ", flush=True)
    return code


def main(arguments: list[str], tests: Path = TESTS) -> int:
    """Run the tests; return the exit code."""
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder, "waiting"), Path(folder, "computing")
        codes = run_both(tests, caches)
        failed = [failures(cache) for cache in caches]
    # A half that ended without saying what failed was killed, or never began.
    told = all(code == 0 or (code == FAILED and names) for code, names in zip(codes, failed, strict=True))
    again = [name for names in failed for name in names]
    if again and told and len(again) <= FEW:
        return once_more(tests, again)
    return codes[0] or codes[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
