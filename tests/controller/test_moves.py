"""A worker on its way to another controller, without sockets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import Dropped
from mainspring.controller.shell import Shell
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Load, Result
from mainspring.messages.codec import encode
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.operating import MoveWorker
from mainspring.messages.peers import AdminRequest, GatewayHello, Pong, WorkerHello
from mainspring.messages.sharding import AGAIN, MOVED
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from tests.controller.peers import MS, spec
from tests.controller.test_shell import Wire

ADDRESSES = ("tcp://a:1", "tcp://b:1")


class Bench:
    """The first of two controllers with two workers, one of which has the only copy of a model."""

    def __init__(self, state: Path | None = None) -> None:
        self.wire, dropped = Wire(), Dropped()
        self.scheduler = Scheduler(SchedulerConfig())
        self.logged = LoggedScheduler(self.scheduler, None, dropped)
        config = ControllerConfig(
            join_pongs=1, shards=ADDRESSES, state_file=None if state is None else str(state)
        )
        self.shell = Shell(config, self.logged, self.wire, dropped)
        self.shell.registry.add(0, spec())
        self.receive(0, b"gateway/g", GatewayHello(PROTOCOL_VERSION, "g0"))

    def receive(self, now_ns: int, peer: bytes, message: msgspec.Struct) -> None:
        self.shell.receive(now_ns, peer, [encode(message)])

    def join(self, name: str, *, holds: bool = False, sent: str = "") -> None:
        artifact, pages = spec().artifact, tuple(range(spec().pages))
        resident = (Resident("m0", artifact, pages),) if holds else ()
        hello = WorkerHello(
            PROTOCOL_VERSION, name, "cpu", 8, PAGE_BYTES, "tcp://h:1", {"m0": artifact}, resident, (), sent
        )
        self.receive(0, f"worker/{name}".encode(), hello)
        if f"worker/{name}".encode() in [each.peer for each in self.shell.sessions.workers.values()]:
            self.receive(10, f"worker/{name}".encode(), Pong(1, 0, 5, 5))

    def ask(self, worker: str, controller: str = ADDRESSES[1]) -> str:
        self.receive(20, b"gateway/g", AdminRequest(7, move_worker=MoveWorker(worker, controller)))
        return str([each for to, each in self.wire.sent if each["type"] == "admin_reply"][-1]["detail"])

    def beat(self, now_ns: int) -> None:
        for worker in self.shell.sessions.all():
            worker.heard_ns = now_ns
        self.shell.peers.beat(now_ns)
        self.shell.carry_out(now_ns, self.logged.schedule(now_ns))

    def greets(self, name: str) -> list[object]:
        peer = f"worker/{name}".encode()
        return [each for to, each in self.wire.sent if to == peer and each["type"] == "greet"]


def test_what_only_it_holds_is_loaded_elsewhere_before_a_worker_is_drained_and_sent() -> None:
    bench = Bench()
    bench.join("w0", holds=True)
    bench.join("w1")
    assert bench.ask("w0") == ""
    bench.beat(30 * MS)
    loads = [each for to, each in bench.wire.sent if to == b"worker/w1" and each["type"] == "load"]
    assert len(loads) == 1
    assert not bench.scheduler.cluster.is_drained("w0")
    load = msgspec.convert({key: value for key, value in loads[0].items() if key != "type"}, Load)
    done = Result(load.action_id, "w1", Status.OK, 31 * MS, 32 * MS)
    bench.receive(33 * MS, b"worker/w1", done)
    assert not bench.greets("w0")
    bench.beat(130 * MS)
    assert bench.greets("w0") == [{"type": "greet", "controller": ADDRESSES[1], "again": False}]
    assert list(bench.shell.sessions.workers) == ["w1"]
    assert not bench.scheduler.cluster.is_drained("w0")
    bench.scheduler.validate()


def moved() -> Bench:
    bench = Bench()
    bench.join("w0")
    bench.join("w1")
    bench.ask("w0")
    bench.beat(30 * MS)
    bench.beat(130 * MS)
    assert len(bench.greets("w0")) == 1
    return bench


def test_a_worker_that_starts_again_is_sent_after_and_one_that_is_sent_back_is_taken() -> None:
    bench = moved()
    for sent in ("", AGAIN):
        bench.join("w0", sent=sent)
        assert bench.greets("w0")[-1] == {"type": "greet", "controller": ADDRESSES[1], "again": True}
        assert "w0" not in bench.shell.sessions.workers
    bench.join("w0", sent=MOVED)
    assert "w0" in bench.shell.sessions.workers
    bench.join("w0")
    assert "w0" in bench.shell.sessions.workers, "it belongs here again"


@pytest.mark.parametrize(
    ("worker", "controller", "says"),
    [
        ("w9", ADDRESSES[1], "there is no worker 'w9'"),
        ("w0", "tcp://c:1", "'tcp://c:1' is not one of the controllers, which are tcp://a:1, tcp://b:1"),
    ],
)
def test_a_move_that_can_not_be_is_refused(worker: str, controller: str, says: str) -> None:
    bench = Bench()
    bench.join("w0")
    bench.join("w1")
    assert says in bench.ask(worker, controller)


def test_the_last_worker_stays() -> None:
    bench = Bench()
    bench.join("w0")
    assert "w0 is the only worker that stays here" in bench.ask("w0")
    bench = Bench()
    bench.join("w0", holds=True)
    bench.join("w1")
    assert bench.ask("w0") == ""
    assert "w0 is on its way to tcp://b:1 already" in bench.ask("w0")
    assert "w1 is the only worker that stays here" in bench.ask("w1"), "the other one is on its way"


def test_a_worker_that_leaves_by_itself_meanwhile_is_not_drained_when_it_comes_back() -> None:
    bench = Bench()
    bench.join("w0", holds=True)
    bench.join("w1")
    bench.ask("w0")
    bench.beat(30 * MS)
    session = bench.shell.sessions.workers["w0"]
    bench.shell.peers.end(40 * MS, session, "it died")
    bench.beat(130 * MS)
    bench.join("w0")
    assert not bench.scheduler.cluster.moving
    assert not bench.scheduler.cluster.retiring
    assert not bench.greets("w0")


def test_where_workers_went_outlives_the_controller(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    memory = Memory(str(path))
    memory.moved("w0", ADDRESSES[1])
    memory.moved("w1", ADDRESSES[1])
    memory.moved("w1", "")
    assert Memory(str(path)).places == {"w0": ADDRESSES[1]}
    bench = Bench(path)
    bench.join("w0")
    assert bench.greets("w0") == [{"type": "greet", "controller": ADDRESSES[1], "again": True}]
