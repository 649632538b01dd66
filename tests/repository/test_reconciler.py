"""The steps from what is served to what should be, played against a cluster made of nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.peers import Served
from mainspring.messages.repository import ModelState
from mainspring.messages.served import ServedModel
from mainspring.repository.builds import Record, Stage
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig, TensorConfig, VersionPolicy
from mainspring.repository.reconciler import UNVERIFIED, Compile, Look, Reconciler, Step
from tests.repository.world import BROKEN, PATIENCE, PATIENCE_NS, UNFIT, World, spec


def test_nothing_is_asked_before_the_folder_was_looked_at() -> None:
    world = World()
    world.start_controller((), ())
    world.reconciler.cluster.heard(Served(ServedModel("net", {1: "net@1-aa"})))
    assert world.step() == 0
    world.settle()
    assert world.told == [ServedModel("net", {})]


def test_a_version_that_was_compared_with_nothing_is_ready_and_says_so() -> None:
    world = World()
    world.put("net", {1: "unverified"})
    world.settle()
    assert world.index("net") == {"1": (ModelState.READY, UNVERIFIED)}


def test_a_version_is_served_once_every_worker_has_prepared_it_or_one_for_long_enough() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.look()
    assert [type(each) for each in world.reconciler.steps(0)] == [Compile]
    world.step()
    world.step()
    assert world.reconciler.preparing()
    world.status(prepared_on=1)
    assert world.step() == 0
    assert world.index("net") == {"1": (ModelState.LOADING, Stage.COMPILED.value)}
    world.now_ns += PATIENCE_NS
    assert world.step() == 1
    assert world.served("net") == {1: "a"}
    assert world.index("net") == {"1": (ModelState.READY, "")}
    assert world.reconciler.settled()


def test_a_switch_is_one_message_and_the_old_goes_after_it() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    world.put("net", {1: "a", 2: "b"})
    world.settle()
    assert [dict(each.versions).keys() for each in world.told] == [{1}, {2}]
    assert [name.partition("-")[0] for name in world.reconciler.cluster.models] == ["net@2"]


@pytest.mark.parametrize("idle", [True, False])
def test_what_takes_the_place_of_a_version_in_use_is_loaded_first_if_there_is_time(idle: bool) -> None:
    world = World(loads=idle)
    world.put("net", {1: "a"})
    world.settle()
    assert world.resident == set()
    world.resident.update(world.reconciler.cluster.models)
    world.put("net", {2: "b"})
    for _ in range(4):
        world.look()
        world.step()
        world.status()
    if not idle:
        assert world.served("net").keys() == {1}
        assert world.index("net")["2"] == (ModelState.LOADING, Stage.WARMING.value)
        world.now_ns += PATIENCE_NS
    world.settle()
    assert world.served("net") == {2: "b"}
    assert len(world.resident) == 1 + idle


def test_content_changed_in_place_is_served_as_it_was_until_the_new_one_can_be() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    world.put("net", {1: "b"})
    world.look()
    world.step()
    state, reason = world.index("net")["1"]
    assert state is ModelState.READY
    assert "before its files changed" in reason
    world.settle()
    assert world.served("net") == {1: "b"}
    world.put("net", {1: BROKEN})
    world.settle()
    assert world.index("net")["1"] == (
        ModelState.READY,
        f"it is served as it was before its files changed, of which now: {BROKEN}",
    )
    world.put("net", {1: "b"})
    world.settle()
    assert world.index("net") == {"1": (ModelState.READY, "")}
    assert len(world.reconciler.cluster.models) == 1


@pytest.mark.parametrize("wrong", [BROKEN, UNFIT])
def test_a_version_that_can_not_be_served_leaves_its_place_to_the_one_before(wrong: str) -> None:
    world = World()
    world.put("net", {1: "a", 2: "b"})
    world.settle()
    world.put("net", {1: "a", 2: "b", 3: wrong})
    world.settle()
    assert world.served("net") == {2: "b"}
    assert {} not in [each.versions for each in world.told]
    assert world.index("net")["3"][0] is ModelState.UNAVAILABLE
    assert world.index("net")["2"] == (ModelState.READY, "")
    fresh = World()
    fresh.put("net", {1: "a", 2: wrong, 3: wrong})
    fresh.settle()
    assert fresh.served("net") == {1: "a"}


def test_a_configuration_that_is_wrong_changes_nothing() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    wrong = ModelConfig(inputs=(TensorConfig(name="x", dims=(5,)),))
    (before,) = world.reconciler.cluster.models
    world.put("net", {1: "a", 2: "b"}, wrong)
    world.settle()
    assert world.reconciler.cluster.versions_of("net") == {1: before}
    assert "dims [5]" in world.index("net")["2"][1]
    world.folder["net"] = FoundModel(name="net", given=True, fault="config.pbtxt, line 1: no")
    world.settle()
    assert world.index("net") == {"1": (ModelState.READY, "config.pbtxt, line 1: no")}


def test_options_change_without_anything_being_compiled() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    world.put("net", {1: "a"}, ModelConfig(slo_ns=5, cache=True, priority_levels=3, default_priority=2))
    world.settle()
    assert (world.told[-1].slo_ns, world.told[-1].cache) == (5, True)
    assert (world.told[-1].priority_levels, world.told[-1].default_priority) == (3, 2)
    assert len(world.compiled) == 1


def test_a_model_that_fits_no_worker_says_so() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.look()
    (compile_,) = world.reconciler.steps(0)
    assert isinstance(compile_, Compile)
    compile_.build.compiled(spec(compile_.build.name, pages=9))
    world.step()
    world.status()
    world.step()
    assert "needs 9 pages" in world.index("net")["1"][1]
    assert world.reconciler.moves("net"), "an older version might be served"
    (look,) = world.reconciler.steps(0)
    assert look == Look("net"), "in mode explicit nobody else looks"
    world.look()
    assert not world.reconciler.moves("net")
    assert world.reconciler.settled()


def test_files_that_are_being_changed_are_left_alone() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    world.reconciler.found("net", FoundModel(name="net", settling=(2,), numbers=(1, 2)))
    assert world.step() == 0
    assert not world.reconciler.settled()
    assert world.served("net") == {1: "a"}
    world.reconciler.found("new", FoundModel(name="new", settling=(1,), numbers=(1,)))
    assert world.step() == 0
    assert world.index("new") == {"1": (ModelState.LOADING, "its files are being changed")}


def test_a_controller_that_forgot_everything_is_told_again_and_one_that_did_not_is_left_alone() -> None:
    world = World()
    world.put("net", {1: "a"})
    world.settle()
    specs, served = (
        tuple(world.reconciler.cluster.models.values()),
        tuple(world.reconciler.cluster.served.values()),
    )
    world.reconciler.cluster.lost()
    assert world.step() == 0
    assert world.index("net") == {"1": (ModelState.READY, "")}
    told = len(world.told)
    world.start_controller(specs, served)
    world.settle()
    assert len(world.told) == told
    world.start_controller()
    world.settle()
    assert world.served("net") == {1: "a"}
    assert len(world.compiled) == 1


def test_what_is_loaded_is_what_was_asked_for_or_is_served_already() -> None:
    world = World(Reconciler(explicit=True, load_models=["net"], patience=PATIENCE))
    for name in ("net", "other", "served"):
        world.put(name, {1: name})
    world.start_controller((), (ServedModel("served", {1: "gone"}),))
    world.reconciler.adopt()
    world.settle()
    assert [bool(world.served(name)) for name in ("net", "other", "served")] == [True, False, True]
    assert world.index("other") == {"": (ModelState.UNAVAILABLE, "unloaded")}
    world.reconciler.load("other")
    world.reconciler.unload("net")
    assert world.reconciler.moves("other")
    world.settle()
    assert [bool(world.served(name)) for name in ("net", "other")] == [False, True]
    assert not world.reconciler.moves("other")


def test_a_model_that_was_only_listed_stays_served_until_its_folder_is_looked_at() -> None:
    # A restarted repository may list its folder before the controller says what clients have left loaded.
    world = World(Reconciler(explicit=True, patience=PATIENCE))
    old = msgspec.structs.replace(spec("net-1"), served_as="net")
    world.prepared[old.name] = 2
    world.reconciler.cluster.lost()
    world.reconciler.found("net", FoundModel(name="net"))
    world.reconciler.looked = True
    assert world.step() == 0
    world.start_controller((old,), (ServedModel("net", {1: "net-1"}),))
    world.reconciler.adopt()
    assert world.step() == 0
    assert world.served("net") == {1: "net-1"}
    assert world.reconciler.moves("net")
    world.put("net", {1: "a"})
    world.settle()
    assert world.served("net") == {1: "a"}
    assert all(told.versions for told in world.told)


contents = st.sampled_from(["a", "b", "c", BROKEN, UNFIT])
policies = st.sampled_from(
    [
        VersionPolicy(),
        VersionPolicy(latest=2),
        VersionPolicy(latest=None),
        VersionPolicy(latest=None, specific=(1, 3)),
    ]
)
folders = st.tuples(st.dictionaries(st.integers(1, 4), contents, max_size=4), policies)


@settings(max_examples=200)
@given(st.lists(st.tuples(folders, st.integers(0, 4), st.booleans()), min_size=1, max_size=6))
def test_whatever_changes_the_best_is_served_and_never_nothing_in_between(
    changes: list[tuple[tuple[dict[int, str], VersionPolicy], int, bool]],
) -> None:
    world = World()
    for (versions, policy), steps, settles in changes:
        # Each content is another digest for each version, as it is for files.
        named = {number: f"{content}{number}" for number, content in versions.items()}
        before, told = world.served("net"), len(world.told)
        world.put("net", named, ModelConfig(version_policy=policy))
        for _ in range(steps):
            world.look()
            world.step()
            world.status()
        if settles:
            world.settle()
            good = {n: d for n, d in named.items() if not d.startswith((BROKEN, UNFIT))}
            # A version whose files broke in place is served as it was, and keeps its turn.
            served = world.served("net")
            old = [n for n in served if n in named and n not in good]
            best = {n: good[n] for n in policy.choose([*good, *old]) if n in good}
            assert {n: d for n, d in served.items() if d in named.values()} == best
            if best and before:
                assert all(each.versions for each in world.told[told:])
            assert world.reconciler.settled()
            assert not world.reconciler.cluster.retiring


def test_what_nothing_was_heard_of_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(20):
        world.put(f"net{number}", {1: f"d{number}"})
    world.settle()
    world.step()
    asked: list[str] = []
    steps_of = world.reconciler._steps_of

    def listen(now_ns: int, record: Record) -> Iterator[Step]:
        asked.append(record.name)
        return steps_of(now_ns, record)

    monkeypatch.setattr(world.reconciler, "_steps_of", listen)
    assert world.step() == 0
    assert asked == []
    world.put("net7", {1: "other"})
    (found,) = [each for each in world.folder.values() if each.name == "net7"]
    world.reconciler.found("net7", msgspec.structs.replace(found, chosen=(1,)))
    assert not world.reconciler.settled()
    world.step()
    assert asked == ["net7"]
    world.reconciler.cluster.lost()
    world.start_controller(tuple(world.reconciler.cluster.models.values()))
    asked.clear()
    world.step()
    assert len(asked) == 20, "a controller that comes anew is told of everything"
