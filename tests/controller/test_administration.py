"""Operators' commands on real sockets: granted ones are carried out and logged; others say what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from mainspring.console.live import LiveStream
from mainspring.messages.actions import Infer, Load, Unload
from mainspring.messages.codes import Reason
from mainspring.messages.events import OperatorAsked
from mainspring.messages.metrics import ClusterMetrics, DeviceHealth, Reading
from mainspring.messages.operating import (
    DrainWorker,
    LoadOn,
    Operate,
    Operated,
    OperatorCommand,
    PinModel,
    ResumeWorker,
    SetDefaultSlo,
    SetGoodputWeight,
    SetMaxQueue,
    UnloadFrom,
)
from mainspring.messages.peers import AdminReply, AdminRequest, DefaultSlo, Dispatch, Rejected
from mainspring.messages.served import ServedModel
from mainspring.messages.snapshot import OperatorState
from mainspring.simulator.redecide import redecide
from mainspring.telemetry.log import read_entries
from tests.controller.peers import MS, FakeGateway, Stage, spec

MODELS = (spec("a"), spec("b"))


class Operator:
    """A console that passes commands on."""

    def __init__(self, stage: Stage) -> None:
        self.stream = LiveStream(stage.address, "console", operates=True)
        self.answers: list[Operated] = []
        self.told: list[object] = []
        self.stream.on_answer = self._answered
        self._stage = stage
        self._tokens = count(1)
        stage.until(self.live)

    def live(self) -> bool:
        while (batch := self.stream.poll()) is not None:
            self.told += [entry for _, entry in batch.records]
        return self.stream.state == "live"

    def _answered(self, message: msgspec.Struct) -> None:
        # What workers' GPUs say of themselves comes every few seconds, between answers.
        if isinstance(message, Operated):
            self.answers.append(message)

    def ask(self, command: OperatorCommand, who: str = "ann") -> Operated:
        token = next(self._tokens)
        assert self.stream.send(Operate(token, who, command))

        def answered() -> bool:
            self.live()
            return len(self.answers) == token

        self._stage.until(answered)
        answer = self.answers[-1]
        assert answer.token == token
        return answer

    def grant(self, command: OperatorCommand) -> str:
        answer = self.ask(command)
        assert answer.done, answer.detail
        return answer.detail

    def refusal(self, command: OperatorCommand, who: str = "ann") -> str:
        answer = self.ask(command, who)
        assert not answer.done
        return answer.detail


@pytest.fixture
def operator(stage: Stage) -> Iterator[Callable[[], Operator]]:
    """A function that begins a console's session."""
    begun: list[Operator] = []

    def begin() -> Operator:
        begun.append(Operator(stage))
        return begun[-1]

    yield begin
    for each in begun:
        each.stream.close()


def rejection(stage: Stage, gateway: FakeGateway, counter: int, model: str) -> Rejected:
    sent = gateway.arrive(counter, model, left_ms=500)
    stage.until(lambda: any(each.request_id == sent for each in gateway.all(Rejected)))
    return gateway.last(Rejected)


def dispatched(stage: Stage, gateway: FakeGateway, counter: int, model: str) -> None:
    sent = gateway.arrive(counter, model)
    stage.until(lambda: any(sent in each.request_ids for each in gateway.all(Dispatch)))


def test_commands_are_carried_out_logged_and_replayed(
    stage: Stage, operator: Callable[[], Operator], tmp_path: Path
) -> None:
    stage.start(MODELS, event_log_dir=str(tmp_path))
    gateway, worker = stage.cluster("a", "b")
    worker_notes = stage.status(gateway).workers[0].notes
    ann = operator()
    assert ann.grant(LoadOn("a", "w0")) == "load a on w0"
    stage.until(lambda: len(worker.all(Load)) == 1 and "a" in worker.resident)
    dispatched(stage, gateway, 1, "a")
    ann.grant(PinModel("b"))
    stage.until(lambda: "b" in worker.resident)
    assert ann.refusal(UnloadFrom("b")) == "'b' is pinned; unpin it first"
    ann.grant(DrainWorker("w0"))
    refused = rejection(stage, gateway, 2, "a")
    assert refused.reason is Reason.NO_WORKER
    assert "an operator drained every worker" in refused.detail
    drained = stage.status(gateway).workers[0]
    assert drained.notes == ("an operator drained it: it gets no work until it is resumed", *worker_notes)
    ann.grant(ResumeWorker("w0"))
    dispatched(stage, gateway, 3, "a")
    stage.until(lambda: len(worker.all(Infer)) == 2)
    stage.until(lambda: ann.ask(UnloadFrom("a")).done)
    stage.until(lambda: bool(worker.all(Unload)))
    stage.stop()
    logged = [entry for _, entry in read_entries(tmp_path) if isinstance(entry, OperatorAsked)]
    assert [type(each.command) for each in logged] == [
        *(LoadOn, PinModel, DrainWorker, ResumeWorker, UnloadFrom),
    ]
    assert {each.who for each in logged} == {"ann"}
    found = redecide(tmp_path)
    assert found.difference is None, found.difference.story()


