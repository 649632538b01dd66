"""Infers of models with symbols: exact sizes in the slot of a bucket, and names of buckets."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.actions import Infer, Prepare
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import Executor
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.core.state_machine import WorkerCore
from tests.worker.peers import infer, load, spec, spec_of_lengths

WINDOW = (0, 100)


@pytest.fixture
def core() -> WorkerCore:
    """A core with a model with symbols, ``m``, and one without, ``plain``, both resident."""
    core = WorkerCore("w", 4, PAGE_BYTES, 1 << 20)
    for page, model in enumerate((spec_of_lengths(), spec("plain"))):
        core.submit(0, Prepare(-10 - page, "w", model))
        core.begin(Executor.PREPARE, 0)
        core.finish(Executor.PREPARE, -10 - page, 0, 0)
        core.submit(0, load(-20 - page, (page,), model.name, WINDOW))
        core.begin(Executor.LOAD, 0)
        core.finish(Executor.LOAD, -20 - page, 0, 0)
    return core


def test_tensors_have_the_sizes_and_the_slot_is_the_buckets(core: WorkerCore) -> None:
    for action_id, size in ((1, 2), (2, 16), (3, 17), (4, 64)):
        assert core.submit(0, infer(action_id, (1, 2), sizes=(size,), window=WINDOW)) == []
        io = core.reservation(action_id)
        assert io is not None
        assert io.layout == slot_layout(spec_of_lengths(), 2, (size,))
        bucket = spec_of_lengths().bucket_of((size,))
        assert io.slot.size == slot_layout(spec_of_lengths(), 2, bucket).size
    core.validate()


def test_the_name_of_a_bucket_is_one_of_the_model(core: WorkerCore) -> None:
    assert core.submit(0, infer(1, model="m@32", sizes=(20,), window=WINDOW)) == []
    assert core.submit(0, infer(2, model="m@32", window=WINDOW)) == []
    core.input_arrived(1, 1)
    core.input_arrived(2, 1)
    for action_id, size in ((1, 20), (2, 32)):
        job, _ = core.begin(Executor.EXEC, 0)
        assert job is not None
        assert isinstance(job.action, Infer)
        assert (job.action.model, job.action.sizes, job.model.name) == ("m", (size,), "m")
        core.validate()
        assert core.finish(Executor.EXEC, action_id, 0, 1) is not None
        assert job.io is not None
        core.outputs_sent(job.io.slot)
    core.validate()


@pytest.mark.parametrize(
    ("action", "status", "words"),
    [
        (infer(1, sizes=(65,)), Status.BAD_ACTION, "seq is 65; the model takes seq from 2 to 64"),
        (infer(1, sizes=(1,)), Status.BAD_ACTION, "seq is 1"),
        (infer(1), Status.BAD_ACTION, "0 sizes were given for the symbols seq"),
        (infer(1, sizes=(3, 4)), Status.BAD_ACTION, "2 sizes were given"),
        (infer(1, model="plain", sizes=(3,)), Status.BAD_ACTION, "1 sizes were given for the symbols none"),
        (infer(1, model="m@65"), Status.BAD_ACTION, "seq is 65"),
        (infer(1, model="m@x"), Status.NOT_PREPARED, "m@x is not prepared"),
        (infer(1, model="other@16"), Status.NOT_PREPARED, "other@16 is not prepared"),
    ],
)
def test_sizes_that_can_not_be_are_refused(
    core: WorkerCore, action: Infer, status: Status, words: str
) -> None:
    (result,) = core.submit(0, action)
    assert result.status is status
    assert words in result.detail
    core.validate()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (infer(1, (1, 2), sizes=(9,), request_sizes=((9,), (4,)), window=WINDOW), ""),
        (infer(1, (1, 2), sizes=(9,), request_sizes=((9,),)), "1 sizes were given for 2 requests"),
        (infer(1, (1, 2), sizes=(9,), request_sizes=((9,), (1,))), "seq is 1"),
        (infer(1, (1, 2), sizes=(9,), request_sizes=((9,), (3, 4))), "2 sizes were given"),
        (infer(1, (1, 2), sizes=(9,), request_sizes=((9,), (10,))), "(10,) is larger than its batch of (9,)"),
    ],
)
def test_requests_of_a_padded_batch_fit_in_it(action: Infer, words: str) -> None:
    core = WorkerCore("w", 4, PAGE_BYTES, 1 << 20)
    core.submit(0, Prepare(-1, "w", msgspec.structs.replace(spec_of_lengths(), pad={"x": 0.0})))
    core.begin(Executor.PREPARE, 0)
    core.finish(Executor.PREPARE, -1, 0, 0)
    results = core.submit(0, action)
    assert [(each.status, words in each.detail) for each in results] == (
        [(Status.BAD_ACTION, True)] if words else []
    )


def test_what_runs_at_ceilings_alone_is_given_no_other_sizes() -> None:
    core = WorkerCore("w", 4, PAGE_BYTES, 1 << 20)
    model = msgspec.structs.replace(spec_of_lengths(), pad={"x": 0.0}, at_ceilings=True)
    core.submit(0, Prepare(-1, "w", model))
    core.begin(Executor.PREPARE, 0)
    core.finish(Executor.PREPARE, -1, 0, 0)
    (wrong,) = core.submit(0, infer(1, sizes=(9,), window=WINDOW))
    assert wrong.status is Status.BAD_ACTION
    assert "ceilings of its buckets, here (16,), not at (9,)" in wrong.detail
    assert not core.submit(0, infer(2, (1, 2), sizes=(16,), request_sizes=((9,), (4,)), window=WINDOW))


def test_different_sizes_are_refused_where_nothing_says_how_to_pad(core: WorkerCore) -> None:
    action = infer(1, (1, 2), sizes=(9,), request_sizes=((9,), (4,)), window=WINDOW)
    (result,) = core.submit(0, action)
    assert result.status is Status.BAD_ACTION
    assert "their sizes must be equal" in result.detail
