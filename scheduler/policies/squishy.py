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

from mainspring.scheduler.estimates import InferTimes
from mainspring.scheduler.mirror import Model, Placement, Worker
from mainspring.scheduler.policies.sessions import Session

SCALINGS = 6
"""How often the part of the rates that fits is halved in on."""
SCALED_SESSIONS = 512
"""More sessions than this are packed once, so that a plan does not take long."""

ROUNDING = 1e-6
"""Of a row: a product of floats may be so much too large."""


class Share:
    """What one device does for one session."""

    __slots__ = ("index", "placement", "rate", "slo_ns")

    def __init__(self, placement: Placement, rate: float, slo_ns: int) -> None:
        self.placement = placement
        self.rate = rate
        """Rows a nanosecond."""
        self.slo_ns = slo_ns
        self.index = 0
        """The index of the batch size."""


class Node:
    """One device with what it does in each of its cycles."""

    __slots__ = ("busy_ns", "duty_ns", "pages", "shares", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.duty_ns = 0
        """Length of the cycle; 0 while there is none."""
        self.busy_ns = 0
        """Duration of its batches together."""
        self.pages = 0
        self.shares: list[Share] = []

    @property
    def occupancy(self) -> float:
        """The part of the cycle that is busy."""
        return self.busy_ns / self.duty_ns if self.duty_ns else 0.0

    def occupancy_with(self, share: Share, duty_ns: int) -> float | None:
        """Return the occupancy with a share that has a duty cycle of its own, or None if it does not fit."""
        duty_ns = min(duty_ns, self.duty_ns or duty_ns)
        if self.pages + share.placement.model.pages > self.worker.pages.size:
            return None
        busy_ns = share.placement.times.ns[squished(share, duty_ns)]
        if self.busy_ns + busy_ns > duty_ns and duty_ns == self.duty_ns:
            return None
        if duty_ns == self.duty_ns:
            busy_ns += self.busy_ns
        else:
            busy_ns += sum([each.placement.times.ns[squished(each, duty_ns)] for each in self.shares])
        return busy_ns / duty_ns if busy_ns <= duty_ns else None

    def add(self, share: Share, duty_ns: int) -> None:
        """Take a share in, and shrink all batches to the cycle."""
        self.shares.append(share)
        self.pages += share.placement.model.pages
        self.duty_ns = duty_ns = min(duty_ns, self.duty_ns or duty_ns)
        self.busy_ns = 0
        for each in self.shares:
            each.index = squished(each, duty_ns)
            self.busy_ns += each.placement.times.ns[each.index]

    def overfill(self) -> None:
        """Give each share the batch of a whole device: there are more than a cycle holds."""
        for each in self.shares:
            each.index = saturating(each.placement.times, each.slo_ns)


def squished(share: Share, duty_ns: int) -> int:
    """Return the index of the smallest batch size that serves a rate once each duty cycle."""
    index_of = share.placement.times.index_of
    rows = math.ceil(duty_ns * share.rate - ROUNDING)
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

    The batch is that which keeps a device least busy. A cycle need not be so long that the batch is full:
    it ends in time for a request that came as it began.
    """
    found_ns, least = 0, 1.0
    for size, duration_ns in zip(times.sizes, times.ns, strict=True):
        duty_ns = min(slo_ns - duration_ns, int(size / rate))
        if duty_ns >= duration_ns and duration_ns / duty_ns <= least:
            found_ns, least = duty_ns, duration_ns / duty_ns
    return found_ns


class Packing:
    """One attempt at packing sessions onto workers with a factor on all rates."""

    def __init__(self, workers: list[Worker], homes: dict[int, list[str]]) -> None:
        """``homes`` has the names of the workers where each model, by number, was served until now."""
        self.nodes = [Node(worker) for worker in workers]
        self._homes = homes
        self.left: list[tuple[Model, float, int]] = []
        """(model, rate, SLO) of what did not fit."""

    def pack(self, sessions: list[Session], epoch_ns: int, factor: float) -> bool:
        """Pack; return whether everything fits."""
        residuals: list[tuple[float, int, Model, float, int]] = []
        for session in sessions:
            model, slo_ns = session.model, session.slo_ns
            rate = self._saturate(model, session.rows_per_epoch * factor / epoch_ns, slo_ns)
            if rate > 0:
                residuals.append((-_weight(model, rate, slo_ns), model.number, model, rate, slo_ns))
        residuals.sort(key=_order)
        for _, _, model, rate, slo_ns in residuals:
            if not self._place(model, rate, slo_ns):
                self.left.append((model, rate, slo_ns))
        return not self.left

    def squeeze(self) -> None:
        """Put what did not fit onto the least busy devices all the same."""
        overfull: dict[str, Node] = {}
        for model, rate, slo_ns in self.left:
            best: tuple[float, int, Node, Placement] | None = None
            for node in self.nodes:
                placement = _placement(model, node.worker)
                if placement is None or node.pages + model.pages > node.worker.pages.size:
                    continue
                if any(share.placement is placement for share in node.shares):
                    continue
                key = node.occupancy, node.worker.number
                if best is None or key < best[:2]:
                    best = *key, node, placement
            if best is not None:
                _, _, node, placement = best
                duty_ns = residual_duty_ns(placement.times, slo_ns, rate) or placement.times.ns[0]
                node.add(Share(placement, rate, slo_ns), max(duty_ns, node.duty_ns))
                overfull[node.worker.name] = node
        for node in overfull.values():
            node.overfill()
        self.left = []

    def _saturate(self, model: Model, rate: float, slo_ns: int) -> float:
        """Give a session whole devices as long as it keeps one busy; return what is left of its rate."""
        for node in self._preferred(model):
            placement = _placement(model, node.worker)
            if node.shares or placement is None or model.pages > node.worker.pages.size:
                continue
            times = placement.times
            index = saturating(times, slo_ns)
            capacity = times.sizes[index] / times.ns[index]
            if rate < capacity or 2 * times.ns[index] > slo_ns:
                break
            node.add(Share(placement, capacity * (1 - 1e-9), slo_ns), times.ns[index])
            rate -= capacity
        return rate

    def _place(self, model: Model, rate: float, slo_ns: int) -> bool:
        """Put a residual load where it was, or where the device gets busiest by it."""
        homes = self._homes.get(model.number, ())
        best: tuple[bool, float, Node, Share, int] | None = None
        for node in self._preferred(model):
            placement = _placement(model, node.worker)
            if placement is None or any(share.placement is placement for share in node.shares):
                continue
            share = Share(placement, rate, slo_ns)
            duty_ns = residual_duty_ns(placement.times, slo_ns, rate)
            occupancy = node.occupancy_with(share, duty_ns) if duty_ns else None
            if occupancy is not None:
                key = node.worker.name in homes, occupancy if node.shares else 0.0
                if best is None or key > best[:2]:
                    best = *key, node, share, duty_ns
        if best is None:
            return False
        _, _, node, share, duty_ns = best
        node.add(share, duty_ns)
        return True

    def _preferred(self, model: Model) -> list[Node]:
        """Return the nodes: first those that served a model, then those that hold it, then the others."""
        homes, usable = self._homes.get(model.number, ()), model.usable
        return sorted(
            self.nodes, key=lambda node: (node.worker.name not in homes, node.worker.name not in usable)
        )


def packed(
    sessions: list[Session],
    workers: list[Worker],
    homes: dict[int, list[str]],
    epoch_ns: int,
    headroom: float,
) -> list[Node]:
    """Return a node for each worker, with the largest part of all rates that fits."""
    least, most = 0.0, 1.0 + headroom
    factor, best = most, Packing(workers, homes)
    if best.pack(sessions, epoch_ns, factor):
        return best.nodes
    overfull, found = best, False
    for _ in range(SCALINGS if len(sessions) <= SCALED_SESSIONS else 0):
        factor = (least + most) / 2
        packing = Packing(workers, homes)
        if packing.pack(sessions, epoch_ns, factor):
            least, best, found = factor, packing, True
        else:
            most = factor
    if not found:
        overfull.squeeze()
        return overfull.nodes
    return best.nodes


def _placement(model: Model, worker: Worker) -> Placement | None:
    """Return a model's placement on a worker that could run it."""
    placement = model.placements.get(worker.name)
    if placement is None or placement.leaving or not (placement.usable or placement.loadable):
        return None
    return placement


def _weight(model: Model, rate: float, slo_ns: int) -> float:
    """Return how busy a residual load keeps a device of the first kind that there is."""
    for times in model.infer_times.values():
        duty_ns = residual_duty_ns(times, slo_ns, rate)
        if duty_ns:
            rows = max(1, min(math.ceil(duty_ns * rate - ROUNDING), len(times.index_of) - 1))
            return times.ns[times.index_of[rows]] / duty_ns
    return 1.0


def _order(residual: tuple[float, int, Model, float, int]) -> tuple[float, int]:
    return residual[0], residual[1]
