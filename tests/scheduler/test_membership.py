"""Workers and models that come, go, hang and disagree."""

from collections.abc import Callable

import msgspec
import pytest

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.membership import FATAL, FATAL_APART_NS, FATAL_ATTEMPTS
from mainspring.cluster.placements import Placement
from mainspring.cluster.readiness import takers, why_not
from mainspring.cluster.residency import of_worker
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import (
    Command,
    DropWorker,
    Infer,
    Load,
    Prepare,
    Reject,
    Release,
    Result,
    Unload,
)
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Resident,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import Profile
from mainspring.scheduler.config import milliseconds
from tests.cluster.described import described
from tests.scheduler.hand import MS, Hand, reasons, spec


def test_a_lost_workers_requests_go_elsewhere_or_are_rejected() -> None:
    hand = Hand(spec("m"), workers=2)
    hand.warm("m")
    assert isinstance(hand.request(50, 1, "m", 100)[0], Infer)
    assert isinstance(hand.request(50, 2, "m", 12)[0], Infer)
    commands = hand.feed(60, WorkerLeft("w0", "silent"))
    assert reasons(commands) == [Reason.WORKER_FAILED]
    assert [c.worker for c in commands if isinstance(c, Load)] == ["w1"]


def test_a_request_that_workers_die_of_ends_two_of_them_and_no_other_request() -> None:
    """Its values make the engine's code crash, say."""
    hand, artifact = Hand(spec("m"), workers=0), spec("m").artifact
    for index in range(6):
        held = (Resident("m", artifact, (0,)),)
        hand.feed(0, WorkerJoined(f"w{index}", "gpu", 8, {"m": artifact}, held))
    victim, ids = 7, range(1, 13)
    sent = [command for each in ids for command in hand.request(50, each, "m", 5_000)]
    lost: list[str] = []
    served: set[int] = set()
    rejected: list[Reject] = []
    now_ms = 50.0
    while sent:
        now_ms += 5
        infer = sent.pop(0)
        if isinstance(infer, Reject):
            rejected.append(infer)
        if not isinstance(infer, Infer) or infer.worker in lost:
            continue
        if victim in infer.request_ids:
            lost.append(infer.worker)
            sent += hand.feed(now_ms, WorkerLeft(infer.worker, "crashed"))
        else:
            served.update(infer.request_ids)
            sent += hand.ok(now_ms, infer)
    assert [(each.request_id, each.reason) for each in rejected] == [(victim, Reason.WORKER_FAILED)]
    assert len(lost) == 2
    assert served == {*ids} - {victim}


class Crashing:
    """Workers of two models, of which one ends each process that runs it."""

    def __init__(self, workers: int) -> None:
        self.hand = Hand(spec("m"), spec("n"), workers=0)
        self.names = [f"w{index}" for index in range(workers)]
        config = self.hand.scheduler.config
        self.reader = Cluster(config.estimate_rank, milliseconds(config.dispatch_delay_ms), MS)
        for name in ("m", "n"):
            apply(self.reader, 0, ModelAdded(spec(name)))
        self.now_ms = 0.0
        for name in self.names:
            self.join(name)

    def join(self, name: str) -> None:
        held = (Resident("m", spec("m").artifact, (0,)), Resident("n", spec("n").artifact, (1,)))
        prepared = {each.model: each.artifact for each in held}
        self.feed(WorkerJoined(name, "gpu", 8, prepared, held))

    def feed(self, event: Event) -> list[Command]:
        self.now_ms += 1
        now_ns = int(self.now_ms * MS)
        self.hand.scheduler.handle(now_ns, event)
        commands = self.hand.scheduler.schedule(now_ns)
        for entry in (event, *commands):
            apply(self.reader, now_ns, entry)
        settle(self.reader)
        assert described(self.reader) == described(self.hand.scheduler.cluster)
        self.hand.scheduler.validate()
        return commands

    def ask(self, id_: int, model: str) -> list[Command]:
        return self.feed(RequestArrived(id_, model, 1, int((self.now_ms + 500) * MS)))

    def crash(self, infer: Infer) -> list[Command]:
        """Lose the worker of an INFER that it runs, and have it come back; return the commands between."""
        self.now_ms += 5
        commands = self.feed(WorkerLeft(infer.worker, "its connection ended"))
        self.join(infer.worker)
        return commands

    def answer(self, infer: Infer) -> None:
        now_ns = int((self.now_ms + 5) * MS)
        self.now_ms += 5
        begin_ns = now_ns - infer.predicted_duration_ns
        self.feed(Result(infer.action_id, infer.worker, Status.OK, begin_ns, now_ns))

    @property
    def given_up(self) -> list[Placement]:
        placements = [
            each for worker in self.hand.scheduler.cluster.workers.values() for each in of_worker(worker)
        ]
        return [each for each in placements if FATAL in each.detail]

    @property
    def why_not(self) -> str:
        cluster = self.hand.scheduler.cluster
        return why_not(cluster, cluster.models["m"], takers(cluster))


