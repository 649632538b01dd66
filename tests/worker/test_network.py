"""The network thread's steps with executors driven by hand: orders that threads rarely fall into."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Action, Load, Prepare, Result, Unload
from mainspring.messages.codec import FROM_WORKER, TO_CONTROLLER, encode
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import Input, Output, Welcome
from mainspring.transport.bounds import Delivery
from mainspring.worker.batches import Outbox
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engines.emulated import EmulatedEngine
from mainspring.worker.executors import EXPIRY_NS, Executors
from mainspring.worker.inputs import Inputs
from mainspring.worker.network import Network
from mainspring.worker.realtime import Rights
from mainspring.worker.sockets import Sockets
from tests.worker.peers import MS, SECOND, infer, load, spec


class HandWorker:
    """A welcomed worker without threads or sockets, with model ``m`` resident."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.outputs: list[Output] = []
        self.engine = EmulatedEngine("cpu", MIB)
        self.core = WorkerCore("w", 2, PAGE_BYTES, MIB)
        self.outbox = Outbox()
        rights = Rights(False)
        self.executors = Executors(self.core, self.engine, rights, self.outbox, 0)
        controller, data = SimpleNamespace(send=self._sent), SimpleNamespace(send=self._replied, ended=0)
        sockets = Sockets(cast(Any, None), cast(Any, controller), cast(Any, data), "", cast(Any, None))
        config = WorkerConfig(name="w", engine="emulated", pages=2, io_bytes=MIB, realtime=False)
        inputs = Inputs(self.engine.io, 100, MIB, SECOND)
        self.network = Network(config, sockets, self.executors, inputs, self.outbox, [])
        self.say(Welcome(PROTOCOL_VERSION, 1))
        self.say(Prepare(1, "w", spec()))
        self.run(Executor.PREPARE)
        self.say(load(2))
        self.run(Executor.LOAD)
        assert [result.status for result in self.results] == ["ok", "ok"]

    def say(self, message: Action | Welcome) -> None:
        """The controller sends a message."""
        self.network._from_controller([encode(message)])

    def push(self, action_id: int, request_id: int, value: float) -> None:
        """A gateway sends a request's inputs."""
        row = np.full(3, value, np.float32).tobytes()
        self.network._from_gateway(b"gateway", [encode(Input(action_id, request_id)), row])

    def begin(self, executor: Executor) -> Job | None:
        """The executor's thread looks for a job; what it rejects waits in the outbox."""
        job, results = self.core.begin(executor, time.monotonic_ns())
        for result in results:
            self.outbox.put(result, None)
        return job

    def run(self, executor: Executor) -> None:
        """The executor's thread runs a job, and the network thread sends its result."""
        job = self.begin(executor)
        assert job is not None
        if isinstance(job.action, Prepare):
            self.engine.prepare(job.action.model)
        elif isinstance(job.action, Load):
            self.engine.load(job.action)
        end_ns = time.monotonic_ns()
        self.outbox.put(self.core.finish(executor, job.action.action_id, job.begin_ns, end_ns), job.io)
        self.network.flush()

    def _replied(self, _gateway: bytes, parts: tuple[bytes], *, volatile: bool) -> Delivery:
        assert volatile, "the memory of outputs is another action's afterwards"
        output = FROM_WORKER.decode(parts[0])
        assert isinstance(output, Output)
        self.outputs.append(output)
        return Delivery.SENT

    def _sent(self, parts: tuple[bytes]) -> Delivery:
        message: Any = TO_CONTROLLER.decode(parts[0])
        if isinstance(message, Result):
            self.results.append(message)
        return Delivery.SENT


def test_an_input_that_comes_after_its_action_has_expired_is_not_copied_over_the_next_ones() -> None:
    worker = HandWorker()
    now_ns = time.monotonic_ns()
    worker.say(infer(10, (100,), window=(now_ns - 2 * MS, now_ns - MS)))
    assert worker.begin(Executor.EXEC) is None
    # The end of action 10 is in the outbox. Before the network thread comes to it:
    worker.say(infer(11, (200,)))
    worker.push(11, 200, 2.0)
    worker.push(10, 100, 666.0)
    job = worker.begin(Executor.EXEC)
    assert job is not None
    assert job.io is not None
    start = job.io.slot.offset + job.io.layout.inputs[0]
    assert worker.engine.io[start : start + 12].view(np.float32).tolist() == [2.0] * 3
    assert worker.network.dropped == {"gateway: input without action": 1}
    worker.network.flush()
    assert [(result.action_id, result.status) for result in worker.results[2:]] == [
        (10, Status.INPUT_MISSING)
    ]


def test_what_a_job_keeps_too_long_is_told_while_the_job_still_runs() -> None:
    worker = HandWorker()
    now_ns = time.monotonic_ns()
    worker.say(infer(10, (100,)))
    worker.push(10, 100, 1.0)
    job = worker.begin(Executor.EXEC)
    assert job is not None
    worker.say(infer(11, (200,), window=(now_ns - 2 * MS, now_ns - MS)))
    worker.push(11, 200, 2.0)
    assert worker.executors.expire(50 * MS) == 0, "the network thread has something to send"
    worker.network.flush()
    assert worker.executors.expire(50 * MS) == EXPIRY_NS, "to be asked for again soon"
    assert [(result.action_id, result.status) for result in worker.results[2:]] == [(11, Status.TOO_LATE)]
    worker.push(11, 200, 2.0)
    assert worker.network.dropped == {"gateway: input without action": 1}
    worker.core.finish(Executor.EXEC, 10, job.begin_ns, time.monotonic_ns())
    assert worker.executors.expire(50 * MS) == 50 * MS, "nothing waits for its end while nothing runs"


def test_an_output_reports_the_load_that_its_request_waited_for() -> None:
    worker = HandWorker()
    for action_id, cold in ((10, True), (11, False)):
        worker.say(msgspec.structs.replace(infer(action_id, (action_id,)), cold=(cold,)))
        worker.push(action_id, action_id, 1.0)
        worker.run(Executor.EXEC)
    loads = [0 if output.times is None else output.times.load_ns for output in worker.outputs]
    assert loads[0] > 0
    assert loads[1] == 0


def test_a_load_that_failed_or_was_undone_is_forgotten() -> None:
    worker = HandWorker()
    assert list(worker.network._loads) == ["m"]
    worker.say(Unload(3, "w", "m"))
    assert worker.network._loads == {}
    worker.say(load(4))
    job = worker.begin(Executor.LOAD)
    assert job is not None
    end_ns = time.monotonic_ns()
    worker.outbox.put(
        worker.core.finish(Executor.LOAD, 4, job.begin_ns, end_ns, status=Status.ENGINE_ERROR), None
    )
    worker.network.flush()
    assert worker.network._loads == {}
    assert worker.network._loading == {}
    worker.say(load(5))
    worker.say(Welcome(PROTOCOL_VERSION, 2))
    assert worker.network._loading == {}, "the loads of a lost controller are forgotten"
