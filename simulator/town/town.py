"""A town: its processes, what befalls them, and what holds whatever does (`Town.run`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop
from random import Random
from typing import Final, cast

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.environment import Agenda
from mainspring.simulator.town import controllers
from mainspring.simulator.town.clients import TownClient
from mainspring.simulator.town.clocks import Clock
from mainspring.simulator.town.controllers import TownController
from mainspring.simulator.town.device import TownEngine
from mainspring.simulator.town.faults import MS, STANDBY, Fault, drawn
from mainspring.simulator.town.gateways import TownGateway
from mainspring.simulator.town.judge import Judge
from mainspring.simulator.town.process import Process, Program
from mainspring.simulator.town.streams import Network
from mainspring.simulator.town.workers import TownWorker
from mainspring.simulator.town.workload import Request, Sent, Workload

SETTLE_NS: Final = 5_000 * MS
"""Time after the last fault from which all is well again."""
WELL_NS: Final = 1_000 * MS
"""Time for which goodput is looked at then."""
QUIET_NS: Final = 4_000 * MS
"""Time after the last request from which nothing is outstanding."""
RESTART_NS: Final = 500 * MS
"""Time after which a worker that ended by itself is started again."""
CHECK_NS: Final = 500 * MS
"""Time between two checks of every core."""


class Plan(msgspec.Struct, frozen=True):
    """The course of a town: all that its seed decides before it begins."""

    seed: int
    gateways: int
    pages: tuple[int, ...]
    """Pages of each worker."""
    clocks: tuple[tuple[int, int], ...]
    """Offset and rate of each process's clock, in ns and ppm."""
    beat_ms: float
    """The controller's ``heartbeat_interval_ms``."""
    delay_ns: int
    jitter_ns: int
    models: tuple[ModelSpec, ...]
    requests: tuple[Request, ...]
    faults: tuple[Fault, ...]

    @property
    def over_ns(self) -> int:
        """Return when the last fault is over."""
        return max([each.end_ns for each in self.faults], default=MS)

    @property
    def end_ns(self) -> int:
        """Return when the town is looked at for the last time."""
        return self.over_ns + SETTLE_NS + WELL_NS + QUIET_NS


def names(plan_gateways: int, workers: int) -> list[str]:
    """Return the names of a town's processes."""
    gateways = [f"gateway{number}" for number in range(plan_gateways)]
    return ["controller0", *gateways, *(f"worker{number}" for number in range(workers))]


def plan_of(seed: int, workload: Workload, most_faults: int = 4) -> Plan:
    """Return what a seed decides."""
    draws = Random(seed)
    gateways, workers = draws.choice((1, 1, 2)), draws.choice((1, 2, 2, 3))
    processes = names(gateways, workers)
    models = workload.models(draws)
    faults = drawn(draws, processes, _pairs(processes), draws.randint(0, most_faults))
    clients = 2
    clocks = tuple(
        (draws.randint(0, 10**15), draws.randint(-200, 200)) for _ in range(len(processes) + 1 + clients)
    )
    plan = Plan(
        seed=seed,
        gateways=gateways,
        pages=tuple([draws.randint(4, 8) for _ in range(workers)]),
        clocks=clocks,
        # Of fewer pings more seeds can be played.
        beat_ms=draws.choice((100.0, 250.0, 400.0, 400.0)),
        delay_ns=draws.choice((20_000, 100_000, 500_000)),
        jitter_ns=draws.choice((0, 200_000, 5_000_000)),
        models=tuple(models),
        requests=(),
        faults=tuple(faults),
    )
    end_ns = plan.over_ns + SETTLE_NS + WELL_NS
    requests = workload.requests(draws, models, end_ns)
    return msgspec.structs.replace(plan, requests=tuple(requests))


def _pairs(processes: list[str]) -> list[tuple[str, str]]:
    """Return who talks with whom."""
    gateways = [each for each in processes if each.startswith("gateway")]
    workers = [each for each in processes if each.startswith("worker")]
    found = [("controller0", each) for each in (*gateways, *workers)]
    found += [(gateway, worker) for gateway in gateways for worker in workers]
    return found + [(f"client{number}", gateways[number % len(gateways)]) for number in range(2)]