def infers(commands: list[Command]) -> list[Infer]:
    return [each for each in commands if isinstance(each, Infer)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_model_that_workers_die_of_again_and_again_is_given_up_everywhere(workers: int) -> None:
    crashing = Crashing(workers)
    for id_ in range(1, FATAL_ATTEMPTS + 1):
        assert crashing.why_not == ""
        crashing.now_ms += FATAL_APART_NS / MS
        commands, lost = crashing.ask(id_, "m"), 0
        while sent := infers(commands):
            assert len(sent) == 1
            lost += 1
            commands = crashing.crash(sent[0])
            if isinstance(commands[-1], Reject):
                break
        assert lost, "it is tried"
    assert crashing.why_not.startswith("can't be loaded: no worker could run model 'm'; w")
    assert FATAL in crashing.why_not
    (refused,) = [each for each in crashing.ask(20, "m") if isinstance(each, Reject)]
    assert FATAL in refused.detail
    assert infers(crashing.ask(21, "n")), "others are served"
    crashing.feed(ModelRemoved("m"))
    crashing.feed(ModelAdded(spec("m", version="2")))
    assert FATAL not in crashing.why_not


def test_a_model_that_is_answered_between_is_not_given_up() -> None:
    crashing = Crashing(3)
    for id_ in range(1, 3 * FATAL_ATTEMPTS):
        crashing.now_ms += FATAL_APART_NS / MS
        (infer,) = infers(crashing.ask(2 * id_, "m"))
        for again in infers(crashing.crash(infer)):
            crashing.answer(again)
        for infer in infers(crashing.ask(2 * id_ + 1, "m")):
            crashing.answer(infer)
    assert crashing.why_not == ""


def fatal_prepares(crashing: Crashing, fatal: Callable[[int], bool]) -> int:
    """Have a worker without any model join again and again; return how many PREPAREs of ``m`` it was sent.

    It ends at each PREPARE of ``m`` for whose number ``fatal`` says so, and prepares all others.
    """
    sent = 0
    for _ in range(3 * FATAL_ATTEMPTS):
        crashing.now_ms += FATAL_APART_NS / MS
        left = list(crashing.feed(WorkerJoined("new", "gpu", 8)))
        while left:
            command = left.pop(0)
            if not isinstance(command, Prepare) or command.worker != "new":
                continue
            if command.model.name == "m" and fatal(sent := sent + 1):
                crashing.feed(WorkerLeft("new", "its process ended"))
                break
            now_ns = int(crashing.now_ms * MS)
            left += crashing.feed(Result(command.action_id, "new", Status.OK, now_ns, now_ns))
    return sent


def test_a_model_whose_prepare_workers_die_of_is_given_up_where_it_is_not_prepared() -> None:
    crashing = Crashing(1)
    assert fatal_prepares(crashing, lambda _: True) == FATAL_ATTEMPTS
    new = crashing.hand.scheduler.cluster.workers["new"]
    assert FATAL in new.placements["m"].detail
    assert crashing.why_not == "", "the worker that had it prepared serves it"
    assert infers(crashing.ask(1, "m"))
    crashing.feed(WorkerLeft("w0", "stopped"))
    assert FATAL in crashing.why_not
    assert crashing.ask(2, "n"), "others are served"


def test_a_prepare_that_ends_well_between_shows_that_the_model_is_not_the_reason() -> None:
    crashing = Crashing(1)
    assert fatal_prepares(crashing, lambda number: number % FATAL_ATTEMPTS != 0) == 3 * FATAL_ATTEMPTS
    assert "m" not in {each.model.name for each in crashing.given_up}


def test_a_model_whose_load_workers_die_of_is_given_up_everywhere() -> None:
    crashing = Crashing(0)
    prepared = {name: spec(name).artifact for name in ("m", "n")}
    loads = 0
    for id_ in range(1, 2 * FATAL_ATTEMPTS):
        crashing.now_ms += FATAL_APART_NS / MS
        commands = crashing.feed(WorkerJoined("w0", "gpu", 8, prepared)) + crashing.ask(id_, "m")
        if any(isinstance(each, Load) and each.model == "m" for each in commands):
            loads += 1
            crashing.now_ms += 1
            crashing.feed(WorkerLeft("w0", "its process ended"))
        else:
            crashing.feed(WorkerLeft("w0", "stopped"))
    assert loads == FATAL_ATTEMPTS


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_was_merely_silent_does_not_count(again: bool) -> None:
    crashing = Crashing(0)
    sent = 0
    for _ in range(3 * FATAL_ATTEMPTS):
        crashing.now_ms += FATAL_APART_NS / MS
        commands = crashing.feed(WorkerJoined("w0", "gpu", 8, again=again))
        sent += any(isinstance(each, Prepare) and each.model.name == "m" for each in commands)
        crashing.feed(WorkerLeft("w0", "silent for 1001 ms"))
    assert sent == (3 * FATAL_ATTEMPTS if again else FATAL_ATTEMPTS)


def test_workers_that_are_lost_together_count_once() -> None:
    crashing = Crashing(3 * FATAL_ATTEMPTS)
    running: dict[str, Infer] = {}
    for id_ in range(1, 3 * FATAL_ATTEMPTS):
        crashing.now_ms -= 1
        running |= {infer.worker: infer for infer in infers(crashing.ask(id_, "m"))}
    assert FATAL_ATTEMPTS < len(running) < len(crashing.names)
    crashing.now_ms += 4
    for worker in running:
        commands = crashing.feed(WorkerLeft(worker, "nothing came from it for 1 s"))
        assert not [each for each in commands if isinstance(each, Unload)], "others keep the model"
    assert crashing.why_not == ""
    assert infers(crashing.ask(100, "m")), "served by the others"


def test_a_worker_that_never_answers_is_dropped() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(50, 1, "m", 100)
    assert isinstance(infer, Infer)
    commands: list[Command] = []
    now_ns = 50 * MS
    while not commands and now_ns < 10_000 * MS:
        now_ns = hand.scheduler.next_wakeup_ns() or now_ns + MS
        commands = [c for c in hand.scheduler.schedule(now_ns) if not isinstance(c, Infer)]
    assert any(isinstance(command, DropWorker) for command in commands)
    assert reasons(commands) == [Reason.WORKER_FAILED]
    assert hand.scheduler.status().workers == ()


def test_a_hung_worker_is_noticed_beside_a_slow_prepare() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    assert [type(c) for c in hand.feed(50, ModelAdded(spec("slow")))] == [Prepare]
    hand.scheduler.schedule(2100 * MS)
    assert isinstance(hand.request(3000, 1, "m", 100)[0], Infer)
    commands: list[Command] = []
    for now_ms in range(3100, 8000, 100):
        commands += hand.scheduler.schedule(now_ms * MS)
    assert any(isinstance(command, DropWorker) for command in commands)


def test_a_worker_whose_page_table_cant_be_true_is_dropped() -> None:
    for pages in ((3, 3), (9,)):
        hand = Hand(spec("m"), workers=0)
        held = tuple(
            Resident(f"m{page}{index}", spec("m").artifact, (page,)) for index, page in enumerate(pages)
        )
        (drop,) = hand.feed(0, WorkerJoined("w0", "gpu", 8, resident=held))
        assert isinstance(drop, DropWorker)
        assert hand.scheduler.status().workers == ()


def test_a_load_is_planned_for_the_device_that_is_quick_enough() -> None:
    """Only the quick kind of device, which joined second, can load and run the model within the SLO."""
    slow, quick = Profile({1: 20 * MS, 2: 30 * MS, 4: 40 * MS}, 80 * MS), Profile({1: MS, 2: MS, 4: MS}, MS)
    model = msgspec.structs.replace(spec("m"), profiles={"slow": slow, "quick": quick})
    hand = Hand(model, workers=0)
    hand.prepare(hand.feed(0, WorkerJoined("w0", "slow", 8)))
    hand.prepare(hand.feed(0, WorkerJoined("w1", "quick", 8)))
    (load,) = hand.request(1, 1, "m", 10)
    assert isinstance(load, Load)
    assert load.worker == "w1"


def test_a_failed_request_of_a_replaced_model_is_not_left_waiting() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(50, 1, "m", None)
    hand.feed(51, ModelRemoved("m"))
    hand.feed(51, ModelAdded(spec("m", version="2")))
    assert Reason.MODEL_REMOVED in reasons(hand.end(55, infer, Status.ENGINE_ERROR))
    assert hand.scheduler.status().requests_queued == 0


def test_a_result_that_the_books_rule_out_breaks_with_the_worker() -> None:
    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 100)
    commands = hand.end(1, load, Status.BAD_PAGES, "page 0 is occupied by x")
    assert [type(c).__name__ for c in commands] == ["DropWorker", "Reject"]


