"""Squishy bin packing: sessions onto devices, in cycles of batches (Nexus, SOSP '19, section 6.1).

A session whose rate keeps whole devices busy gets those, with the largest batch that takes no more than half
its SLO: a request that just missed a batch is then served by the next. What is left of its rate is a
*residual load*, which has a batch once each *duty cycle*: as many requests as come in it, where the cycle
and the batch together last no longer than the SLO, and the device is least busy. Residual loads are put
together onto devices, those that keep one busiest first, where the device gets busiest by it. A device with
several has the shortest of their duty cycles; all batches shrink to it ("squish"), and must together fit
into it.

The paper allocates as many devices as it takes. A fleet that is given is first tried with all rates raised by
a headroom, then with smaller and smaller parts of all rates until everything fits; if nothing does, what
does not fit goes to the least busy device, and early dropping sheds what is too much.
"""

from __future__ import annotations

import math

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.residency import is_loadable
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.baselines.nexus_sessions import Session

SCALINGS = 6
"""Number of halvings by which the part of the rates that fits is found."""
SCALED_SESSIONS = 512
"""More sessions than this are packed once, so that a plan does not take long."""

ROUNDING = 1e-6
"""Excess in rows that is rounding: a product of floats may be too large by this."""


class Share:
    """The work of one device for one session."""

    __slots__ = ("index", "model", "rate", "slo_ns", "times")

    def __init__(self, model: Model, times: InferTimes, rate: float, slo_ns: int) -> None:
        self.model = model
        self.times = times
        self.rate = rate
        """Rows a nanosecond."""
        self.slo_ns = slo_ns
        self.index = 0
        """The index of the batch size."""


