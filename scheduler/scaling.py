"""The number of workers of each kind that operators want: who is started, who leaves, and when it may be
stopped.

A worker that is to leave *retires*: nothing is loaded there any more, and idle LOAD executors of others load
the models that only such workers hold (`load_queue.DrainReplicas`), the last used first, over none that was
used later. Then it is *drained*: it gets no more work. Once nothing is outstanding on it, its provider is
told to run all others. If more are wanted meanwhile, those that retire stay.

A worker that goes to another controller of the cluster retires in the same way, and is sent there at the end
instead of stopped. Its provider, if it has one, is told so: it is to run it for that controller.

What is to be run is decided once and said as a whole set (`messages.scaling.Provide`), so that it makes no
difference which provider, or how often, carries it out.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.provision import Kind
from mainspring.cluster.scaling import wanted
from mainspring.cluster.workers import Worker
from mainspring.messages.scaling import Provide, ProviderSaid, Retain, Retire
from mainspring.scheduler.alarms import Alarm
from mainspring.scheduler.draining import Draining
from mainspring.scheduler.load_queue import DrainReplicas
from mainspring.scheduler.membership import Membership
from mainspring.scheduler.state import SchedulerState

LOOK_NS: Final = 20_000_000
"""The time between two looks at workers that retire."""
TAKEOVER_NS: Final = 30_000_000_000
"""Time that others may take to load what a worker holds; then it is drained all the same."""
_SCALE: Final = Alarm.SCALE


class Scaling:
    """Has every kind's provider run as many workers as are wanted."""

    def __init__(
        self, state: SchedulerState, draining: Draining, drain_replicas: DrainReplicas, membership: Membership
    ) -> None:
        self._state = state
        self._draining = draining
        self._drain_replicas = drain_replicas
        self._membership = membership
        self._since: dict[str, int] = {}
        """Instant at which each worker that retires was told to."""
        self._looks_ns: int | None = None
        """The alarm of the next look."""

    def provider_said(self, now_ns: int, event: ProviderSaid) -> None:
        """Settle what is left to do; tell a provider again what it is to run if it runs something else."""
        kinds = [each for each in self._state.cluster.kinds.values() if each.provider == event.provider]
        before = [each.workers for each in kinds]
        self.settle(now_ns)
        for kind, run in zip(kinds, before, strict=True):
            if kind.workers == run and set(kind.offer.workers) != set(run):
                self._provide(now_ns, kind, list(run))

    def settle(self, now_ns: int) -> None:
        """Have as many workers as are wanted, as far as that can be decided now."""
        for kind in self._state.cluster.kinds.values():
            if kind.provider:
                self._fit(now_ns, kind)
        self.look(now_ns)

    def move(self, now_ns: int, name: str, to: str) -> None:
        """Begin to send a worker to another controller, at an address."""
        self._retire(now_ns, self._state.cluster.workers[name].device_kind, name, to)
        self.look(now_ns)

    def look(self, now_ns: int) -> None:
        """Take those that retire a step further; look again while there are any."""
        cluster = self._state.cluster
        if self._looks_ns is not None and now_ns >= self._looks_ns:
            self._looks_ns = None
        if not cluster.retiring:
            self._since.clear()
            self._drain_replicas.end()
            return
        for name in list(cluster.moving):
            self._send_away(now_ns, name)
        waits = bool(cluster.moving)
        for kind in cluster.kinds.values():
            if kind.provider:
                leaving = [name for name in kind.workers if name not in cluster.moving]
                gone = [name for name in leaving if self._is_gone(now_ns, name)]
                if gone:
                    self._provide(now_ns, kind, [name for name in kind.workers if name not in gone])
                waits = waits or bool([name for name in kind.workers if name in cluster.retiring])
        if waits and self._looks_ns is None:
            self._looks_ns = now_ns + LOOK_NS
            self._state.alarms.set(self._looks_ns, _SCALE)

    def _fit(self, now_ns: int, kind: Kind) -> None:
        """Choose who is to be started, who leaves, and who stays after all."""
        count, cluster = wanted(self._state.cluster, kind.name), self._state.cluster
        if count is None:
            return
        # Those that go to another controller are counted there once they have gone.
        staying = [n for n in kind.workers if n not in cluster.retiring or n in cluster.moving]
        run = list(kind.workers)
        if len(staying) > count:
            here = [name for name in staying if name not in cluster.moving]
            for name in self._first_to_go(here)[: len(staying) - count]:
                if name in cluster.workers:
                    self._retire(now_ns, kind.name, name)
                else:
                    run.remove(name)
        else:
            missing = count - len(staying)
            leaving = [n for n in cluster.retiring if n in kind.workers and n not in cluster.moving]
            for name in reversed(leaving[max(0, len(leaving) - missing) :]):
                self._retain(now_ns, name)
                missing -= 1
            for _ in range(missing):
                run.append(self._new_name(kind, run))
        if run != list(kind.workers):
            self._provide(now_ns, kind, run)

    def _first_to_go(self, names: list[str]) -> list[str]:
        """Return workers in the order in which they should leave: those that are not there, those that
        operators drained, those that are no model's own, those that hold least which no other worker does,
        the newest."""
        workers = self._state.cluster.workers
        keys: list[tuple[int, int, int, int, int, str]] = []
        for index, name in enumerate(names):
            worker = workers.get(name)
            if worker is None:
                keys.append((0, 0, 0, 0, -index, name))
            else:
                alone = sum([each.model.pages for each in self._drain_replicas.alone_on(worker)])
                busy = 0 if worker.draining else 1
                keys.append((1, busy, worker.owner != "", alone, -worker.number, name))
        return [key[5] for key in sorted(keys)]

    def _new_name(self, kind: Kind, run: list[str]) -> str:
        cluster, number = self._state.cluster, 0
        while True:
            name = f"{kind.offer.stem}-{number}"
            others = [each for each in cluster.kinds.values() if name in each.workers]
            taken = name in run or name in cluster.workers or name in cluster.retiring
            taken = taken or name in kind.offer.taken
            if not others and not taken:
                return name
            number += 1

    def _send_away(self, now_ns: int, name: str) -> None:
        """Send a worker to another controller once it is drained and nothing is outstanding on it."""
        cluster = self._state.cluster
        if not self._is_gone(now_ns, name):
            return
        to = cluster.moving[name]
        kind = cluster.kinds.get(cluster.retiring[name][0])
        if kind is not None and name in kind.workers:
            self._provide(now_ns, kind, [each for each in kind.workers if each != name], {name: to})
        self._membership.drop(now_ns, name, f"it was moved to {to}", to=to)

    def _retire(self, now_ns: int, kind: str, name: str, to: str = "") -> None:
        self._since[name] = now_ns
        self._state.emit(now_ns, Retire(name, kind, to=to))
        self._drain_replicas.begin(self._state.cluster.workers[name])
        self._state.wants_loads()

    def _retain(self, now_ns: int, name: str) -> None:
        self._since.pop(name, None)
        self._state.emit(now_ns, Retain(name))
        worker = self._state.cluster.workers.get(name)
        if worker is not None:
            self._draining.resumed(now_ns, worker)

    def _is_gone(self, now_ns: int, name: str) -> bool:
        """Take a worker that retires a step further; return whether it is not needed here any more."""
        cluster = self._state.cluster
        retiring, worker = cluster.retiring.get(name), cluster.workers.get(name)
        if retiring is None or worker is None:
            return retiring is not None
        if not retiring[1]:
            since_ns = self._since.setdefault(name, now_ns)
            if self._drain_replicas.lacks(worker) and now_ns - since_ns < TAKEOVER_NS:
                return False
            self._state.emit(now_ns, Retire(name, retiring[0], drained=True))
            self._draining.drained(now_ns, worker)
        return _is_idle(worker)

    def _provide(self, now_ns: int, kind: Kind, run: list[str], moved: dict[str, str] | None = None) -> None:
        self._state.emit(now_ns, Provide(kind.provider, kind.name, tuple(run), moved or {}))


def _is_idle(worker: Worker) -> bool:
    """Return whether nothing is outstanding on a worker."""
    return not (len(worker.exec) or len(worker.load) or worker.others)