def test_a_model_repository_has_a_model_loaded_without_a_request_for_it(stage: Stage, tmp_path: Path) -> None:
    stage.start(MODELS, event_log_dir=str(tmp_path))
    gateway, worker = stage.cluster("a", "b")
    gateway.send(AdminRequest(7, load="b"))
    gateway.send(AdminRequest(8, load="nobody"))
    stage.until(lambda: "b" in worker.resident)
    stage.until(lambda: {7, 8} <= {each.token for each in gateway.all(AdminReply)})
    replies = {each.token: each for each in gateway.all(AdminReply)}
    assert replies[7].reason is None
    assert (replies[8].reason, replies[8].detail) == (Reason.UNKNOWN_MODEL, "there is no model 'nobody'")
    stage.stop()
    logged = [entry for _, entry in read_entries(tmp_path) if isinstance(entry, OperatorAsked)]
    assert [each.command for each in logged] == [LoadOn("b", idle=True)]
    found = redecide(tmp_path)
    assert found.difference is None, found.difference.story()


def test_a_console_that_comes_later_is_told_what_operators_set(
    stage: Stage, operator: Callable[[], Operator]
) -> None:
    stage.start(MODELS)
    stage.cluster("a", "b")
    first = operator()
    for command in (DrainWorker("w0"), PinModel("a"), SetDefaultSlo("b", 7 * MS), ResumeWorker("w0")):
        first.grant(command)
    second = operator()
    (state,) = [each for each in second.told if isinstance(each, OperatorState)]
    assert [event.command for _, event in state.operations] == [
        PinModel("a"),
        SetDefaultSlo("b", 7 * MS),
        ResumeWorker("w0"),
    ]


def test_a_default_slo_reaches_every_gateway_also_one_that_comes_later(
    stage: Stage, operator: Callable[[], Operator]
) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster("a", "b")
    gateway.send(AdminRequest(900, serve=ServedModel("public", {1: "a"})))
    stage.until(lambda: any(reply.token == 900 for reply in gateway.all(AdminReply)))
    ann = operator()
    assert ann.grant(SetDefaultSlo("public", 30 * MS)) == "give public a default SLO of 30 ms"
    ann.grant(SetDefaultSlo("b", 5 * MS))
    ann.grant(SetDefaultSlo("b", None))
    assert ann.refusal(SetDefaultSlo("b", 7_200_000 * MS)) == (
        "a default SLO of 7,200,000 ms can't be; give more than 0 and at most 3,600,000 ms"
    )
    stage.until(lambda: len(gateway.all(DefaultSlo)) == 3)
    assert gateway.all(DefaultSlo) == [
        *(DefaultSlo("public", 30 * MS), DefaultSlo("b", 5 * MS), DefaultSlo("b")),
    ]
    later = stage.gateway("g1")
    stage.until(lambda: bool(later.all(DefaultSlo)))
    assert later.all(DefaultSlo) == [DefaultSlo("public", 30 * MS)]


def test_what_can_not_be_is_refused_and_leaves_no_trace(
    stage: Stage, operator: Callable[[], Operator], tmp_path: Path
) -> None:
    stage.start(MODELS, event_log_dir=str(tmp_path))
    stage.cluster("a", "b")
    ann = operator()
    assert ann.refusal(DrainWorker("w9")) == "there is no worker 'w9'; connected are w0"
    assert ann.refusal(PinModel("c")) == "there is no model 'c'"
    assert "give more than 0 and at most" in ann.refusal(SetDefaultSlo("a", 0))
    assert "give more than 0 and at most" in ann.refusal(SetDefaultSlo("a", 1 << 62))
    assert ann.refusal(SetDefaultSlo("c", MS)) == "there is no model 'c' that clients could ask for"
    assert "128 characters" in ann.refusal(PinModel("x" * 129))
    assert "who asks can't be recorded" in ann.refusal(PinModel("a"), who="")
    stage.stop()
    assert not [entry for _, entry in read_entries(tmp_path) if isinstance(entry, OperatorAsked)]


def test_an_observer_changes_nothing_and_is_told_why(stage: Stage) -> None:
    controller = stage.start(MODELS)
    gateway, worker = stage.cluster("a", "b")
    watching = LiveStream(stage.address, "console")
    said: list[str] = []
    try:
        stage.until(lambda: watching.poll() is None and watching.state == "live")
        assert watching.send(Operate(1, "admin (forged)", DrainWorker("w0")))

        def refused() -> bool:
            watching.poll()
            said.append(watching.detail)
            return "observer may not send Operate" in watching.detail

        stage.until(refused)
    finally:
        watching.close()
    assert controller._dropped["bad_message"] == 1
    dispatched(stage, gateway, 1, "a")
    assert worker.all(Load)


