"""Several controllers: each request goes to the one that has its model, and gets exactly one reply."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.controller_catalogs import Told, merged_status
from mainspring.gateway.core.effects import Accepted, Answer, Arrive, Refuse, Withdraw
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import BadRequest
from mainspring.messages.codes import Reason
from mainspring.messages.ids import gateway_number, shard_of
from mainspring.messages.metrics import TenantStatus
from mainspring.messages.peers import Dispatch, ModelDown, Output, Rejected
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus
from tests.fuzz import seeded
from tests.gateway.core.test_state_machine import ALICE, MS, OUTPUTS
from tests.gateway.fakes import make_spec

ADDRESSES = ["tcp://a:1", "tcp://b:1", "tcp://c:1"]


class Shards:
    """A gateway's core with what three controllers tell it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.told = Told(Catalog(), ADDRESSES)
        self.core = GatewayCore(
            GatewayConfig(controller_wait_ms=200.0), self.told.catalog.signatures, shards=self.told.shards
        )
        self.sessions = Counter[int]()
        self.next_key = 0
        self.arrived: dict[int, tuple[int, str]] = {}
        """The key and model of each request that a controller knows, by its id."""
        self.replies = Counter[int]()

    def welcome(self, shard: int) -> None:
        self.sessions[shard] += 1
        self.told.parts[shard].begin_session()
        self.core.controller_welcomed(self.now_ns, gateway_number(shard, self.sessions[shard]))
        self.take()

    def lose(self, shard: int) -> None:
        self.core.controller_lost(self.now_ns, shard)
        self.arrived = {each: what for each, what in self.arrived.items() if shard_of(each) != shard}
        self.take()

    def up(self, shard: int, model: str) -> None:
        self.moved(self.told.model_up(shard, make_spec(model)))

    def down(self, shard: int, model: str, *, drain: bool = False, moves: bool = False) -> None:
        self.moved(self.told.model_down(shard, ModelDown(model, drain, moves)))

    def switch(self, **models: int) -> None:
        self.moved(self.told.take_map(self.told.map.moved(models)))

    def moved(self, models: list[str]) -> None:
        for model in models:
            self.core.model_moved(self.now_ns, model)
        self.take()

    def submit(self, model: str, slo_ms: int = 50) -> int:
        self.next_key += 1
        signature = self.told.catalog.resolve(model)
        accepted = Accepted(model, 1, slo_ms * MS, (0,), (0, 1), signature)
        self.core.submit(self.now_ns, ALICE, self.next_key, accepted, [bytes(16)])
        self.take()
        return self.next_key

    def at(self, key: int) -> list[int]:
        """Return the shards that know a request now."""
        return [shard_of(each) for each, (known, _) in self.arrived.items() if known == key]

    def take(self) -> None:
        """Do what the core asks for, as its driver would."""
        for effect in self.core.drain():
            if isinstance(effect, Arrive):
                found = next(r for r in self.core.requests() if r.request_id == effect.request_id)
                self.arrived[effect.request_id] = (found.key, effect.model)
            elif isinstance(effect, Withdraw):
                self.arrived.pop(effect.request_id, None)
            elif isinstance(effect, Answer | Refuse):
                self.replies[effect.key] += 1
        self.core.validate()

    def answer(self, request_id: int) -> None:
        """Let a worker of the request's shard answer it."""
        worker = f"worker-{shard_of(request_id)}"
        self.core.dispatched(self.now_ns, Dispatch(7, worker, (request_id,), (False,), 1))
        self.core.outputs(self.now_ns, Output(7, request_id, 100), OUTPUTS)
        self.arrived.pop(request_id, None)
        self.take()


@pytest.fixture
def shards() -> Shards:
    made = Shards()
    for shard in range(3):
        made.welcome(shard)
        made.up(shard, f"own-{shard}")
    return made


def test_a_request_goes_to_the_controller_that_has_its_model(shards: Shards) -> None:
    for shard in range(3):
        assert shards.at(shards.submit(f"own-{shard}")) == [shard]


