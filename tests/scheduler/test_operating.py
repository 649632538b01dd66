"""Operators' commands: what each does, and when it is refused."""

import msgspec
import pytest

from mainspring.messages.actions import Command, DropWorker, Infer, Load, Prepare, Reject, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    OperatorAsked,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.operating import (
    DrainWorker,
    LoadOn,
    OperatorCommand,
    PinModel,
    ResumeWorker,
    UnloadFrom,
    UnpinModel,
)
from mainspring.messages.targets import merged
from tests.scheduler.hand import Hand, reasons, spec


def ask(hand: Hand, now_ms: float, command: OperatorCommand) -> list[Command]:
    assert hand.scheduler.refusal(command) is None
    return hand.feed(now_ms, OperatorAsked("ann", command))


def refusal(hand: Hand, command: OperatorCommand) -> str:
    found = hand.scheduler.refusal(command)
    assert found is not None
    return found


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_more() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(20, 1, "m", 100)
    assert ask(hand, 21, DrainWorker("w0")) == []
    assert reasons(hand.request(22, 2, "m", 100)) == [Reason.NO_WORKER]
    assert hand.ok(24, infer) == []
    assert ask(hand, 30, ResumeWorker("w0")) == []
    assert isinstance(hand.request(31, 3, "m", 100)[0], Infer), "its memory is as it was"


def test_a_worker_that_resumes_runs_what_has_waited_longest_first() -> None:
    hand = Hand(spec("m"), spec("other"), workers=2)
    for model, now_ms in (("m", 1), ("other", 10)):
        loads = [load for name in ("w0", "w1") for load in ask(hand, now_ms, LoadOn(model, name))]
        for load in loads:
            hand.ok(now_ms + 8, load)
    running = [*hand.request(20, 0, "m", 100), *hand.request(20, 1, "m", None)]
    assert [each.worker for each in running if isinstance(each, Infer)] == ["w0", "w1"]
    assert hand.request(21, 2, "m", None) == []
    ask(hand, 22, DrainWorker("w0"))
    ended = [hand.ok(25, infer) for infer in running]
    ((infer,),) = filter(None, ended)
    assert isinstance(infer, Infer)
    assert (infer.worker, infer.request_ids) == ("w1", (2,))
    assert hand.request(26, 3, "other", None) == hand.request(27, 4, "m", None) == []
    (infer,) = ask(hand, 28, ResumeWorker("w0"))
    assert isinstance(infer, Infer)
    assert infer.request_ids == (3,), "what waited before the worker was drained has run elsewhere"


def test_what_waits_goes_to_another_worker_once_its_own_is_drained() -> None:
    hand = Hand(spec("m"), workers=2)
    hand.warm("m")
    holder = hand.scheduler.status().models[0].resident_on[0]
    ask(hand, 30, DrainWorker(holder))
    (load,) = hand.request(31, 1, "m", 100)
    assert isinstance(load, Load)
    assert load.worker != holder


def test_a_drained_worker_that_comes_back_is_still_drained() -> None:
    hand = Hand(spec("m"))
    ask(hand, 1, DrainWorker("w0"))
    hand.feed(2, WorkerLeft("w0", "gone"))
    assert hand.feed(3, WorkerJoined("w0", "gpu", 8)) == []
    assert [type(each) for each in ask(hand, 4, ResumeWorker("w0"))] == [Prepare]


def test_a_pinned_model_is_loaded_and_never_evicted() -> None:
    hand = Hand(spec("pinned"), *[spec(f"m{i}") for i in range(3)], pages=2)
    (load,) = ask(hand, 1, PinModel("pinned"))
    assert isinstance(load, Load)
    hand.ok(10, load)
    for number, now_ms in enumerate(range(20, 220, 50)):
        commands = hand.request(now_ms, number, f"m{number % 3}", 45)
        evicted = [each.model for each in commands if isinstance(each, Unload)]
        assert "pinned" not in evicted
        for each in commands:
            if isinstance(each, Unload):
                hand.ok(now_ms, each)
        (load,) = [each for each in commands if isinstance(each, Load)]
        (infer,) = [each for each in hand.ok(now_ms + 9, load) if isinstance(each, Infer)]
        hand.ok(now_ms + 14, infer)
    assert "pinned" in {model.name for model in hand.scheduler.status().models if model.resident_on}
    assert refusal(hand, UnloadFrom("pinned")) == "'pinned' is pinned; unpin it first"
    assert ask(hand, 300, UnpinModel("pinned")) == []
    assert isinstance(ask(hand, 301, UnloadFrom("pinned"))[0], Unload)


def test_a_pinned_model_is_loaded_anew_where_its_worker_left() -> None:
    hand = Hand(spec("pinned"), workers=2)
    (load,) = ask(hand, 1, PinModel("pinned"))
    assert isinstance(load, Load)
    hand.ok(10, load)
    (again,) = hand.feed(20, WorkerLeft(load.worker, "gone"))
    assert isinstance(again, Load)
    assert again.worker != load.worker