def test_a_joining_worker_keeps_what_it_holds() -> None:
    hand = Hand(spec("m"), spec("n", version="2"), workers=0)
    joined = WorkerJoined(
        "w0",
        "gpu",
        8,
        prepared={name: spec(name).artifact for name in ("m", "n", "stranger")},
        resident=(
            Resident("m", spec("m").artifact, (3,)),
            Resident("stranger", spec("stranger").artifact, (5,)),
        ),
    )
    commands = hand.feed(0, joined)
    assert {c.model for c in commands if isinstance(c, Release)} == {"n", "stranger"}
    assert [c.model for c in commands if isinstance(c, Unload)] == ["stranger"]
    (infer,) = hand.request(1, 1, "m", 20)
    assert isinstance(infer, Infer), "no LOAD is needed"
    prepared = [c for a in commands if isinstance(a, Release) for c in hand.ok(2, a)]
    assert [c.model.weights_hash for c in prepared if isinstance(c, Prepare)] == ["n version 2"]


@pytest.mark.parametrize(
    "changed", [{"executable": "another"}, {"batch_sizes": (1, 2)}, {"weights_hash": "x"}]
)
def test_a_joining_worker_gives_up_what_is_not_the_same_artifact(changed: dict[str, object]) -> None:
    """Weights may stay while graph or batch sizes change: INFERs would run another model, or be refused."""
    model = spec("m")
    older = msgspec.structs.replace(model, **changed).artifact
    hand = Hand(model, workers=0)
    commands = hand.feed(0, WorkerJoined("w0", "gpu", 8, {"m": older}, (Resident("m", older, (0,)),)))
    assert [type(c) for c in commands] == [Unload, Release]
    (prepare,) = [c for action in commands for c in hand.ok(1, action)]
    assert isinstance(prepare, Prepare)
    assert prepare.model == model