class Node:
    """One device with what it does in each of its cycles."""

    __slots__ = ("busy_ns", "duty_ns", "numbers", "pages", "shares", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.duty_ns = 0
        """Length of the cycle; 0 while there is none."""
        self.busy_ns = 0
        """Duration of its batches together."""
        self.pages = 0
        self.shares: list[Share] = []
        self.numbers: dict[int, None] = {}
        """The numbers of the models that have one."""

    @property
    def occupancy(self) -> float:
        """The part of the cycle that is busy."""
        return self.busy_ns / self.duty_ns if self.duty_ns else 0.0

    def occupancy_with(self, model: Model, times: InferTimes, rate: float, duty_ns: int) -> float | None:
        """Return the occupancy with a load that has a duty cycle of its own, or None if it does not fit."""
        known_ns = self.duty_ns
        if self.pages + model.pages > self.worker.pages.size:
            return None
        if known_ns and known_ns <= duty_ns:
            busy_ns = self.busy_ns + times.ns[squished(times, rate, known_ns)]
            return busy_ns / known_ns if busy_ns <= known_ns else None
        busy_ns = times.ns[squished(times, rate, duty_ns)]
        for each in self.shares:
            times = each.times
            busy_ns += times.ns[squished(times, each.rate, duty_ns)]
            if busy_ns > duty_ns:
                return None
        return busy_ns / duty_ns

    def add(self, share: Share, duty_ns: int) -> None:
        """Take a share in, and shrink all batches to the cycle."""
        self.shares.append(share)
        self.numbers[share.model.number] = None
        self.pages += share.model.pages
        shrunk = self.shares
        if self.duty_ns and self.duty_ns <= duty_ns:
            shrunk = [share]
        else:
            self.duty_ns, self.busy_ns = duty_ns, 0
        for each in shrunk:
            each.index = squished(each.times, each.rate, self.duty_ns)
            self.busy_ns += each.times.ns[each.index]

    def overfill(self) -> None:
        """Give each share the batch of a whole device: there are more than a cycle holds."""
        for each in self.shares:
            each.index = saturating(each.times, each.slo_ns)


def squished(times: InferTimes, rate: float, duty_ns: int) -> int:
    """Return the index of the smallest batch size that serves a rate once each duty cycle."""
    index_of = times.index_of
    rows = math.ceil(duty_ns * rate - ROUNDING)
    return index_of[max(1, min(rows, len(index_of) - 1))]


def saturating(times: InferTimes, slo_ns: int) -> int:
    """Return the index of the batch that keeps a device busy with one session: half the SLO, or the least."""
    found = 0
    for index, duration_ns in enumerate(times.ns):
        if (
            2 * duration_ns <= slo_ns
            and times.sizes[index] * times.ns[found] > times.sizes[found] * duration_ns
        ):
            found = index
    return found


def residual_duty_ns(times: InferTimes, slo_ns: int, rate: float) -> int:
    """Return the duty cycle of a residual load; 0 if not even its smallest batch is in time.

    The batch is that which keeps a device least busy. A cycle may be too short to fill the batch:
    it ends in time for a request that came as it began.
    """
    found_ns, least = 0, 1.0
    for size, duration_ns in zip(times.sizes, times.ns, strict=True):
        duty_ns = min(slo_ns - duration_ns, int(size / rate))
        if duty_ns >= duration_ns and duration_ns / duty_ns <= least:
            found_ns, least = duty_ns, duration_ns / duty_ns
    return found_ns


class Packing:
    """One attempt at packing sessions onto workers with a factor on all rates, a few sessions at a time."""

    def __init__(
        self, sessions: list[Session], workers: list[Worker], homes: dict[int, list[str]], factor: float
    ) -> None:
        """``homes`` has the names of the workers where each model, by number, was served until now.

        ``factor`` makes rows a nanosecond of the sessions' rates.
        """
        self.nodes = [Node(worker) for worker in workers]
        self.left: list[tuple[Model, float, int]] = []
        """(model, rate, SLO) of what did not fit."""
        self._sessions = sessions
        self._homes = homes
        self._factor = factor
        self._residuals: list[tuple[float, int, Model, float, int]] = []
        """(less its occupancy, model's number, model, rate, SLO) of the residual loads."""
        self._overfull: dict[str, Node] = {}
        """Devices that were given more than a cycle holds, by name."""
        self._done = 0
        """Sessions, and after them residual loads, that were placed."""

    def advance(self, limit: int) -> bool:
        """Place up to ``limit`` sessions or residual loads; return whether that is all of them."""
        sessions, residuals = self._sessions, self._residuals
        for _ in range(limit):
            if self._done < len(sessions):
                self._begin(sessions[self._done])
                if self._done == len(sessions) - 1:
                    residuals.sort(key=_order)
            elif self._done < len(sessions) + len(residuals):
                _, _, model, rate, slo_ns = residuals[self._done - len(sessions)]
                if not self._place(model, rate, slo_ns):
                    self.left.append((model, rate, slo_ns))
            else:
                return True
            self._done += 1
        return self._done >= len(sessions) and self._done == len(sessions) + len(residuals)

    def _begin(self, session: Session) -> None:
        """Give a session the devices that it keeps busy, and note what is left of its rate."""
        model, slo_ns = session.model, session.slo_ns
        rate = self._saturate(model, session.rows_per_epoch * self._factor, slo_ns)
        if rate > 0:
            self._residuals.append((-_weight(model, rate, slo_ns), model.number, model, rate, slo_ns))

    def squeeze(self, limit: int) -> bool:
        """Put up to ``limit`` of what did not fit onto the least busy devices; return whether that is all."""
        for model, rate, slo_ns in self.left[:limit]:
            best: tuple[float, int] | None = None
            chosen: tuple[Node, InferTimes] | None = None
            for node in self.nodes:
                times = _times(model, node.worker)
                if times is None or model.number in node.numbers:
                    continue
                key = node.occupancy, node.worker.number
                if node.pages + model.pages <= node.worker.pages.size and (best is None or key < best):
                    best, chosen = key, (node, times)
            if chosen is not None:
                node, times = chosen
                duty_ns = residual_duty_ns(times, slo_ns, rate) or times.ns[0]
                node.add(Share(model, times, rate, slo_ns), max(duty_ns, node.duty_ns))
                self._overfull[node.worker.name] = node
        del self.left[:limit]
        if self.left:
            return False
        for node in self._overfull.values():
            node.overfill()
        return True

    def _saturate(self, model: Model, rate: float, slo_ns: int) -> float:
        """Give a session whole devices as long as it keeps one busy; return what is left of its rate."""
        if not any(_keeps_busy(times, rate, slo_ns) for times in model.infer_times.values()):
            return rate
        homes, usable = self._homes.get(model.number, ()), model.usable
        # First the devices that served the model, then those that hold it.
        for node in sorted(
            self.nodes, key=lambda node: (node.worker.name not in homes, node.worker.name not in usable)
        ):
            times = _times(model, node.worker)
            if node.shares or times is None or model.pages > node.worker.pages.size:
                continue
            if not _keeps_busy(times, rate, slo_ns):
                break
            index = saturating(times, slo_ns)
            capacity = times.sizes[index] / times.ns[index]
            node.add(Share(model, times, capacity * (1 - 1e-9), slo_ns), times.ns[index])
            rate -= capacity
        return rate

    def _place(self, model: Model, rate: float, slo_ns: int) -> bool:
        """Put a residual load where it was, or where the device gets busiest by it; empty ones come last."""
        homes, usable = self._homes.get(model.number, ()), model.usable
        best: tuple[bool, float, bool] | None = None
        chosen: tuple[Node, InferTimes, int] | None = None
        times: InferTimes | None = None
        duty_ns = 0
        for node in self.nodes:
            name = node.worker.name
            here = _times(model, node.worker)
            if here is None:
                continue
            if here is not times:
                times = here
                duty_ns = residual_duty_ns(times, slo_ns, rate)
            occupancy = node.occupancy_with(model, here, rate, duty_ns) if duty_ns else None
            if occupancy is None or model.number in node.numbers:
                continue
            key = name in homes, occupancy if node.shares else 0.0, name in usable
            if best is None or key > best:
                best, chosen = key, (node, here, duty_ns)
        if chosen is None:
            return False
        node, times, duty_ns = chosen
        node.add(Share(model, times, rate, slo_ns), duty_ns)
        return True


class Planner:
    """Looks for the largest part of all rates that fits, a few sessions with each call."""

    def __init__(
        self,
        sessions: list[Session],
        workers: list[Worker],
        homes: dict[int, list[str]],
        epoch_ns: int,
        headroom: float,
    ) -> None:
        self._given = sessions, workers, homes
        self._epoch_ns = epoch_ns
        self._least, self._most = 0.0, 1.0 + headroom
        self._factor = self._most
        self._scalings = SCALINGS if len(sessions) <= SCALED_SESSIONS else 0
        self._best: Packing | None = None
        self._squeezes = False
        self._first = self._current = self._packing()

    def advance(self, limit: int) -> list[Node] | None:
        """Place up to ``limit`` sessions or residual loads; return a node for each worker at the end."""
        packing = self._current
        if self._squeezes:
            return packing.nodes if packing.squeeze(limit) else None
        if not packing.advance(limit):
            return None
        if not packing.left:
            self._least, self._best = self._factor, packing
            if packing is self._first:
                return packing.nodes
        else:
            self._most = self._factor
        if self._scalings:
            self._scalings -= 1
            self._factor = (self._least + self._most) / 2
            self._current = self._packing()
            return None
        if self._best is not None:
            return self._best.nodes
        self._current, self._squeezes = self._first, True
        return None

    def _packing(self) -> Packing:
        return Packing(*self._given, self._factor / self._epoch_ns)


def _times(model: Model, worker: Worker) -> InferTimes | None:
    """Return a model's estimates on a worker that could run it, None for another."""
    if worker.name in model.usable or is_loadable(model, worker):
        return model.infer_times[worker.kind]
    return None


def _keeps_busy(times: InferTimes, rate: float, slo_ns: int) -> bool:
    """Return whether a rate is at least what a device of its own does in batches of half the SLO."""
    index = saturating(times, slo_ns)
    return 2 * times.ns[index] <= slo_ns and rate * times.ns[index] >= times.sizes[index]


def _weight(model: Model, rate: float, slo_ns: int) -> float:
    """Return how busy a residual load keeps a device of the first kind that there is."""
    for times in model.infer_times.values():
        duty_ns = residual_duty_ns(times, slo_ns, rate)
        if duty_ns:
            return times.ns[squished(times, rate, duty_ns)] / duty_ns
    return 1.0


def _order(residual: tuple[float, int, Model, float, int]) -> tuple[float, int]:
    return residual[0], residual[1]