def test_what_waits_is_refused_once_every_worker_that_could_run_it_is_drained() -> None:
    hand = Hand(spec("m"), spec("big", pages=9), workers=2)
    hand.warm("m")
    for request_id, slo_ms in ((1, 100.0), (2, 100.0), (3, None)):
        hand.request(20, request_id, "m", slo_ms)
    assert hand.scheduler.queued > 0
    waited = hand.scheduler.queued
    assert reasons(ask(hand, 21, DrainWorker("w0"))) == [], "the other worker could load it"
    assert reasons(ask(hand, 21, DrainWorker("w1"))) == [Reason.NO_WORKER] * waited
    assert hand.scheduler.queued == 0


def test_best_effort_requests_whose_last_open_worker_leaves_do_not_wait_for_drained_ones() -> None:
    hand = Hand(spec("m"), workers=2)
    ask(hand, 1, DrainWorker("w0"))
    hand.request(2, 1, "m", None)
    assert hand.scheduler.queued == 1
    assert reasons(hand.feed(3, WorkerLeft("w1", "gone"))) == [Reason.NO_WORKER]


def test_a_request_for_a_model_that_replaces_another_on_a_drained_worker_does_not_wait_for_it() -> None:
    hand = Hand(spec("m"))
    ask(hand, 1, DrainWorker("w0"))
    (release,) = hand.feed(2, ModelAdded(spec("m", version="2")))
    assert hand.request(3, 1, "m", None) == []
    assert reasons(hand.ok(4, release)) == [Reason.NO_WORKER]


def test_a_pinned_model_is_loaded_though_everything_is_in_use_all_the_time() -> None:
    hand = Hand(spec("pinned"), *[spec(f"m{i}") for i in range(3)], pages=3, idle_load_protect_ms=60_000)
    for index in range(3):
        hand.warm(f"m{index}", 20 * index)
    unload, load = ask(hand, 70, PinModel("pinned"))
    assert isinstance(unload, Unload)
    assert isinstance(load, Load)
    assert (unload.model, load.model) == ("m0", "pinned")


@pytest.mark.parametrize(
    ("lose", "regain"),
    [
        (OperatorAsked("ann", DrainWorker("w0")), OperatorAsked("ann", ResumeWorker("w0"))),
        (WorkerLeft("w0", "gone"), WorkerJoined("w0", "gpu", 8)),
    ],
)
def test_pins_leave_room_for_the_others_though_a_worker_is_lost(lose: Event, regain: Event) -> None:
    names = [f"p{i}" for i in range(4)]
    hand = Hand(spec("other", pages=4), *[spec(name, pages=2, load_ms=1) for name in names], workers=2)
    for now_ms, name in enumerate(names):
        loaded(hand, 10 + now_ms, ask(hand, 10 + now_ms, PinModel(name)))
    loaded(hand, 30, hand.feed(30, lose))
    models = {each.name: each for each in hand.scheduler.status().models}
    assert [name for name in names[:2] if "w1" in models[name].resident_on] == names[:2], "the oldest pins"
    loaded(hand, 31, ask(hand, 31, LoadOn("other", "w1")))
    loaded(hand, 40, hand.feed(40, regain))
    models = {each.name: each for each in hand.scheduler.status().models}
    assert [name for name in names if models[name].resident_on] == names


def loaded(hand: Hand, now_ms: float, commands: list[Command]) -> None:
    """Let everything end well that this sets in motion."""
    for action in commands:
        if not isinstance(action, Reject | DropWorker):
            loaded(hand, now_ms, hand.ok(now_ms, action))


def test_a_model_that_replaces_a_pinned_one_is_pinned_and_one_that_comes_after_it_left_is_not() -> None:
    hand = Hand(spec("m"))
    (load,) = ask(hand, 1, PinModel("m"))
    hand.ok(10, load)
    unload, release = hand.feed(11, ModelAdded(spec("m", version="2")))
    hand.ok(12, unload)
    (prepare,) = hand.ok(12, release)
    (load,) = hand.ok(13, prepare)
    assert isinstance(load, Load), "it is loaded because it is pinned"
    hand.ok(22, load)
    assert refusal(hand, UnloadFrom("m")) == "'m' is pinned; unpin it first"
    hand.feed(30, ModelRemoved("m"))
    hand.feed(31, ModelAdded(spec("m")))
    assert refusal(hand, UnpinModel("m")) == "'m' is not pinned"


