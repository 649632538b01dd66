"""A worker of a town: core, network side and executors as they are deployed, without threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, cast

from mainspring.messages.actions import Infer
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.roles import Role
from mainspring.simulator.town.device import IO_BYTES, KIND, TownEngine
from mainspring.simulator.town.ports import TownLink, TownListener
from mainspring.simulator.town.process import Process
from mainspring.transport.bounds import Limits
from mainspring.transport.controllers import connect
from mainspring.worker.batches import Outbox
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.executors import Executors
from mainspring.worker.inputs import Inputs
from mainspring.worker.network import Network
from mainspring.worker.realtime import Rights
from mainspring.worker.sockets import Sockets

_LIMITS: Final = Limits(256 << 20, 512 << 20, 65_536)
_ALL: Final = tuple(Executor)
DATA_PORT: Final = 7500


class Begun(NamedTuple):
    """An INFER that a worker has begun, on its own clock."""

    worker: str
    action: Infer
    begin_ns: int
    true_ns: int


class Waking:
    """Has an executor looked at in the worker's next turn."""

    def __init__(self, woken: set[Executor], executor: Executor, poke: Callable[[], None]) -> None:
        self._woken, self._executor, self._poke = woken, executor, poke

    def notify(self) -> None:
        """Have it looked at."""
        self._woken.add(self._executor)
        self._poke()


class TownWorker:
    """See the module's docstring."""

    def __init__(
        self, process: Process, engine: TownEngine, controller: str, began: Callable[[Begun], None]
    ) -> None:
        """``began`` is told each INFER that begins."""
        pages = len(engine.memory)
        self.process, self.engine = process, engine
        self._began = began
        config = WorkerConfig(
            name=process.name, controller=controller, engine="emulated", device_kind=KIND, pages=pages,
            io_bytes=IO_BYTES, realtime=False, slab_bytes=0,
        )  # fmt: skip
        self.core = WorkerCore(process.name, pages, PAGE_BYTES, IO_BYTES)
        self._woken = set(Executor)
        self._due_ns = dict.fromkeys(Executor, 0)
        self._jobs: dict[Executor, tuple[Job, int]] = {}
        """The job of each executor, and its end in true time."""
        outbox = Outbox(process.poke)
        clock = process.now_ns
        self._executors = Executors(
            *(self.core, engine, Rights(False), outbox, 0),
            clock=clock,
            wakers={each: Waking(self._woken, each, process.poke) for each in Executor},
        )
        inputs = Inputs(
            *(engine.io, config.early_inputs, config.early_input_bytes),
            config.early_input_age_ms * 1_000_000,
        )
        hub = process.hub
        data_address = f"tcp://{process.host}:{DATA_PORT + process.life}"
        data = TownListener(hub, data_address, _LIMITS)
        begin = partial(self._begin, f"worker:{process.name}:{process.life}".encode())

        def greet(address: str) -> Any:
            return connect(cast(Any, hub), address, begin, clock)

        sockets = Sockets(hub, greet(controller), data, data_address, greet)
        self.network = Network(config, sockets, self._executors, inputs, outbox, [], clock=clock)

    def turn(self, now_ns: int) -> int:
        """Let jobs end and begin, take messages, send what has ended."""
        self._run()
        self.network.step(0)
        self._run()
        if self._executors.broken:
            self.process.crash()
            return now_ns
        wait_ns = self._executors.expire(self.network.longest_wait_ns(now_ns))
        idle = [self._due_ns[each] for each in _ALL if each not in self._jobs]
        return min([now_ns + wait_ns, *idle])

    def check(self) -> None:
        """Check the core."""
        self.core.validate()

    def _begin(self, identity: bytes, hub: object, address: str) -> Any:
        own = self.process.hub
        found = TownLink(own, address, _LIMITS, str(Role.WORKER).encode(), identity, keeps=False)
        found.group = getattr(hub, "_group", None)
        return found

    def _run(self) -> None:
        """Let each executor end and begin what it can."""
        for executor in _ALL:
            running = self._jobs.get(executor)
            if running is not None:
                if running[1] > self.process.agenda.now_ns:
                    continue
                del self._jobs[executor]
                self._end(executor, running[0])
            elif executor in self._woken or self.process.now_ns() >= self._due_ns[executor]:
                self._look(executor, self._executors.turn(executor))

    def _end(self, executor: Executor, job: Job) -> None:
        try:
            ended = self._executors.carry_out(job)
        except Exception as error:
            self._executors.broken = str(error)
            return
        self._look(executor, self._executors.turn(executor, ended))

    def _look(self, executor: Executor, job: Job | None) -> None:
        """Let a job's time pass that an executor has begun; without one it is looked at later."""
        self._woken.discard(executor)
        agenda = self.process.agenda
        if job is None:
            self._due_ns[executor] = self._executors.wake_ns(executor)
            return
        if isinstance(job.action, Infer):
            self._began(Begun(self.process.name, job.action, job.begin_ns, agenda.now_ns))
        end_ns = agenda.now_ns + self.engine.duration_ns(executor, job)
        self._jobs[executor] = job, end_ns
        agenda.at(end_ns, self._ended, executor, end_ns)

    def _ended(self, executor: Executor, end_ns: int) -> None:
        running = self._jobs.get(executor)
        if running is not None and running[1] == end_ns and self.process.program is self:
            self.process.poke()

    def resume(self) -> None:
        """The device runs again: what hung ends now."""
        now_ns = self.process.agenda.now_ns
        for executor, (job, end_ns) in list(self._jobs.items()):
            if end_ns - now_ns > 1 << 58:
                self._jobs[executor] = job, now_ns
        self.process.poke()
