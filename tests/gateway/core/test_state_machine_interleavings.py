"""The request table as a state machine: exactly one reply each, whatever happens in whatever order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Answer, Arrive, Connection, Push, Refuse
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.peers import Dispatch, Output
from tests.gateway.core.interleaving import ALICE, BOB, WORKERS, Entered, Interleaving
from tests.gateway.core.test_state_machine import OUTPUTS, accepted


class AnyInterleaving(Interleaving):
    """Requests, dispatches, outputs, rejections, cancellations, time and lost controllers in any order."""

    @initialize()
    def start(self) -> None:
        config = GatewayConfig(max_in_flight=12, max_in_flight_per_connection=8, controller_wait_ms=400.0)
        self.begin(GatewayCore(config))
        self.entered: list[Entered] = []
        self.known: list[int] = []

    def all_entered(self) -> list[Entered]:
        return self.entered

    def all_known(self) -> list[int]:
        return self.known

    @rule(connection=st.sampled_from([ALICE, BOB]), slo_ms=st.sampled_from([None, 1, 50, 500]))
    def submit(self, connection: Connection, slo_ms: int | None) -> None:
        self.next_key += 1
        self.entered.append((connection, self.next_key))
        self.core.submit(self.now_ns, connection, self.next_key, accepted(slo_ms), [bytes(16)])

    @rule(data=st.data(), count=st.integers(1, 3), worker=WORKERS)
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

    def drain(self) -> None:
        for effect in self.core.drain():
            match effect:
                case Arrive():
                    self.known.append(effect.request_id)
                case Push() if not effect.message.withdrawn:
                    self.pushed.append((effect.message.action_id, effect.message.request_id))
                case Answer() | Refuse():
                    self.replies[effect.connection, effect.key] += 1


AnyInterleaving.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
