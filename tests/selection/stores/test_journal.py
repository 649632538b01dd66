"""Journals of several gateways and a real store, with whatever may fail between them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainspring.gateway.stores.sqlite import SqliteStore
from mainspring.selection.contexts import CONTEXT_BYTES, NUMBER_BYTES, Contexts
from mainspring.selection.outputs import Output
from mainspring.selection.policies.registry import make_selection_policy
from mainspring.selection.policy import Policy, Selected, State
from mainspring.selection.stores.journal import FRESH_NS, GATHER_NS, Journal
from mainspring.selection.stores.records import StoreAway

ONE = CONTEXT_BYTES + 1 + 2 * NUMBER_BYTES
NEVER = 1 << 60
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)


def policy(name: str = "exp4") -> Policy:
    options = {"eta": 1.0, "floor": 0.0} if name == "exp4" else {}
    return make_selection_policy(name, ("a", "b"), Output("scores"), options)


class Gateway:
    """An application's states at one gateway, and its journal."""

    def __init__(self, seed: int, store: SqliteStore, state_bytes: int = 1 << 20, name: str = "exp4") -> None:
        self.policy, self.store, self.epoch = policy(name), store, 0
        self.contexts = Contexts(self.policy, state_bytes, NEVER)
        tokens = itertools.count((seed << 32) + 1)
        self.journal = Journal("app", self.policy, self.contexts, lambda: next(tokens), lambda: None)

    def lose(self, now_ns: int, context: str | None, member: str, loss: float) -> None:
        def change(state: State) -> State:
            return self.policy.learn(state, {member: [loss]}, {member: Selected(1)})

        self.contexts.update(now_ns, context, change)

    def turn(self, now_ns: int, *, fails: str = "") -> None:
        """Do a job that the store does, does not, or does without its reply arriving."""
        job = self.journal.take(now_ns, 100, all_of_it=True)
        try:
            if fails == "before":
                raise StoreAway("gone", doubtful=True)
            outcome = self.store.perform(job)
            if fails == "after":
                raise StoreAway("gone", doubtful=True)
        except StoreAway as error:
            self.journal.failed(job, doubtful=error.doubtful)
            return
        if self.epoch not in (0, outcome.epoch):
            self.journal.lost_all()
        self.epoch = outcome.epoch
        self.journal.done(now_ns, job, outcome)

    def settle(self, now_ns: int) -> None:
        """Turn until nothing is left to ask."""
        while self.journal.due_ns() is not None:
            self.turn(now_ns)

    def weights(self, now_ns: int, context: str | None = None) -> list[float]:
        return [numbers[0] for numbers in self.contexts.state(now_ns, context).values()]