def test_of_two_shards_with_one_model_the_newer_map_decides(shards: Shards) -> None:
    shards.up(0, "twice")
    shards.up(2, "twice")
    for place in (2, 0, 2):
        shards.switch(twice=place)
        assert shards.at(shards.submit("twice")) == [place]
    shards.switch(twice=1)
    assert shards.at(shards.submit("twice")) == [0], "that shard does not have it: another one serves it"


def test_a_controllers_death_concerns_its_own_models_alone(shards: Shards) -> None:
    own, others = shards.submit("own-1", slo_ms=500), shards.submit("own-2")
    shards.lose(1)
    assert shards.at(others) == [2]
    assert shards.at(shards.submit("own-0")) == [0]
    assert shards.at(shards.submit("own-1", slo_ms=500)) == []
    assert not shards.replies
    shards.now_ns += 20 * MS
    shards.welcome(1)
    assert shards.at(own) == [1], "it waits for its controller, and is submitted again"
    shards.now_ns += 2_000 * MS
    shards.core.tick(shards.now_ns)
    shards.take()
    assert not shards.core.in_flight
    assert set(shards.replies.values()) == {1}


def test_a_controllers_welcome_concerns_its_own_requests_alone(shards: Shards) -> None:
    own, others = shards.submit("own-1"), shards.submit("own-2")
    before = dict(shards.arrived)
    shards.welcome(1)
    kept = [each for each in before if each in shards.arrived]
    assert [shard_of(each) for each in kept] == [2]
    assert shards.at(own) == [1]
    assert shards.at(others) == [2]


def test_what_waits_for_a_dead_controller_follows_its_model(shards: Shards) -> None:
    shards.lose(1)
    waits = shards.submit("own-1", slo_ms=500)
    shards.up(0, "own-1")
    shards.switch(**{"own-1": 0})
    assert shards.at(waits) == [0]


def test_a_shard_lets_go_of_a_model_once_another_has_it(shards: Shards) -> None:
    first = shards.submit("own-1")
    shards.down(1, "own-1", drain=True, moves=True)
    second = shards.submit("own-1")
    assert shards.at(first) == shards.at(second) == [1], "no other shard has it yet: nothing is refused"
    assert shards.told.shard_of("own-1") == 1
    shards.up(2, "own-1")
    assert shards.at(shards.submit("own-1")) == [2]
    assert shards.told.shard_of("own-1") == 2
    assert shards.core.holds("own-1", 1), "what it was given before, it answers"
    for request_id in [each for each in shards.arrived if shard_of(each) == 1]:
        shards.answer(request_id)
    assert not shards.core.holds("own-1", 1)


def test_a_model_that_is_removed_is_in_no_shard(shards: Shards) -> None:
    shards.down(1, "own-1", drain=True)
    with pytest.raises(BadRequest) as error:
        shards.submit("own-1")
    assert error.value.reason is Reason.UNKNOWN_MODEL


def test_what_one_controller_does_not_confirm_is_forgotten_and_the_rest_stays(shards: Shards) -> None:
    shards.up(1, "gone")
    shards.up(0, "both")
    shards.up(1, "both")
    shards.switch(both=1)
    shards.welcome(1)
    shards.up(1, "own-1")
    shards.told.told_all(shards.now_ns, 1)
    due_ns = shards.told.next_wakeup_ns()
    assert due_ns is not None
    workers, moved = shards.told.tick(due_ns)
    assert (workers, moved) == ([], ["both"])
    assert sorted(shards.told.catalog.signatures) == ["both", "own-0", "own-1", "own-2"]
    assert shards.told.shard_of("both") == 0


def test_what_is_served_of_a_repository_goes_with_the_controller_that_told_it(shards: Shards) -> None:
    told = shards.told
    for shard, model in ((0, "x"), (1, "y")):
        told.model_up(shard, make_spec(f"{model}-1"))
        told.serve(shard, ServedModel(model, {1: f"{model}-1"}))
    shards.welcome(1)
    told.told_all(0, 1)
    told.tick(10 * 1000 * MS)
    assert sorted(told.catalog.served) == ["x"], "its controller came back without it"
    assert told.catalog.resolve("x").spec.name == "x-1"


