"""A state for each context: it begins with the mean of the others, and what is kept is bounded."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainspring.selection.contexts import CONTEXT_BYTES, NUMBER_BYTES, Contexts
from mainspring.selection.outputs import Output
from mainspring.selection.policies.registry import make_selection_policy
from mainspring.selection.policy import Policy, Selected, State

ONE = CONTEXT_BYTES + 1 + 2 * NUMBER_BYTES
IDLE_NS = 1_000


def policy(members: tuple[str, ...] = ("a", "b")) -> Policy:
    return make_selection_policy("exp4", members, Output("scores"), {"eta": 1.0, "floor": 0.0})


def lose(member: str, loss: float = 1.0) -> object:
    """Return a change: a member loses."""

    def change(state: State) -> State:
        return policy().learn(state, {member: [loss]}, {member: Selected(1)})

    return change


class Any(RuleBasedStateMachine):
    """Updates and erased states in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts = Contexts(policy(), 3 * ONE, IDLE_NS)
        self.now_ns = 0

    names = st.sampled_from("uvwxyz")

    @rule(name=names, member=st.sampled_from("ab"), loss=st.floats(0, 1), wait_ns=st.integers(0, 400))
    def update(self, name: str, member: str, loss: float, wait_ns: int) -> None:
        self.now_ns += wait_ns
        self.contexts.expire(self.now_ns)
        version, before = self.contexts.version(name), self.contexts.state(self.now_ns, name)
        after = self.contexts.update(self.now_ns, name, lose(member, loss))  # type: ignore[arg-type]
        assert after[member][0] == pytest.approx(before[member][0] - loss)
        assert self.contexts.state(self.now_ns, name) == after
        assert self.contexts.version(name) == version + 1

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.contexts.forget(name)
        assert self.contexts.version(name) == 0

    @invariant()
    def holds(self) -> None:
        self.contexts.validate()


TestAny = Any.TestCase
TestAny.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_new_context_begins_with_the_mean_of_the_others() -> None:
    contexts = Contexts(policy(), 1 << 20, IDLE_NS)
    assert contexts.state(0, "new") == {"a": (0.0,), "b": (0.0,)}
    contexts.update(0, "u", lose("a"))  # type: ignore[arg-type]
    contexts.update(0, "v", lose("b"))  # type: ignore[arg-type]
    # It began with the mean of one, u, and lost beside.
    assert contexts.state(0, "v") == {"a": (-1.0,), "b": (-1.0,)}
    assert contexts.state(0, "new") == {"a": (-1.0,), "b": (-0.5,)}
    assert len(contexts) == 2, "to ask keeps nothing"


def test_without_contexts_there_is_one_state() -> None:
    contexts = Contexts(policy(), 1 << 20, IDLE_NS)
    contexts.update(0, None, lose("a"))  # type: ignore[arg-type]
    assert contexts.state(10 * IDLE_NS, None) == {"a": (-1.0,), "b": (0.0,)}


def test_what_is_not_used_for_long_goes_and_what_is_used_stays() -> None:
    contexts = Contexts(policy(), 2 * ONE, IDLE_NS)
    for name in "uv":
        contexts.update(0, name, lose("a"))  # type: ignore[arg-type]
    contexts.state(IDLE_NS, "u")
    contexts.expire(IDLE_NS + 1)
    assert (contexts.version("u"), contexts.version("v")) == (1, 0)
    contexts.update(IDLE_NS + 1, "w", lose("a"))  # type: ignore[arg-type]
    contexts.update(IDLE_NS + 1, "x", lose("a"))  # type: ignore[arg-type]
    assert (len(contexts), contexts.version("u")) == (2, 0), "the one used least recently makes room"


def test_a_member_that_enters_is_in_every_state() -> None:
    contexts = Contexts(policy(("a", "gone")), 1 << 20, IDLE_NS)
    contexts.update(0, "u", lambda _: {"a": (-1.0,), "gone": (-3.0,)})
    contexts.adopt(policy())
    assert contexts.state(0, "u") == {"a": (-1.0,), "b": (pytest.approx(-1.0),)}
    contexts.validate()
    assert contexts.state(0, "new") == contexts.state(0, "u")