def test_the_copy_that_is_resident_stays_while_another_is_only_on_its_way() -> None:
    hand = Hand(spec("pinned"), *[spec(f"m{i}") for i in range(3)], pages=2, workers=2)
    (load,) = ask(hand, 1, PinModel("pinned"))
    assert isinstance(load, Load)
    hand.ok(10, load)
    other = "w1" if load.worker == "w0" else "w0"
    (second,) = ask(hand, 11, LoadOn("pinned", other))
    for index, name in enumerate(("m0", "m1")):
        commands = ask(hand, 12 + 20 * index, LoadOn(name, load.worker))
        assert "pinned" not in [each.model for each in commands if isinstance(each, Unload)]
        hand.ok(21 + 20 * index, commands[-1])
    hand.end(60, second, Status.ENGINE_ERROR, "out of memory")
    pinned = next(each for each in hand.scheduler.status().models if each.name == "pinned")
    assert pinned.resident_on == (load.worker,)


def test_loading_and_unloading_by_hand() -> None:
    hand = Hand(spec("m", pages=2), spec("big", pages=9), workers=2)
    (load,) = ask(hand, 1, LoadOn("m", "w1"))
    assert isinstance(load, Load)
    assert (load.model, load.worker) == ("m", "w1")
    hand.ok(10, load)
    assert refusal(hand, LoadOn("m", "w1")) == "'m' is resident on w1 already"
    assert [each.worker for each in ask(hand, 11, LoadOn("m")) if isinstance(each, Load)] == ["w0"]
    assert refusal(hand, LoadOn("m")) == "'m' is resident, or loading, on every worker"
    assert refusal(hand, LoadOn("big", "w0")) == "'big' needs 9 pages and w0 has 8"
    (infer,) = [each for each in hand.request(12, 1, "m", 100) if isinstance(each, Infer)]
    assert "1 INFERs of 'm' outstanding; ask again" in refusal(hand, UnloadFrom("m", infer.worker))
    hand.ok(16, infer)
    (unload,) = ask(hand, 17, UnloadFrom("m", "w1"))
    assert isinstance(unload, Unload)
    assert unload.worker == "w1"
    assert refusal(hand, UnloadFrom("m", "w1")) == "'m' is not resident on w1"


@pytest.mark.parametrize("policy", ["clockwork", "mainspring"])
def test_a_load_that_may_wait_delays_no_other_and_takes_no_page_in_use(policy: str) -> None:
    hand = Hand(spec("m"), spec("next"), spec("used", pages=7), policy=policy, idle_loads=False)  # type: ignore[arg-type]
    hand.warm("used")
    (load,) = hand.request(20, 1, "m", 100)
    assert ask(hand, 21, LoadOn("next", idle=True)) == [], "the LOAD executor is not idle"
    (infer,) = hand.ok(28, load)
    assert hand.ok(32, infer) == [], "no page is free, and both models were used only just now"
    later = hand.feed(60_000, Wakeup())
    assert [each.model for each in later if isinstance(each, Load)] == ["next"]
    assert refusal(hand, LoadOn("next", "w0", idle=True)).endswith("name none")
    assert refusal(hand, LoadOn("nobody", idle=True)) == "there is no model 'nobody'"


def test_commands_that_make_no_sense_are_refused_with_what_is_there() -> None:
    hand = Hand(spec("m"), spec("half", pages=5))
    assert refusal(hand, DrainWorker("w7")) == "there is no worker 'w7'; connected are w0"
    assert refusal(hand, ResumeWorker("w0")) == "'w0' is not drained"
    assert refusal(hand, LoadOn("nobody")) == "there is no model 'nobody'"
    assert refusal(hand, UnpinModel("m")) == "'m' is not pinned"
    assert "5 pages, and 4 is the most" in refusal(hand, PinModel("half"))
    large = Hand(spec("big", pages=9), workers=4)
    assert refusal(large, PinModel("big")) == "model 'big' needs 9 pages and the largest worker has 8"
    ask(hand, 1, LoadOn("m"))
    assert refusal(hand, UnloadFrom("m")) == "'m' is being loaded on w0; ask again"
    hand.feed(2, WorkerLeft("w0", "gone"))
    assert refusal(hand, LoadOn("m")) == "no worker is connected"
    assert refusal(hand, PinModel("m")) == "no worker is connected"
    assert refusal(hand, DrainWorker("w0")) == "there is no worker 'w0'; connected are none"


def test_pins_take_the_pages_of_the_artifact_that_workers_run() -> None:
    small = msgspec.structs.replace(spec("two"), target="onnxruntime-avx2")
    large = msgspec.structs.replace(
        spec("two", pages=4), target="onnxruntime-avx512", weights_hash="w", executable="y"
    )
    hand = Hand(merged(small, large), spec("other"), workers=0)
    hand.feed(0, WorkerJoined("w0", "gpu", 8, targets=("onnxruntime-avx512",)))
    assert hand.scheduler.refusal(PinModel("two")) is None
    hand.feed(1, OperatorAsked("ann", PinModel("two")))
    assert refusal(hand, PinModel("other")).startswith("pinned models would take 5 pages, and 4 is the most")
    hand.scheduler.validate()
