"""Times variants of kernels on a GPU, for a compiler: ``python -m mainspring.worker.engines.cuda.timing``.

A `Trial` on each line of its input, a `Timed` on each line of its output. It is a process of its own, because
a kernel that the GPU can't run may take down all that its process does with CUDA.
"""

from __future__ import annotations

import os
import sys

import msgspec

from mainspring.compiler.artifact.plan import Shape, Timed, Trial
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.driver import Driver, open_driver
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import MIB, DeviceMemory, Wanted
from mainspring.worker.engines.cuda.programs import Times

DEVICE = 0
"""The first GPU as CUDA counts them; CUDA_VISIBLE_DEVICES makes another the first."""
_NO_TENSORS = SlotLayout((), (), 0)


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
