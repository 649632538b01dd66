"""Batches on EXEC's stream: two at most, one that the device computes and one that it goes on to by itself.

The stream keeps them in order, so they share the workspace and the table of addresses: what the second
writes, it writes behind the first. Each has events of its own around all of its work. The events inside
graphs, around the kernels alone, are the same two in all graphs: they are read only of the batch that was
given last. Of another one the duration has the kernel in it that writes the addresses, and what of the
host's calls the device had to wait for if it had nothing else to do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from mainspring.compiler.artifact.plan import Shape
from mainspring.messages.actions import Infer
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.engine import Ran
from mainspring.worker.engines.cuda.copies import IoCopies
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.programs import Bound, Times

RUNS = 3
"""Number of runs whose events are kept: the last that has ended, the one that computes, the one behind it."""
DRIFT = 5_000
"""Largest drift of the device's clock against the host's, as a divisor of the time."""
LONGEST_NS = 1_000_000_000
"""Longest time between two ends that the device's clock is asked for."""


class Run:
    """A batch that the device has been given (`mainspring.worker.engine.Given`)."""

    def __init__(self, wait: Callable[[Run], Ran], number: int, times: Times) -> None:
        self._wait = wait
        self.number = number
        self.times = times
        """The device has its inputs at the first, and its outputs at the second."""
        self.told_ns = time.monotonic_ns()
        """Earliest instant at which it can have begun."""
        self.failed: Exception | None = None
        """Error because of which the batch was not launched, or not as a whole."""

    def wait(self) -> Ran:
        """See `mainspring.worker.engine.Given`."""
        return self._wait(self)


class Runs:
    """The batches on EXEC's stream. One thread gives, one thread waits; they may be two."""

    def __init__(
        self, driver: Driver, transfers: IoCopies, stream: int, explain: Callable[[Exception], Exception]
    ) -> None:
        """``explain`` returns what an error of the driver means."""
        self.alone = threading.Lock()
        """Held by who gives the stream something, so that nothing comes between what belongs together."""
        self.kernels = Times(driver.event(timed=True), driver.event(timed=True))
        """Events around the kernels of the batch that was given last."""
        self._driver = driver
        self._transfers = transfers
        self._stream = stream
        self._explain = explain
        self._times = [Times(driver.event(timed=True), driver.event(timed=True)) for _ in range(RUNS)]
        self._given = 0
        self._waited = 0
        self._end_ns = 0
        """Instant at which the last run ended; 0 if its event can't tell."""

    @property
    def busy(self) -> bool:
        """Return whether the device has something to do, or is being given it."""
        return self.alone.locked() or self._given != self._waited

    def give(self, find: Callable[[], Bound], action: Infer, io: Reservation) -> Run:
        """Launch a batch behind its inputs, and the copy of its outputs behind it; ``find`` finds its model.

        Raises nothing: `Run.wait` raises what failed.
        """
        driver, stream = self._driver, self._stream
        with self.alone:
            self._given += 1
            run = Run(self._wait, self._given, self._times[self._given % RUNS])
            try:
                driver.attach()
                bound = find()
                self._transfers.await_inputs(io, stream)
                driver.record(run.times.begin, stream)
                shape = Shape(action.batch_size, action.sizes)
                bound.launch(shape, self._transfers.address(io), io.layout, stream)
                driver.record(run.times.end, stream)
                self._transfers.begin_outputs(io, run.times.end)
            except Exception as error:
                run.failed = error
                with contextlib.suppress(Exception):
                    # What was launched of it has to end before its slot is another's.
                    driver.record(run.times.end, stream)
        return run

    def beat(self, address: int, size: int) -> None:
        """Clear bytes of the device's memory, and wait until that is done; nothing is given meanwhile."""
        with self.alone:
            self._driver.clear(address, size, self._stream)
            self.drain()

    def drain(self) -> None:
        """Wait for all that was launched, if nobody launches anything meanwhile."""
        self._end_ns = 0
        end = self._times[self._given % RUNS].end
        self._driver.record(end, self._stream)
        self._driver.synchronize(end)

    def _wait(self, run: Run) -> Ran:
        try:
            self._driver.synchronize(run.times.end)
            if run.failed is not None:
                raise run.failed
            return self._measure(run, time.monotonic_ns())
        except Exception as error:
            self._end_ns = 0
            raise self._explain(error) from error
        finally:
            self._waited += 1

    def _measure(self, run: Run, seen_ns: int) -> Ran:
        """Return when a run began and ended whose end the host saw at ``seen_ns``."""
        driver, times = self._driver, run.times
        with self.alone:
            kernels = self.kernels if run.number == self._given else times
            device_ns = driver.elapsed_ns(*kernels)
        whole_ns = driver.elapsed_ns(*times)
        last_ns, since_ns = self._end_ns, None
        if last_ns and seen_ns - last_ns < LONGEST_NS:
            since_ns = driver.elapsed_ns(self._times[(run.number - 1) % RUNS].end, times.end)
        begin_ns, self._end_ns = bounds_ns(run.told_ns, seen_ns, whole_ns, last_ns, since_ns)
        return Ran(begin_ns, self._end_ns, device_ns)


def bounds_ns(
    told_ns: int, seen_ns: int, whole_ns: int, last_ns: int, since_ns: int | None
) -> tuple[int, int]:
    """Return begin and end of a run on the host's clock.

    The device was given it at ``told_ns``; it took ``whole_ns``, and the host saw its end at ``seen_ns``,
    which may be late: its thread may have had to wait for a core. The run before ended at ``last_ns``, and on
    the device's clock ``since_ns`` before this one; None if that is not known.
    """
    end_ns = seen_ns
    if since_ns is not None:
        # Never before the true end if the clocks differ by less than `DRIFT`: the last end was not either.
        end_ns = min(end_ns, max(told_ns + whole_ns, last_ns + since_ns + since_ns // DRIFT))
    end_ns = max(end_ns, told_ns, last_ns)
    return max(told_ns, last_ns, end_ns - whole_ns), end_ns
