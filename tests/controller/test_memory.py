"""What clients and operators changed outlives the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.controller.memory import Damaged, Memory
from mainspring.messages.actions import Load, Prepare
from mainspring.messages.estimates import InferEstimate, LoadRates
from mainspring.messages.events import OperatorAsked
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.operating import (
    DrainWorker,
    LoadOn,
    PinModel,
    ResumeWorker,
    SetDefaultSlo,
    SetGraph,
    UnpinModel,
)
from mainspring.messages.peers import DefaultSlo, Dispatch, Graph, ModelUp, QueryArrival, Welcome
from mainspring.messages.queries import Piece, QueryStep
from mainspring.messages.served import ServedModel
from tests.controller.peers import Stage, spec
from tests.controller.test_administration import Operator

LOADS = LoadRates({"cpu": 2.5})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "changes"


def test_the_last_change_of_each_subject_is_in_force_after_a_restart(path: Path) -> None:
    memory = Memory(str(path))
    memory.removed("a")
    memory.added(spec("b"))
    memory.removed("b")
    memory.added(spec("b", "other"))
    for command in (
        *(DrainWorker("w0"), DrainWorker("w1"), ResumeWorker("w0"), LoadOn("a")),
        *(PinModel("x"), PinModel("y"), UnpinModel("x"), PinModel("gone")),
        *(SetDefaultSlo("x", 5), SetDefaultSlo("y", 6), SetDefaultSlo("x", None)),
    ):
        memory.operated(OperatorAsked("ann", command))
    memory.removed("gone")
    again = Memory(str(path))
    assert again.models == {"a": None, "b": spec("b", "other"), "gone": None}
    assert [(each.who, each.command) for each in again.asked.values()] == [
        ("ann", DrainWorker("w1")),
        ("ann", PinModel("y")),
        ("ann", SetDefaultSlo("y", 6)),
    ]
    assert again.applied([spec("a"), spec("b"), spec("c")]) == [spec("c"), spec("b", "other")]


def test_a_line_that_was_not_written_whole_costs_itself_alone(path: Path) -> None:
    memory = Memory(str(path))
    memory.removed("a")
    memory.removed("b")
    path.write_bytes(path.read_bytes()[:-5])
    assert list(Memory(str(path)).models) == ["a"]


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("begins", [True, False])
def test_damage_is_refused_unless_it_is_to_be_forgotten(path: Path, line: int, begins: bool) -> None:
    memory = Memory(str(path))
    for name in "abc":
        memory.removed(name)
    lines = path.read_bytes().splitlines(keepends=True)
    whole = lines[line]
    lines[line] = b"x" + whole[1:] if begins else whole[:-3] + b"a" + whole[-2:]
    path.write_bytes(b"".join(lines))
    damaged = path.read_bytes()
    with pytest.raises(Damaged, match="--forget"):
        Memory(str(path))
    assert path.read_bytes() == damaged
    assert Memory(str(path), forget=True).models == {}
    assert path.with_name("changes.damaged").read_bytes() == damaged
    assert Memory(str(path)).models == {}


def test_a_snapshot_that_lacks_lines_is_damaged(path: Path) -> None:
    memory = Memory(str(path))
    memory.removed("a")
    memory.removed("b")
    Memory(str(path))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(Damaged, match="1 of 2 lines"):
        Memory(str(path))


def test_all_of_it_is_told_to_another(path: Path) -> None:
    leader, other = Memory(), Memory(str(path))
    other.removed("old")
    leader.on_kept = other.told
    leader.began(7)
    leader.added(spec("a"))
    leader.serving(ServedModel("a", {1: "a"}))
    leader.moved("w0", "tcp://elsewhere:1")
    leader.estimated(LOADS)
    assert other.models == {"old": None, "a": spec("a")}
    late = Memory()
    for line in leader.lines():
        late.told(line)
    for each in (late, Memory(str(path))):
        assert (each.epoch, each.served, each.places) == (7, leader.served, leader.places)
        assert list(each.estimates.values()) == [LOADS]
    with pytest.raises(ValueError, match="checksum"):
        late.told(leader.lines()[0].replace(b"7", b"8"))


def test_what_was_learnt_outlives_the_controller(stage: Stage, path: Path) -> None:
    first = stage.start((spec("a", infer_ms=50.0),), state_file=str(path))
    gateway, _ = stage.cluster("a")
    asked: list[int] = []

    def kept() -> bool:
        found = [each for each in first._shell.memory.estimates.values() if isinstance(each, InferEstimate)]
        return any(each.durations[0].estimate_ns < 50_000_000 for each in found)

    for counter in range(1, 13):
        asked.append(gateway.arrive(counter, "a"))
        stage.until(lambda: len(gateway.all(Dispatch)) == len(asked))
    stage.until(kept)
    address = stage.address
    stage.stop()
    controller = stage.start((spec("a", infer_ms=50.0),), state_file=str(path), address=address)
    states = list(controller.scheduler.cluster.estimates.states())
    learnt = [each for each in states if isinstance(each, InferEstimate)]
    assert [each.device_kind for each in learnt] == ["cpu"]
    assert learnt[0].durations[0].estimate_ns < 50_000_000


def test_the_file_does_not_grow_with_what_later_changes_undo(path: Path) -> None:
    memory = Memory(str(path))
    for _ in range(3_000):
        memory.removed("a")
        memory.added(spec("a"))
    assert len(path.read_bytes().splitlines()) < 1_100
    assert Memory(str(path)).models == {"a": spec("a")}


def test_a_file_that_cannot_be_written_is_named_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(str(path))
    path.unlink()
    path.mkdir()
    memory.removed("a")
    memory.removed("b")
    assert list(memory.models) == ["a", "b"]
    assert [record.getMessage().count(str(path)) for record in caplog.records] == [1]


def test_a_controller_that_starts_again_keeps_what_was_changed(stage: Stage, path: Path) -> None:
    models = (spec("a"), spec("b"))
    first = stage.start(models, state_file=str(path))
    gateway, gone = stage.cluster("a", "b")
    operator = Operator(stage)
    assert stage.admin(gateway, remove="a").reason is None
    assert stage.admin(gateway, add=spec("c", "h2")).reason is None
    for command in (DrainWorker("w0"), SetDefaultSlo("b", 7), PinModel("b")):
        assert operator.ask(command).done
    operator.stream.close()
    stage.stop()
    # It would connect again by itself, and a second one of its name would not be let in.
    gone.close()
    second = stage.start(models, state_file=str(path), address=first.address)
    gateway, worker = stage.gateway("g1"), stage.worker("w1")
    stage.until(lambda: bool(worker.all(Load)))
    assert [each.model for each in worker.all(Load)] == ["b"], "the pinned one"
    stage.until(lambda: {each.model.name for each in worker.all(Prepare)} == {"b", "c"})
    assert {each.model.name for each in gateway.all(ModelUp)} == {"b", "c"}
    assert [(each.model, each.slo_ns) for each in gateway.all(DefaultSlo)] == [("b", 7)]
    back = stage.worker("w0")

    def drained() -> bool:
        found = {each.worker: each.notes for each in stage.status(gateway).workers}
        return "w0" in found and found["w0"][0].startswith("an operator drained it")

    stage.until(drained)
    assert not back.all(Load)
    assert second.address == first.address


def test_what_was_learnt_of_a_graphs_steps_outlives_a_restart_of_all(stage: Stage, path: Path) -> None:
    step = StepSpec(name="some", model="a", inputs={"data": "x"})
    graph = GraphSpec(name="g", inputs=("x",), steps=(step,), outputs={"y": "some.out"})
    first = stage.start((spec("a"),), state_file=str(path))
    gateway, worker = stage.cluster("a")
    operator = Operator(stage)
    assert operator.ask(SetGraph("g", graph)).done
    query_id = (gateway.last(Welcome).number << 40) + 1
    steps = (QueryStep("a", 1, name="some", share=0.25),)
    gateway.send(QueryArrival(query_id, 10_000_000_000, steps, (Piece(query_id + 1, 1),), graph="g"))
    stage.until(lambda: first.scheduler.cluster.graph_shares == {"g": {"some": 0.25}})
    operator.stream.close()
    stage.stop()
    for each in (gateway, worker):
        each.close()
    second = stage.start((spec("a"),), state_file=str(path), address=first.address)
    gateway = stage.gateway("g1")
    assert [each.shares for each in gateway.all(Graph)] == [{"some": 0.25}]
    query_id = (gateway.last(Welcome).number << 40) + 1
    steps = (QueryStep("a", 1, name="some"),)
    gateway.send(QueryArrival(query_id, 10_000_000_000, steps, (Piece(query_id + 1, 1),), graph="g"))
    stage.until(lambda: second.scheduler.cluster.graph_shares == {"g": {}})
    assert [each.shares for each in stage.gateway("g2").all(Graph)] == [{}], "all are 1 again"


def test_a_share_is_recorded_where_it_is_new_and_forgotten_with_its_graph(path: Path) -> None:
    memory = Memory(str(path))
    for share in (1.05, 0.5, 0.55, 0.7):
        memory.learnt("g", {"some": share})
    assert len(path.read_bytes().splitlines()) == 3, "the header and two"
    assert Memory(str(path)).shares == {"g": {"some": 0.7}}
    memory.learnt("g", {})
    assert Memory(str(path)).shares == {"g": {}}, "all are 1 again"
    memory.operated(OperatorAsked("ann", SetGraph("g", None)))
    assert Memory(str(path)).shares == {}