def test_a_model_is_replaced_without_losing_a_request() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = hand.request(50, 1, "m", 100)
    assert hand.feed(51, ModelAdded(spec("m", version="2"))) == [], "the old one is still running"
    unload, release = hand.ok(55, infer)
    hand.ok(56, unload)
    (prepare,) = hand.ok(56, release)
    assert isinstance(prepare, Prepare)
    assert prepare.model.weights_hash == "m version 2"
    hand.ok(57, prepare)
    assert isinstance(hand.request(60, 2, "m", 100)[0], Load)


def test_a_worker_that_cant_release_is_dropped_and_told_nothing_more() -> None:
    hand = Hand(spec("m"))
    (release,) = hand.feed(1, ModelAdded(spec("m", version="2")))
    assert isinstance(release, Release)
    commands = hand.end(2, release, Status.NOT_PREPARED, "there is no model m")
    assert [type(command) for command in commands] == [DropWorker]
    assert hand.scheduler.status().workers == ()
    rejoined = hand.feed(3, WorkerJoined("w0", "gpu", 8))
    assert [c.model.weights_hash for c in rejoined if isinstance(c, Prepare)] == ["m version 2"]


def test_what_was_learned_of_a_model_goes_with_it() -> None:
    """A replacement of the same architecture keeps the estimates; after a removal the profile counts."""

    def predicted_ns(now_ms: int, id_: int) -> int:
        commands = hand.request(now_ms, id_, "m", 300)
        if isinstance(commands[0], Load):
            commands = hand.ok(now_ms + 9, commands[0])
        (infer,) = [c for c in commands if isinstance(c, Infer)]
        hand.end(now_ms + 60, infer, Status.OK)
        return infer.predicted_duration_ns

    def settle(now_ms: int, commands: list[Command]) -> None:
        for action in commands:
            settle(now_ms, hand.ok(now_ms, action))

    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 100)
    (infer,) = [c for c in hand.ok(9, load) if isinstance(c, Infer)]
    hand.feed(30, Result(infer.action_id, "w0", Status.OK, 9 * MS, 30 * MS))
    assert predicted_ns(100, 2) == 21 * MS, "4 ms by the profile, 21 ms as measured"
    settle(200, hand.feed(200, ModelAdded(spec("m", version="2"))))
    assert predicted_ns(300, 3) == 21 * MS
    settle(400, hand.feed(400, ModelRemoved("m")))
    settle(500, hand.feed(500, ModelAdded(spec("m", version="3"))))
    assert predicted_ns(600, 4) == 4 * MS


def test_removing_a_model_rejects_what_waits_and_frees_its_pages() -> None:
    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 100)
    assert reasons(hand.feed(1, ModelRemoved("m"))) == [Reason.MODEL_REMOVED]
    unload, release = hand.ok(9, load)
    hand.ok(10, unload)
    hand.ok(10, release)
    assert hand.scheduler.status().workers[0].pages_free == 8
    assert reasons(hand.request(11, 2, "m", 100)) == [Reason.UNKNOWN_MODEL]
