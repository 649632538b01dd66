"""The worker's core by example: windows, order, pages, IO memory, repeated ids, lost controllers."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.messages.actions import Action, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.model import PAGE_BYTES, TensorSpec
from mainspring.worker.core.jobs import QUEUE_LIMITS, Executor, Job
from mainspring.worker.core.state_machine import WorkerCore
from tests.worker.peers import infer, load, spec

EXEC, LOAD, PREPARE = Executor.EXEC, Executor.LOAD, Executor.PREPARE


def new_core(pages: int = 8, io_bytes: int = 1 << 20) -> WorkerCore:
    return WorkerCore("w", pages, PAGE_BYTES, io_bytes)


def begun(core: WorkerCore, executor: Executor, now_ns: int) -> Job:
    job, results = core.begin(executor, now_ns)
    core.validate()
    assert job is not None, results
    return job


def ended(core: WorkerCore, executor: Executor, job: Job, now_ns: int, status: Status = Status.OK) -> Result:
    result = core.finish(executor, job.action.action_id, job.begin_ns, now_ns, status=status)
    core.validate()
    assert result is not None
    return result


def statuses(results: list[Result]) -> list[tuple[int, Status]]:
    return [(result.action_id, result.status) for result in results]


def only(results: list[Result]) -> Status:
    assert len(results) == 1
    return results[0].status


def prepared_core(**given: int) -> WorkerCore:
    """A core that has prepared ``m`` (one page), ``n`` (a run of two, then one) and ``o`` (one page)."""
    core = new_core(**given)
    for action_id, model in enumerate((spec("m"), spec("n", extents=(2, 1)), spec("o")), start=-3):
        assert core.submit(0, Prepare(action_id, "w", model)) == []
        ended(core, PREPARE, begun(core, PREPARE, 0), 0)
    return core


def resident_core(**given: int) -> WorkerCore:
    """A prepared core with ``m`` in page 0."""
    core = prepared_core(**given)
    core.submit(0, load(-10, (0,), window=(0, 0)))
    ended(core, LOAD, begun(core, LOAD, 0), 0)
    return core


def test_load_begins_neither_before_earliest_nor_after_latest() -> None:
    core = prepared_core()
    core.submit(0, load(1, window=(100, 200)))
    assert core.wake_ns(LOAD, 0) == 100
    assert core.begin(LOAD, 99) == (None, [])
    job, results = core.begin(LOAD, 201)
    assert job is None
    assert statuses(results) == [(1, Status.TOO_LATE)]
    assert results[0].begin_ns == results[0].end_ns == 201
    core.submit(201, load(2, window=(300, 400)))
    assert begun(core, LOAD, 400).begin_ns == 400


def test_infer_waits_for_inputs_then_begins_at_once() -> None:
    core = resident_core()
    core.submit(0, infer(1, (7, 8), window=(10, 90)))
    assert core.input_arrived(1, 7)
    assert core.wake_ns(EXEC, 0) == 91, "without all inputs only the end of the window can change anything"
    assert core.awaits(EXEC)
    assert core.begin(EXEC, 50) == (None, [])
    assert core.input_arrived(1, 8)
    assert core.wake_ns(EXEC, 50) == 50
    assert not core.awaits(EXEC)
    assert begun(core, EXEC, 90).model.name == "m"
    assert not core.awaits(EXEC), "nothing is left"


@pytest.mark.parametrize(
    ("resident", "inputs", "expected"),
    [
        (False, False, Status.NOT_RESIDENT),
        (False, True, Status.NOT_RESIDENT),
        (True, False, Status.INPUT_MISSING),
        (True, True, Status.TOO_LATE),
    ],
)
def test_expired_infer_says_what_was_missing(resident: bool, inputs: bool, expected: Status) -> None:
    core = resident_core() if resident else prepared_core()
    core.submit(0, infer(1, window=(10, 20)))
    if inputs:
        core.input_arrived(1, 1)
    assert statuses(core.begin(EXEC, 21).results) == [(1, expected)]
    core.validate()
    assert core.io.slots == 0


def test_order_is_by_earliest_then_id_and_the_head_blocks() -> None:
    core = resident_core()
    for action_id, earliest in ((5, 20), (4, 20), (6, 10)):
        core.submit(0, infer(action_id, window=(earliest, 1000)))
    core.input_arrived(4, 1)
    core.input_arrived(5, 1)
    assert core.begin(EXEC, 500) == (None, []), "6 is first and has no inputs"
    core.input_arrived(6, 1)
    order = []
    for now_ns in (500, 501, 502):
        job = begun(core, EXEC, now_ns)
        order.append(job.action.action_id)
        ended(core, EXEC, job, now_ns)
    assert order == [6, 4, 5]


def test_expired_actions_behind_a_blocked_head_are_rejected() -> None:
    core = resident_core()
    core.submit(0, infer(1, window=(0, 1000)))
    core.submit(0, infer(2, window=(5, 100)))
    assert core.wake_ns(EXEC, 0) == 101
    assert statuses(core.begin(EXEC, 101).results) == [(2, Status.INPUT_MISSING)]
    assert core.outstanding == 1


def test_one_job_at_a_time() -> None:
    core = resident_core()
    for action_id in (1, 2):
        core.submit(0, infer(action_id, window=(0, 1000)))
        core.input_arrived(action_id, 1)
    job = begun(core, EXEC, 0)
    assert core.wake_ns(EXEC, 0) is None
    assert core.begin(EXEC, 5000) == (None, [])
    ended(core, EXEC, job, 6000)
    assert statuses(core.begin(EXEC, 6000).results) == [(2, Status.TOO_LATE)]


def test_infer_begins_when_its_load_has_finished() -> None:
    core = prepared_core()
    core.submit(0, load(1, (3,), window=(0, 100)))
    core.submit(0, infer(2, window=(50, 100)))
    core.input_arrived(2, 1)
    job = begun(core, LOAD, 0)
    assert core.begin(EXEC, 60) == (None, [])
    ended(core, LOAD, job, 70)
    assert core.wake_ns(EXEC, 70) == 70
    begun(core, EXEC, 70)


@pytest.mark.parametrize(
    "pages",
    [(), (1,), (1, 2), (1, 2, 3, 4), (1, 2, 8), (-1, 0, 3), (1, 1, 2), (1, 2, 2), (1, 3, 4), (2, 1, 5)],
)
def test_pages_that_can_never_hold_the_model(pages: tuple[int, ...]) -> None:
    core = prepared_core()
    assert only(core.submit(0, load(1, pages, "n"))) is Status.BAD_PAGES


def test_extents_may_lie_apart() -> None:
    core = prepared_core()
    core.submit(0, load(1, (5, 6, 0), "n", (0, 9)))
    ended(core, LOAD, begun(core, LOAD, 0), 1)
    assert core.residency.resident() == (Resident("n", spec("n", extents=(2, 1)).artifact, (5, 6, 0)),)


def test_occupied_pages_are_refused_when_the_load_would_begin() -> None:
    core = resident_core()
    core.submit(0, load(1, (0, 1, 5), "n", (10, 20)))
    assert statuses(core.begin(LOAD, 10).results) == [(1, Status.BAD_PAGES)]
    core.submit(0, load(2, (0, 1, 5), "n", (10, 20)))
    assert only(core.submit(0, Unload(3, "w", "m"))) is Status.OK
    assert begun(core, LOAD, 10).action.action_id == 2


def test_failed_load_gives_its_pages_back() -> None:
    core = prepared_core()
    core.submit(0, load(1, (4,), window=(0, 9)))
    job = begun(core, LOAD, 0)
    assert core.residency.pages.free == 7
    assert ended(core, LOAD, job, 5, Status.ENGINE_ERROR).status is Status.ENGINE_ERROR
    assert core.residency.pages.free == 8
    assert core.residency.resident() == ()


def test_resident_model_is_not_loaded_twice() -> None:
    core = resident_core()
    core.submit(0, load(1, (3,), window=(0, 9)))
    assert statuses(core.begin(LOAD, 0).results) == [(1, Status.BAD_ACTION)]


def test_unload_and_release_say_why_not() -> None:
    core = resident_core()
    assert only(core.submit(0, Unload(1, "w", "o"))) is Status.NOT_RESIDENT
    assert only(core.submit(0, Release(2, "w", "m"))) is Status.BUSY
    assert only(core.submit(0, Release(3, "w", "x"))) is Status.NOT_PREPARED
    core.submit(0, infer(4, window=(0, 9)))
    assert only(core.submit(0, Unload(5, "w", "m"))) is Status.BUSY
    core.submit(0, load(6, (4,), "o", (0, 9)))
    assert only(core.submit(0, Release(7, "w", "o"))) is Status.BUSY
    core.begin(EXEC, 10)
    assert only(core.submit(10, Unload(8, "w", "m"))) is Status.OK
    assert only(core.submit(10, Release(9, "w", "m"))) is Status.OK
    assert "m" not in core.residency.prepared()


def test_prepare_again_is_ok_at_once_but_not_with_other_weights() -> None:
    core = prepared_core()
    assert only(core.submit(0, Prepare(1, "w", spec("m")))) is Status.OK
    other = msgspec.structs.replace(spec("m"), weights_hash="other")
    assert only(core.submit(0, Prepare(2, "w", other))) is Status.BUSY
    core.submit(0, Release(3, "w", "m"))
    assert core.submit(0, Prepare(4, "w", other)) == []
    assert core.submit(0, Prepare(5, "w", other)) == []
    ended(core, PREPARE, begun(core, PREPARE, 0), 1)
    assert statuses(core.begin(PREPARE, 1).results) == [(5, Status.OK)]
    assert core.residency.prepared()["m"] == other.artifact


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_sizes": ()},
        {"batch_sizes": (2, 1)},
        {"batch_sizes": (0, 1)},
        {"extents": (0,)},
        {"extents": ()},
        {"inputs": (TensorSpec("x", "object", (1,)),)},
        {"inputs": (TensorSpec("x", "no dtype", (1,)),)},
        {"outputs": (TensorSpec("y", "float32", (-1,)),)},
    ],
)
def test_impossible_models_are_refused(fields: dict[str, object]) -> None:
    model = msgspec.structs.replace(spec("m"), **fields)
    assert only(new_core().submit(0, Prepare(1, "w", model))) is Status.BAD_ACTION


@pytest.mark.parametrize(
    "action",
    [
        infer(1, (1,), batch_size=3),
        infer(1, (1, 2), (2, 1), batch_size=2),
        infer(1, (), (), batch_size=1),
        infer(1, (1, 1)),
        infer(1, (1, 2), (1,), batch_size=2),
        infer(1, (1,), (0,), batch_size=1),
        infer(1, window=(10, 9)),
        load(1, (3,), window=(10, 9)),
        msgspec.structs.replace(infer(1), worker="another"),
    ],
)
def test_malformed_actions_are_refused_at_once(action: Action) -> None:
    core = resident_core()
    assert only(core.submit(0, action)) is Status.BAD_ACTION
    core.validate()
    assert core.outstanding == 0


def test_repeated_action_id_is_refused_and_the_first_goes_on() -> None:
    core = resident_core()
    assert core.submit(0, infer(1, window=(0, 9))) == []
    assert only(core.submit(0, infer(1, window=(0, 9)))) is Status.BAD_ACTION
    core.input_arrived(1, 1)
    assert begun(core, EXEC, 0).action.action_id == 1


def test_unprepared_models_are_refused_at_once() -> None:
    core = new_core()
    assert only(core.submit(0, load(1))) is Status.NOT_PREPARED
    assert only(core.submit(0, infer(2))) is Status.NOT_PREPARED


def test_io_memory_is_held_until_outputs_are_sent() -> None:
    core = resident_core(io_bytes=256)
    assert core.submit(0, infer(1, window=(0, 9))) == []
    assert core.submit(0, infer(2, window=(0, 9))) == []
    assert only(core.submit(0, infer(3, window=(0, 9)))) is Status.NO_IO_MEMORY
    core.input_arrived(1, 1)
    job = begun(core, EXEC, 0)
    ended(core, EXEC, job, 1)
    assert only(core.submit(1, infer(4, window=(0, 9)))) is Status.NO_IO_MEMORY
    assert job.io is not None
    core.outputs_sent(job.io.slot)
    assert core.submit(2, infer(5, window=(0, 9))) == []


def test_unusable_input_ends_its_action_once() -> None:
    core = resident_core()
    core.submit(0, infer(1, (7, 8), window=(0, 9)))
    result = core.input_refused(3, 1, 8, "too short")
    assert result is not None
    assert (result.status, result.detail) == (Status.INPUT_MISSING, "inputs of request 8: too short")
    assert core.input_refused(3, 1, 8, "too short") is None
    assert not core.input_arrived(1, 7)
    assert core.outstanding == 0
    core.validate()


def test_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUEUE_LIMITS, EXEC, 2)
    core = resident_core()
    assert core.submit(0, infer(1)) + core.submit(0, infer(2)) == []
    assert only(core.submit(0, infer(3))) is Status.BAD_ACTION
    core.validate()


def test_stop_rejects_what_waits_and_what_comes() -> None:
    core = resident_core()
    for action_id in (1, 2):
        core.submit(0, infer(action_id, window=(0, 9)))
        core.input_arrived(action_id, 1)
    job = begun(core, EXEC, 0)
    assert statuses(core.stop(1)) == [(2, Status.STOPPING)]
    assert only(core.submit(2, infer(3))) is Status.STOPPING
    assert ended(core, EXEC, job, 3).status is Status.OK


def test_abandoned_actions_have_no_results_and_leave_no_trace() -> None:
    core = resident_core()
    core.submit(0, infer(1, window=(0, 9)))
    core.submit(0, infer(2, window=(5, 9)))
    core.submit(0, load(3, (4,), "o", (0, 9)))
    core.submit(0, load(4, (5,), "o", (1, 9)))
    core.input_arrived(1, 1)
    running, loading = begun(core, EXEC, 0), begun(core, LOAD, 0)
    assert core.abandon() == [2, 4]
    core.validate()
    assert not core.quiet
    assert core.finish(EXEC, 1, 0, 1) is None
    assert core.finish(LOAD, 3, 0, 2) is None
    core.validate()
    assert core.quiet
    assert running.io is not None
    core.outputs_sent(running.io.slot)
    assert core.io.slots == 0
    assert [each.model for each in core.residency.resident()] == ["m", loading.model.name]
    assert core.submit(3, infer(1, window=(0, 9))) == [], "ids of a new session are new"


def test_finish_of_what_does_not_run_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="does not run action 1"):
        new_core().finish(EXEC, 1, 0, 0)


def test_a_model_whose_largest_batch_is_larger_than_the_io_memory_is_not_prepared() -> None:
    core = new_core(io_bytes=128)
    [result] = core.submit(0, Prepare(2, "w", spec(floats=9)))
    assert result.status is Status.NO_IO_MEMORY
    assert result.detail == (
        "inputs and outputs of a batch of 4 of m have 256 bytes, the worker's io_bytes is 128: "
        "set it higher, or compile the model with smaller --batch-sizes"
    )
    assert core.submit(0, Prepare(3, "w", spec(floats=4))) == []


def test_a_model_whose_prepare_was_abandoned_does_not_stand_in_the_way_of_its_next_artifact() -> None:
    core = new_core()
    core.submit(0, Prepare(1, "w", spec()))
    begun(core, PREPARE, 0)
    core.abandon()
    assert core.quiet, "a hello need not wait for it"
    changed = msgspec.structs.replace(spec(), weights_hash="other weights")
    assert core.submit(1, Prepare(1, "w", changed)) == []
    assert core.finish(PREPARE, 1, 0, 2) is None
    core.validate()
    assert core.residency.prepared() == {}
    ended(core, PREPARE, begun(core, PREPARE, 2), 3)
    assert core.residency.prepared() == {"m": changed.artifact}


def test_a_result_says_when_the_last_input_was_in_place() -> None:
    core = resident_core()
    core.submit(0, infer(1, (7, 8), window=(10, 90)))
    core.input_arrived(1, 8, 12)
    core.input_arrived(1, 7, 15)
    job = begun(core, EXEC, 20)
    result = core.finish(EXEC, 1, job.begin_ns, 30)
    assert result is not None
    assert result.inputs_ns == 15
    core.submit(30, infer(2, (7, 8), window=(30, 90)))
    core.input_arrived(2, 7, 40)
    assert [each.inputs_ns for each in core.begin(EXEC, 91).results] == [0], "one had not come"
    core.submit(91, infer(3, (7, 8), window=(91, 200)))
    refused = core.input_refused(95, 3, 7, "it has 3 bytes")
    assert refused is not None
    assert refused.inputs_ns == 95


def test_what_a_running_job_keeps_too_long_can_be_told_before_it_ends() -> None:
    core = resident_core()
    for action_id, latest_ns in ((1, 1000), (2, 1000), (3, 3000)):
        core.submit(0, infer(action_id, window=(0, latest_ns)))
        core.input_arrived(action_id, 1)
    core.submit(0, load(4, (3,), "o", window=(0, 500)))
    job = begun(core, EXEC, 0)
    assert core.expire(1000) == []
    assert statuses(core.expire(1001)) == [(2, Status.TOO_LATE)], "of LOAD nothing runs: `begin` says it"
    core.validate()
    assert core.expire(1001) == []
    ended(core, EXEC, job, 2000)
    assert begun(core, EXEC, 2000).action.action_id == 3