class Gateways(RuleBasedStateMachine):
    """Two gateways that learn, with a store that fails, and memory for one context at the second."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteStore(":memory:")
        self.both = [Gateway(1, self.store), Gateway(2, self.store, ONE)]
        self.learnt: dict[str | None, list[float]] = {}
        self.now_ns = 0
        for name in (None, "u", "v"):
            self.learn(0, name, "a", 0.0)
        self.both[0].settle(0)

    which = st.sampled_from([0, 1])

    @rule(
        at=which,
        context=st.sampled_from([None, "u", "v", "w"]),
        member=st.sampled_from("ab"),
        loss=st.floats(0, 1),
    )
    def learn(self, at: int, context: str | None, member: str, loss: float) -> None:
        self.both[at].lose(self.now_ns, context, member, loss)
        self.learnt.setdefault(context, [0.0, 0.0])["ab".index(member)] -= loss

    @rule(at=which, context=st.sampled_from([None, "u", "v", "w"]))
    def ask(self, at: int, context: str | None) -> None:
        self.now_ns += FRESH_NS
        self.both[at].contexts.state(self.now_ns, context)

    @rule(at=which, fails=st.sampled_from(["", "", "before", "after"]))
    def turn(self, at: int, fails: str) -> None:
        self.both[at].turn(self.now_ns, fails=fails)

    @invariant()
    def holds(self) -> None:
        for each in self.both:
            each.journal.validate()
            each.contexts.validate()

    def teardown(self) -> None:
        """In the end both know what one gateway would that had learnt all of it."""
        for each in self.both:
            each.settle(self.now_ns)
        self.now_ns += FRESH_NS
        third = Gateway(3, self.store)
        for each in (*self.both, third):
            kept = {}
            for name in self.learnt:
                each.contexts.state(self.now_ns, name)
                each.contexts.state(self.now_ns, "new")
                each.settle(self.now_ns)
                kept[name] = each.weights(self.now_ns, name)
                if name != "w":  # which began with the mean
                    assert kept[name] == pytest.approx(self.learnt[name], abs=1e-9)
            del kept[None]
            assert each.contexts.count == len(kept)
        mean = [sum(each) / len(kept) for each in zip(*kept.values(), strict=True)]
        assert third.weights(self.now_ns, "new") == pytest.approx(mean, abs=1e-9)


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, phases=NO_SHRINK)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(str(tmp_path / "learnt.sqlite"))


def test_two_gateways_learn_what_one_would(store: SqliteStore) -> None:
    """Feedback for one application comes to two gateways by turns, and to a third one alone."""
    one, other = Gateway(1, store), Gateway(2, store)
    alone = Gateway(3, SqliteStore(":memory:"))
    for step in range(1_000):
        now_ns, loss = step * GATHER_NS // 10, (step * 7 % 11) / 11
        context = [None, "u", "v"][step % 3]
        for each in ((one, other)[step % 2], alone):
            each.lose(now_ns, context, "ab"[step // 2 % 2], loss)
        if step == 10 or step % 13 == 0:
            one.turn(now_ns)
        if step == 10 or step % 17 == 0:
            other.turn(now_ns)
    for seconds, each in enumerate((one, other, one), 200):
        for context in ("u", "v", None):
            each.contexts.state(seconds * FRESH_NS, context)
        each.settle(seconds * FRESH_NS)
    want = alone.weights(0)
    assert one.weights(0) == pytest.approx(want, abs=1e-9)
    assert other.weights(0) == pytest.approx(want, abs=1e-9)
    assert one.journal.counts["conflicts"] + other.journal.counts["conflicts"] > 0


def test_a_write_is_done_once_however_often_its_reply_fails_to_come(store: SqliteStore) -> None:
    one = Gateway(1, store)
    for step in range(12):
        one.lose(0, "u", "a", 1.0)
        one.turn(step, fails="after" if step < 2 else "before")
    one.settle(FRESH_NS)
    other = Gateway(2, store)
    for each in (one, other):
        each.contexts.state(2 * FRESH_NS, "u")
        each.contexts.state(2 * FRESH_NS, "new")
        each.settle(2 * FRESH_NS)
        assert each.weights(2 * FRESH_NS, "u") == each.weights(2 * FRESH_NS, "new") == [-12.0, 0.0]
        assert each.contexts.count == 1


def test_a_gateway_that_begins_goes_on_with_what_was_learnt(store: SqliteStore) -> None:
    one = Gateway(1, store)
    one.lose(0, None, "a", 1.0)
    one.lose(0, "u", "b", 0.5)
    assert one.journal.take(0, 100).writes == (), "changes are gathered"
    one.turn(GATHER_NS)
    store.close()
    other = Gateway(2, SqliteStore(store.path))
    assert not other.journal.known(None)
    other.turn(0)
    assert (other.journal.known(None), other.weights(0)) == (True, [-1.0, 0.0])
    assert other.weights(0, "new") == [0.0, -0.5], "the mean of the contexts is kept, too"
    assert (other.journal.known("u"), other.weights(0, "u")) == (False, [0.0, -0.5])
    other.turn(0)
    assert (other.journal.known("u"), other.journal.known("new")) == (True, True)
    assert other.weights(0, "u") == [0.0, -0.5]
    other.lose(0, "u", "b", 1.0)
    assert other.contexts.count == 1, "a context that a store has is none that is new"


def test_what_is_forgotten_is_erased_everywhere(store: SqliteStore) -> None:
    one, other = Gateway(1, store), Gateway(2, store)
    for name in "uv":
        one.lose(0, name, "a", 1.0)
    one.turn(0)
    other.contexts.state(0, "u")
    other.turn(0)
    other.lose(0, "u", "a", 1.0)
    assert one.contexts.forget("u")
    one.turn(0)
    other.turn(0)
    one.turn(FRESH_NS)
    for each in (one, other):
        each.contexts.state(2 * FRESH_NS, "u")
        each.turn(2 * FRESH_NS)
        each.turn(2 * FRESH_NS)
        assert (each.contexts.peek("u"), each.contexts.count) == (None, 1)
    third = Gateway(3, store)
    third.contexts.state(0, "u")
    third.turn(0)
    assert (third.contexts.peek("u"), third.journal.known("u"), third.contexts.count) == (None, True, 1)


def test_a_store_that_lost_all_gets_what_memory_has(store: SqliteStore) -> None:
    one = Gateway(1, store)
    one.lose(0, None, "a", 1.0)
    one.lose(0, "u", "b", 1.0)
    one.turn(0)
    one.store = SqliteStore(":memory:")
    one.turn(FRESH_NS)
    one.turn(FRESH_NS)
    other = Gateway(2, one.store)
    other.contexts.state(0, "u")
    other.turn(0)
    assert (other.weights(0), other.weights(0, "u")) == ([-1.0, 0.0], [0.0, -1.0])


def test_another_policy_begins_anew(store: SqliteStore) -> None:
    one = Gateway(1, store)
    one.lose(0, None, "a", 1.0)
    one.turn(0)
    other = Gateway(2, store, name="ucb1")
    other.turn(0)
    assert other.weights(0) == [0.0, 0.0]
    other.lose(0, None, "b", 1.0)
    other.turn(GATHER_NS)
    assert other.journal.counts["written"] == 1