def test_a_moved_worker_is_gone_once_no_shard_has_it(shards: Shards) -> None:
    told = shards.told
    assert told.worker_up(0, "w", "unix:///w") == ""
    assert told.worker_up(1, "w", "unix:///w") == ""
    assert not told.worker_down(0, "w")
    assert told.catalog.workers == {"w": "unix:///w"}
    assert "name the workers" in told.worker_up(2, "w", "unix:///other")
    assert not told.worker_down(2, "w")
    assert told.catalog.workers == {"w": "unix:///w"}
    assert told.worker_down(1, "w")
    assert not told.catalog.workers


@seeded(40)
def test_in_any_order_of_events_each_request_gets_one_reply_and_goes_where_its_model_is(seed: int) -> None:
    """Controllers come and go, models move between them, and maps change, in the midst of requests."""
    draw, shards = random.Random(seed), Shards()
    models = [f"m{number}" for number in range(4)]
    alive: set[int] = set()
    has: dict[int, set[str]] = {shard: set() for shard in range(3)}
    for shard in range(3):
        shards.welcome(shard)
        alive.add(shard)
    for model in models:
        shard = draw.randrange(3)
        has[shard].add(model)
        shards.up(shard, model)
    submitted = 0
    for _ in range(300):
        shards.now_ns += draw.randrange(3 * MS)
        model, shard = draw.choice(models), draw.randrange(3)
        match draw.randrange(10):
            case 0 if shard in alive:
                alive.discard(shard)
                shards.lose(shard)
            case 1 if shard not in alive:
                alive.add(shard)
                shards.welcome(shard)
                for each in sorted(has[shard]):
                    shards.up(shard, each)
                shards.told.told_all(shards.now_ns, shard)
            case 2 if shard in alive and model not in has[shard]:
                has[shard].add(model)
                shards.up(shard, model)
                shards.switch(**{model: shard})
            case 3:
                holders = [each for each in sorted(alive) if model in has[each]]
                if len([each for each in has if model in has[each]]) > 1 and holders:
                    has[holders[0]].discard(model)
                    shards.down(holders[0], model, drain=True, moves=True)
            case 4 if shards.arrived:
                shards.answer(draw.choice(sorted(shards.arrived)))
            case 5 if shards.arrived:
                request_id = draw.choice(sorted(shards.arrived))
                shards.core.rejected(0, Rejected(request_id, Reason.DEADLINE_UNREACHABLE, "no"))
                shards.arrived.pop(request_id)
                shards.take()
            case 6:
                shards.core.tick(shards.now_ns)
                shards.take()
            case _:
                submitted += 1
                key = shards.submit(model, slo_ms=draw.choice([5, 40, 400]))
                places = shards.at(key)
                routed = shards.told.shard_of(model)
                if routed in alive:
                    assert places == [routed]
                    assert model in has[routed] or not any(model in has[each] for each in alive)
                else:
                    assert places == []
    shards.now_ns += 10_000 * MS
    shards.core.tick(shards.now_ns)
    shards.take()
    assert shards.core.in_flight == 0
    assert len(shards.replies) == submitted
    assert set(shards.replies.values()) == {1}
    assert msgspec.json.encode(shards.told.map)


def test_what_a_tenant_had_of_several_controllers_is_added_up() -> None:
    nothing = ClusterStatus("mainspring", (), (), 0, {})
    found = merged_status(
        {
            0: msgspec.structs.replace(
                nothing, tenants=(TenantStatus("a", 2.0, 5, 3, 1, 1, 10, 0.5), TenantStatus("b", 1.0, 1))
            ),
            1: msgspec.structs.replace(nothing, tenants=(TenantStatus("a", 2.0, 7, 6, 1, 0, 20, 0.25),)),
        },
        ShardMap(1, ()),
    )
    assert found.tenants == (TenantStatus("a", 2.0, 12, 9, 2, 1, 30, 0.75), TenantStatus("b", 1.0, 1))
