"""Times variants of kernels on a GPU, for a compiler: ``python -m mainspring.worker.engines.cuda.timing``.

`GpuTimer` is the compiler's end of the process's pipes, and needs none of the compiler's packages.
A `Trial` on each line of its input, a `Timed` on each line of its output. It is a process of its own, because
a kernel that the GPU can't run may take down all that its process does with CUDA.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys

import msgspec

from mainspring.compiler.artifact.plan import Shape, Timed, TimerFailed, Trial
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.driver import Driver, open_driver
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted
from mainspring.worker.engines.cuda.programs import Times

DEVICE = 0
"""The first GPU as CUDA counts them; CUDA_VISIBLE_DEVICES makes another the first."""
_NO_TENSORS = SlotLayout((), (), 0)
PROGRAM = (sys.executable, "-m", "mainspring.worker.engines.cuda.timing")
TIMEOUT_S = 60.0
"""Longest time of one trial. A driver that was idle for a long time takes seconds to wake."""


class GpuTimer:
    """The compiler's side, within a `with`. A failure ends the process; the next trial starts another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GpuTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, trial: Trial) -> tuple[int, ...]:
        """Return the duration of each run in ns; raise `TimerFailed`."""
        try:
            timed = msgspec.json.decode(self._ask(msgspec.json.encode(trial) + b"\n"), type=Timed)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = self._end() or str(error)
            raise TimerFailed(f"the process that times kernels on the GPU ended: {reason}") from error
        if timed.failed:
            self._end()
            raise TimerFailed(timed.failed)
        return timed.ns

    def _ask(self, line: bytes) -> bytes:
        pipe = subprocess.PIPE
        if self._process is None:
            self._process = subprocess.Popen(PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line)
        stdin.flush()
        if not select.select([stdout], [], [], TIMEOUT_S)[0]:
            self._process.kill()
            raise TimeoutError(f"it was not done after {TIMEOUT_S:.0f} s")
        return stdout.readline()

    def _end(self) -> str:
        """End the process, if there is one; return the last line of what it wrote beside its answers."""
        process, self._process = self._process, None
        if process is None:
            return ""
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None
        try:
            said = process.communicate(timeout=TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class Bench:
    """A GPU on which variants are run one at a time."""

    def __init__(self, driver: Driver) -> None:
        driver.attach()
        self._driver = driver
        self._stream = driver.stream()
        self._times = Times(driver.event(timed=True), driver.event(timed=True))
        self._done = driver.event()

    def run(self, trial: Trial) -> tuple[int, ...]:
        """Return how long each run of the trial's order took, in ns of the device's clock.

        Each variant runs once before, so that its code is on the device. Raises `EngineError`.
        """
        driver, plans = self._driver, trial.plans
        memory = DeviceMemory(driver, Wanted(max(256, plans.workspace_bytes), 256, 64 * MIB, pages=1))
        try:
            # Zeros are numbers of any type, and no index among them is out of range.
            driver.clear(memory.workspace, memory.workspace_bytes, self._stream)
            layouts = {plan.shape: _NO_TENSORS for plan in plans.plans}
            program = LaunchPlanProgram(driver, memory, plans, trial.image, (), layouts, self._times)
            try:
                program.warm((), self._stream)
                program.bind(()).set_addresses(memory.io, self._stream)
                for shape in layouts:
                    self._once(program, shape)
                return tuple(self._once(program, Shape(number)) for number in trial.order)
            finally:
                program.close()
        finally:
            memory.close()

    def _once(self, program: LaunchPlanProgram, shape: Shape) -> int:
        program.compute(shape, self._stream)
        self._driver.record(self._done, self._stream)
        self._driver.synchronize(self._done)
        return self._driver.elapsed_ns(*self._times)


def main() -> int:
    """Answer trials until the input ends; return 1, with the reason on stderr, without a GPU."""
    # What libraries print must not stand among the answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            driver = open_driver(DEVICE)
            bench = Bench(driver)
        except EngineError as error:
            print(error, file=sys.stderr)
            return 1
        for line in sys.stdin.buffer:
            timed, lost = _answer(bench, driver, line)
            answers.write(msgspec.json.encode(timed) + b"\n")
            answers.flush()
            if lost:
                return 1
        driver.close()
    return 0


def _answer(bench: Bench, driver: Driver, line: bytes) -> tuple[Timed, bool]:
    """Return the answer to a trial, and whether the device is lost."""
    try:
        return Timed(bench.run(msgspec.json.decode(line, type=Trial))), False
    except Exception as error:  # Each binding of CUDA has exceptions of its own.
        reason = driver.explain(error)
        return Timed(failed=str(reason)), isinstance(reason, DeviceLost)


if __name__ == "__main__":
    sys.exit(main())
