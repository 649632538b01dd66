"""One request spoils its batch on the worker: its mates are tried again and served in time."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Infer
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.peers import Dispatch, Rejected
from tests.controller.peers import FakeGateway, FakeWorker, Stage, spec

SLO_MS = 5_000.0


class PickyWorker(FakeWorker):
    """Fails the batches of some requests, as often as it is told to, and runs every other batch."""

    misses: dict[int, int]
    spoils = Status.INPUT_MISSING
    served: tuple[int, ...] = ()

    def on(self, message: object) -> None:
        if not isinstance(message, Infer):
            super().on(message)  # type: ignore[arg-type]
            return
        missing = [each for each in message.request_ids if self.misses.get(each, 0) > 0]
        for each in missing:
            self.misses[each] -= 1
        self.served += () if missing else message.request_ids
        self.end(message, self.spoils if missing else Status.OK)


def batch_of_three(stage: Stage) -> tuple[FakeGateway, PickyWorker, list[int]]:
    """Three requests that wait for the first worker, which then gets them together."""
    stage.start((spec(),))
    gateway = stage.gateway()
    worker = PickyWorker(stage.address, "w0")
    worker.prepared = {"m0": spec().artifact}
    worker.resident = {"m0": Resident("m0", spec().artifact, (0,))}
    stage.peers.append(worker)
    return gateway, worker, [gateway.arrive(number, left_ms=SLO_MS) for number in range(3)]


def test_inputs_that_were_lost_once_are_sent_again_with_those_of_the_whole_batch(stage: Stage) -> None:
    gateway, worker, ids = batch_of_three(stage)
    worker.misses = {ids[1]: 1}
    stage.pump_for(0.05)
    worker.hello()
    stage.until(lambda: set(worker.served) == set(ids))
    infers = worker.all(Infer)
    assert ids[1] in infers[0].request_ids
    assert len(infers[0].request_ids) > 1, "the test needs a batch of several"
    assert sorted(worker.served) == ids, "each is run once"
    assert set(infers[0].request_ids) == set(infers[1].request_ids), "inputs that are slow once cost no batch"
    sent = {action.action_id: set(action.request_ids) for action in infers}
    stage.until(lambda: {each.action_id for each in gateway.all(Dispatch)} == set(sent))
    assert all(sent[each.action_id] == set(each.request_ids) for each in gateway.all(Dispatch))
    assert not gateway.all(Rejected)
    assert stage.status(gateway).requests_queued == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize(
    "status", [Status.INPUT_MISSING, Status.ENGINE_ERROR, Status.BAD_VALUES, Status.OVERRUN]
)
def test_a_request_that_spoils_every_batch_does_not_take_its_mates_with_it(
    stage: Stage, victim: int, status: Status
) -> None:
    """Its inputs never come, or the engine fails on its values, such as an index out of range."""
    gateway, worker, ids = batch_of_three(stage)
    worker.spoils = status
    worker.misses = {ids[victim]: 1 << 30}
    stage.pump_for(0.05)
    worker.hello()
    others = {each for each in ids if each != ids[victim]}
    stage.until(lambda: set(worker.served) >= others and bool(gateway.all(Rejected)))
    (rejected,) = gateway.all(Rejected)
    assert rejected.request_id == ids[victim]
    assert status.value in rejected.detail
    assert sorted(worker.served) == sorted(others)
    assert len(worker.all(Infer)) < 20, "it is not tried without end"
    more = [gateway.arrive(number, left_ms=SLO_MS) for number in range(20, 28)]
    stage.until(lambda: set(worker.served) >= set(more))
