"""The request table as a state machine: exactly one reply each, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core import GatewayCore
from mainspring.gateway.sends import Answer, Arrive, Connection, Push, Refuse
from mainspring.gateway.validation import Accepted, Signature
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Dispatch, Output, Rejected
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")
BOB = Connection("http", b"bob")
SIGNATURE = Signature(make_spec("m"))
OUTPUTS = (bytes(16), bytes(4))


def accepted(slo_ms: int | None = 50, rows: int = 1, outputs: tuple[int, ...] = (0, 1)) -> Accepted:
    slo_ns = None if slo_ms is None else slo_ms * MS
    return Accepted("m", rows, slo_ns, (0,), outputs, SIGNATURE)


def core_with(number: int | None = 5, **options: Any) -> GatewayCore:
    core = GatewayCore(GatewayConfig(**options))
    if number is not None:
        core.controller_welcomed(0, number)
    return core


class AnyInterleaving(RuleBasedStateMachine):
    """Requests, dispatches, outputs, rejections, cancellations, time and lost controllers in any order."""

    @initialize()
    def start(self) -> None:
        options = {"max_in_flight": 12, "max_in_flight_per_connection": 8, "controller_wait_ms": 400.0}
        self.core = GatewayCore(GatewayConfig(**options))  # type: ignore[arg-type]
        self.now_ns = 0
        self.next_key = 0
        self.next_action = 0
        self.entered: list[tuple[Connection, int]] = []
        self.replies: Counter[tuple[Connection, int]] = Counter()
        self.gone: set[tuple[Connection, int]] = set()
        self.known: list[int] = []
        self.pushed: list[tuple[int, int]] = []

    @rule(connection=st.sampled_from([ALICE, BOB]), slo_ms=st.sampled_from([None, 1, 50, 500]))
    def submit(self, connection: Connection, slo_ms: int | None) -> None:
        self.next_key += 1
        self.entered.append((connection, self.next_key))
        self.core.submit(self.now_ns, connection, self.next_key, accepted(slo_ms), [bytes(16)])

    @rule(number=st.integers(1, 3))
    def welcome(self, number: int) -> None:
        self.core.controller_welcomed(self.now_ns, number)

    @rule()
    def lose_controller(self) -> None:
        self.core.controller_lost(self.now_ns)

    @rule(worker=st.sampled_from(["w", "v"]))
    def worker_lost(self, worker: str) -> None:
        self.core.worker_lost(self.now_ns, worker)

    @rule(data=st.data(), count=st.integers(1, 3), worker=st.sampled_from(["w", "v"]))
    def dispatch(self, data: st.DataObject, count: int, worker: str) -> None:
        if self.known:
            self.next_action += 1
            ids = tuple(data.draw(st.sampled_from(self.known)) for _ in range(count))
            message = Dispatch(self.next_action, worker, ids, (False,) * count, 4)
            self.core.dispatched(self.now_ns, message)

    @rule(data=st.data(), good=st.booleans())
    def outputs(self, data: st.DataObject, good: bool) -> None:
        if self.pushed:
            action_id, request_id = data.draw(st.sampled_from(self.pushed))
            self.core.outputs(self.now_ns, Output(action_id, request_id, 1), OUTPUTS if good else ())

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        if self.known:
            request_id = data.draw(st.sampled_from(self.known))
            self.core.rejected(Rejected(request_id, Reason.DEADLINE_PASSED, ""))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.entered:
            self.core.cancel(*data.draw(st.sampled_from(self.entered)))

    @rule(data=st.data())
    def no_room(self, data: st.DataObject) -> None:
        if self.known:
            self.core.arrival_unsent(self.now_ns, data.draw(st.sampled_from(self.known)))

    @rule(connection=st.sampled_from([ALICE, BOB]))
    def leave(self, connection: Connection) -> None:
        self._drain()
        self.gone |= {each for each in self.entered if each[0] == connection and not self.replies[each]}
        self.core.forget_connection(connection)

    @rule(step_ms=st.sampled_from([0, 1, 60, 600]))
    def wait(self, step_ms: int) -> None:
        self.now_ns += step_ms * MS
        self.core.tick(self.now_ns)

    @invariant()
    def one_reply_each(self) -> None:
        self._drain()
        self.core.validate()
        assert not [each for each, count in self.replies.items() if count > 1]
        assert not [each for each in self.gone if self.replies[each]]
        wakeup_ns = self.core.next_wakeup_ns()
        assert (wakeup_ns is None) == (self.core.in_flight == 0)

    def _drain(self) -> None:
        for send in self.core.drain():
            match send:
                case Arrive():
                    self.known.append(send.request_id)
                case Push() if not send.message.withdrawn:
                    self.pushed.append((send.message.action_id, send.message.request_id))
                case Answer() | Refuse():
                    self.replies[send.connection, send.key] += 1

    def teardown(self) -> None:
        self.core.tick(self.now_ns + 3_600_000 * MS)
        self._drain()
        assert self.core.in_flight == 0
        self.core.validate()
        missing = [each for each in self.entered if not self.replies[each] and each not in self.gone]
        assert not missing, f"no reply: {missing}"


AnyInterleaving.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