def test_only_consoles_may_ask(stage: Stage) -> None:
    stage.start(MODELS)
    gateway, worker = stage.cluster("a", "b")
    gateway.send(Operate(1, "mallory", DrainWorker("w0")))
    dispatched(stage, gateway, 1, "a")
    assert worker.all(Load)


def test_a_gateway_that_is_scraped_receives_metrics_of_workers_and_models(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, _ = stage.cluster("m0")
    gateway.arrive(1)
    stage.until(lambda: bool(gateway.all(Dispatch)))
    metrics = metrics_of(stage, gateway, 77)
    while not metrics.models[0].rows:
        # The result is on its way.
        metrics = metrics_of(stage, gateway, 78)
    [worker] = metrics.workers
    assert (worker.worker, worker.pages, worker.pages_used) == ("w0", 8, spec().pages)
    ended = {what: number for what, number in worker.ended.items() if number}
    assert ended == {"INFER ok": 1, "LOAD ok": 1, "PREPARE ok": 1}
    assert worker.ended["INFER engine_error"] == 0, "an outcome has its zero before the first of them"
    assert [(model.model, model.rows) for model in metrics.models] == [("m0", 1), ("other", 0)]
    assert sum(metrics.models[0].load.counts) == 1
    assert (metrics.models_served, metrics.requests_queued) == (1, 0)


def metrics_of(stage: Stage, gateway: FakeGateway, token: int) -> ClusterMetrics:
    """Ask, and return the answer."""
    before = len(gateway.all(AdminReply))
    gateway.send(AdminRequest(token, metrics=True))
    stage.until(lambda: len(gateway.all(AdminReply)) > before)
    reply = gateway.last(AdminReply)
    assert reply.token == token
    assert reply.status is None
    assert reply.metrics is not None
    return reply.metrics


def test_what_a_workers_gpu_says_reaches_operators_as_far_as_it_is_known(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    (before,) = stage.status(gateway).workers
    clock = Reading("mainspring_gpu_sm_clock_hertz", 1e9)
    unknown = (Reading("made_up", 1.0), Reading("mainspring_gpu_throttled", 1.0, 'x"} 7'))
    worker.health = DeviceHealth(("GPU at 0: it is hot", "x" * 10_000), (clock, *unknown))
    stage.until(lambda: stage.status(gateway).workers[0].notes != before.notes)
    notes = stage.status(gateway).workers[0].notes
    assert notes[: len(before.notes) + 1] == (*before.notes, "GPU at 0: it is hot")
    assert len(notes[-1]) < 1_000
    gateway.send(AdminRequest(901, metrics=True))
    stage.until(lambda: any(each.token == 901 for each in gateway.all(AdminReply)))
    (reply,) = [each for each in gateway.all(AdminReply) if each.token == 901]
    assert reply.metrics is not None
    assert [each.readings for each in reply.metrics.workers] == [(clock,)]
    worker.health = None
    stage.until(lambda: stage.status(gateway).workers[0].notes == before.notes)


def test_a_models_queue_is_bounded_by_operators_before_its_repository(stage: Stage) -> None:
    stage.start((spec("a"),))
    gateway, _ = stage.cluster("a")
    asked = count(500)

    def answer(request: AdminRequest) -> AdminReply:
        gateway.send(request)
        stage.until(lambda: any(each.token == request.token for each in gateway.all(AdminReply)))
        return gateway.last(AdminReply)

    def bound() -> int | None:
        return stage.controllers[-1][0].scheduler.cluster.max_queue_size("a")

    assert (
        answer(AdminRequest(next(asked), serve=ServedModel("a", {1: "a"}, max_queue_size=7))).reason is None
    )
    assert bound() == 7
    assert answer(AdminRequest(next(asked), operate=SetMaxQueue("a", 3))).reason is None
    assert bound() == 3
    assert (
        answer(AdminRequest(next(asked), serve=ServedModel("a", {1: "a"}, max_queue_size=9))).reason is None
    )
    assert bound() == 3, "what an operator set holds"
    assert answer(AdminRequest(next(asked), operate=SetMaxQueue("a", None))).reason is None
    assert bound() == 9, "as configured"
    assert (
        answer(AdminRequest(next(asked), serve=ServedModel("a", {1: "a"}, max_queue_size=11))).reason is None
    )
    assert bound() == 11, "its repository may bound it again"
    assert answer(AdminRequest(next(asked), operate=SetGoodputWeight("a", 20.0))).reason is None
    assert stage.controllers[-1][0].scheduler.cluster.goodput_weight("a") == 20.0
    weights = SetGoodputWeight("b", 3.0), SetGoodputWeight("a", 0.0)
    for wrong in (SetMaxQueue("b", 3), SetMaxQueue("a", 0), *weights):
        assert answer(AdminRequest(next(asked), operate=wrong)).reason is Reason.BAD_INPUT