class Town:
    """One cluster in virtual time."""

    def __init__(self, plan: Plan, workload: Workload, *, tells: bool = False) -> None:
        """``tells``: keep the story of what goes wrong."""
        self.plan, self.workload, self._tells = plan, workload, tells
        self.agenda = Agenda()
        self.network = Network(self.agenda, Random(plan.seed + 1), plan.delay_ns, plan.jitter_ns)
        self.engines = {f"worker{number}": TownEngine(pages) for number, pages in enumerate(plan.pages)}
        self._epoch = 0
        """The highest epoch so far: a lease would tell it."""
        self.processes: dict[str, Process] = {}
        starts: dict[str, Callable[[Process], Program]] = {"controller0": self._controller}
        for number in range(plan.gateways):
            starts[f"gateway{number}"] = self._gateway
        for name in self.engines:
            starts[name] = self._worker
        for number in range(2):
            starts[f"client{number}"] = partial(self._client, f"gateway{number % plan.gateways}")
        starts[STANDBY] = self._controller
        for number, (name, start) in enumerate(starts.items()):
            clock = Clock(*plan.clocks[number])
            host = f"10.0.0.{number + 1}"
            self.processes[name] = Process(name, host, clock, self.agenda, self.network, start)
        self.judge = Judge(self)
        self.sent: list[Sent] = []
        """Every request that was to be sent by now."""

    def run(self) -> None:
        """Let everything happen; raise AssertionError at the first thing that is wrong."""
        agenda, plan = self.agenda, self.plan
        for process in self.processes.values():
            if process.name != STANDBY:
                agenda.at(0, process.start)
        for key, request in enumerate(plan.requests, 1):
            agenda.at(request.at_ns, self._send, key, request)
        for fault in plan.faults:
            agenda.at(fault.at_ns, self._begin, fault)
            agenda.at(fault.end_ns, self._over, fault)
        agenda.at(CHECK_NS, self._check)
        end_ns, entries = plan.end_ns, agenda.entries
        while entries[0][0] <= end_ns:
            agenda.now_ns, _, function, arguments = heappop(entries)
            function(*arguments)
        self.judge.settled()
        for wrong in self.workload.ended(self):
            raise AssertionError(wrong)

    def host(self, name: str) -> str:
        """Return the host of a process."""
        return self.processes[name].host

    # --- programs ---

    def _controller(self, process: Process) -> TownController:
        self._epoch += 1
        return TownController(
            process,
            self.plan.models,
            SchedulerConfig(epoch=self._epoch),
            self.plan.beat_ms,
            tells=self._tells,
        )

    def _gateway(self, process: Process) -> TownGateway:
        return TownGateway(process, self._leader(), self.plan.seed)

    def _worker(self, process: Process) -> TownWorker:
        engine = self.engines[process.name]
        fresh = TownEngine(len(engine.memory))
        fresh.slow, fresh.hung, fresh.failing, fresh.full = (
            engine.slow,
            engine.hung,
            engine.failing,
            engine.full,
        )
        self.engines[process.name] = fresh
        return TownWorker(process, fresh, self._leader(), self.judge.began)

    def _client(self, gateway: str, process: Process) -> TownClient:
        return TownClient(process, self.host(gateway), self.judge.replied)

    def _leader(self) -> str:
        """Return the addresses of the controllers, of which one leads."""
        names = ["controller0"]
        if any(each.kind == "takeover" for each in self.plan.faults):
            names.append(STANDBY)
        return ",".join([f"tcp://{self.host(name)}:{controllers.PORT}" for name in names])

    @property
    def leader(self) -> TownController | None:
        """The controller of the highest epoch, if it runs."""
        for name in ("controller0", STANDBY):
            program = self.processes[name].program
            if isinstance(program, TownController) and program.scheduler.config.epoch == self._epoch:
                return program
        return None

    # --- what happens ---

    def _send(self, key: int, request: Request) -> None:
        sent = Sent(key, request)
        self.sent.append(sent)
        client = cast(TownClient, self.processes[f"client{request.client}"].program)
        client.send(sent)
        if sent.sent_ns >= 0:
            self.judge.awaits(sent)
            if request.cancel_ns is not None:
                self.agenda.at(self.agenda.now_ns + request.cancel_ns, client.cancel, key)

    def _check(self) -> None:
        self.judge.look()
        for process in self.processes.values():
            program = process.program
            if program is None:
                continue
            program.check()
        self._restart()
        self.agenda.at(self.agenda.now_ns + CHECK_NS, self._check)

    def _restart(self) -> None:
        """Have what ended by itself start again."""
        dead = {each.where for each in self.plan.faults if self._is_dead(each)}
        for name, process in self.processes.items():
            if process.program is None and name in self.engines and name not in dead:
                self.engines[name].lost = False
                self.agenda.at(self.agenda.now_ns + RESTART_NS, process.start)

    def _is_dead(self, fault: Fault) -> bool:
        return fault.kind in ("crash", "power") and fault.at_ns <= self.agenda.now_ns < fault.end_ns

    def _begin(self, fault: Fault) -> None:
        process, network, until_ns = self.processes[fault.where], self.network, fault.end_ns
        match fault.kind:
            case "stall":
                network.stall(process.host, self.host(fault.to), until_ns)
            case "partition":
                for other in self.processes.values():
                    network.stall(process.host, other.host, until_ns)
                    network.stall(other.host, process.host, until_ns)
            case "break":
                self._break(process.host, self.host(fault.to), round(fault.amount * 1e9))
            case "crash":
                process.crash()
            case "power":
                network.off.add(process.host)
                process.crash(None)
            case "takeover":
                process.start()
            case "pause":
                process.pause(until_ns)
            case "step":
                process.clock.step(self.agenda.now_ns, round(min(fault.amount, 10.0) * 1e9))
                process.poke()
            case _:
                self._device(fault, broken=True)

    def _over(self, fault: Fault) -> None:
        process = self.processes[fault.where]
        match fault.kind:
            case "crash" | "power":
                self.network.off.discard(process.host)
                process.start()
            case "slow" | "hang":
                self._device(fault, broken=False)
            case "fail" | "full":
                # A model that a device could not load three times is given up there until somebody acts.
                self._device(fault, broken=False)
                process.crash()
                process.start()

    def _device(self, fault: Fault, *, broken: bool) -> None:
        engine = self.engines[fault.where]
        match fault.kind:
            case "slow":
                engine.slow = fault.amount if broken else 1.0
            case "hang":
                engine.hung = broken
                program = self.processes[fault.where].program
                if not broken and isinstance(program, TownWorker):
                    program.resume()
            case "fail":
                engine.failing = broken
            case "full":
                engine.full = broken
            case "lost":
                engine.lost = broken
            case "corrupt":
                for page in range(len(engine.memory)):
                    engine.corrupt(page)

    def _break(self, one: str, other: str, notice_ns: int) -> None:
        for stream in [each for each in self.network.streams.values() if {*each.hosts} == {one, other}]:
            late = 0 if stream.hosts[0] == one else 1
            notices = [0, 0]
            notices[late] = notice_ns
            self.network.break_off(stream, notices)
