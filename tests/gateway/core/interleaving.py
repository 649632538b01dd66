"""What can happen to a request table in any order, with the rule that each request has exactly one reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainspring.gateway.core.effects import Connection
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Rejected

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")
BOB = Connection("http", b"bob")
WORKERS = st.sampled_from(["w", "v"])

Entered = tuple[Connection, int]
"""A request as its client knows it: the connection that it came from, and its key there."""


class Interleaving(RuleBasedStateMachine):
    """Base: a test adds how requests are submitted, dispatched and answered, and says which there are."""

    core: GatewayCore

    def begin(self, core: GatewayCore) -> None:
        """Start with a table that nothing has happened to."""
        self.core = core
        self.now_ns = 0
        self.next_key = 0
        self.next_action = 0
        self.replies: Counter[Entered] = Counter()
        self.gone: set[Entered] = set()
        self.pushed: list[tuple[int, int]] = []
        """Action and request of each input that a worker got."""

    def all_entered(self) -> list[Entered]:
        """Return every request that was submitted."""
        raise NotImplementedError

    def all_known(self) -> list[int]:
        """Return the ids of those that the controller heard of."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take what the table sends: count replies, and note what became known and was pushed."""
        raise NotImplementedError

    @rule(number=st.integers(1, 3))
    def welcome(self, number: int) -> None:
        self.core.controller_welcomed(self.now_ns, number)

    @rule()
    def lose_controller(self) -> None:
        self.core.controller_lost(self.now_ns)

    @rule(worker=WORKERS)
    def worker_lost(self, worker: str) -> None:
        self.core.worker_lost(self.now_ns, worker)

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        if known := self.all_known():
            request_id = data.draw(st.sampled_from(known))
            self.core.rejected(0, Rejected(request_id, Reason.DEADLINE_PASSED, ""))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if entered := self.all_entered():
            self.core.cancel(*data.draw(st.sampled_from(entered)))

    @rule(data=st.data())
    def no_room(self, data: st.DataObject) -> None:
        if known := self.all_known():
            self.core.arrival_unsent(self.now_ns, data.draw(st.sampled_from(known)))

    @rule(connection=st.sampled_from([ALICE, BOB]))
    def leave(self, connection: Connection) -> None:
        self.drain()
        self.gone |= {each for each in self._unanswered() if each[0] == connection}
        self.core.forget_connection(connection)

    @rule(step_ms=st.sampled_from([0, 1, 60, 600]))
    def wait(self, step_ms: int) -> None:
        self.now_ns += step_ms * MS
        self.core.tick(self.now_ns)

    @invariant()
    def one_reply_each(self) -> None:
        self.drain()
        self.core.validate()
        assert not [each for each, count in self.replies.items() if count > 1]
        assert not [each for each in self.gone if self.replies[each]]
        wakeup_ns = self.core.next_wakeup_ns()
        assert (wakeup_ns is None) == (self.core.in_flight == len(self.core.sequences) == 0)

    def teardown(self) -> None:
        """Wait for longer than any deadline, then stop: each request has its reply, or nobody to get it."""
        self.core.tick(self.now_ns + 3_600_000 * MS)
        self.drain()
        assert all(each.deadline_ns is None for each in self.core.requests()), "a deadline has passed"
        self.core.abandon()
        self.drain()
        assert self.core.in_flight == 0
        self.core.validate()
        missing = [each for each in self._unanswered() if each not in self.gone]
        assert not missing, f"no reply: {missing}"

    def _unanswered(self) -> Iterable[Entered]:
        return [each for each in self.all_entered() if not self.replies[each]]
