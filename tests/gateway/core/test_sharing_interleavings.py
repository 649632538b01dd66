"""Requests of equal inputs under everything that can happen, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.effects import Answer, Arrive, Connection, Push, Refuse
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.peers import Dispatch, Output
from tests.gateway.core.interleaving import ALICE, BOB, MS, WORKERS, Entered, Interleaving
from tests.gateway.core.test_sharing import SIGNATURE, accepted


class AnyInterleaving(Interleaving):
    """Few different inputs, so that most requests share; everything else that can happen, in any order."""

    @initialize()
    def start(self) -> None:
        config = GatewayConfig(max_in_flight=14, max_in_flight_per_connection=9, controller_wait_ms=400.0)
        self.cache = PredictionCache(1_200, ["m"])
        self.begin(GatewayCore(config, {"m": SIGNATURE}, self.cache))
        self.entered: dict[Entered, tuple[int, int | None]] = {}
        self.values: dict[int, int] = {}

    def all_entered(self) -> list[Entered]:
        return list(self.entered)

    def all_known(self) -> list[int]:
        return sorted(self.values)

    @rule(
        connection=st.sampled_from([ALICE, BOB]),
        slo_ms=st.sampled_from([None, 1, 50, 60, 500]),
        value=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 1, 2]),
    )
    def submit(self, connection: Connection, slo_ms: int | None, value: int, priority: int) -> None:
        self.next_key += 1
        request, frames = accepted(slo_ms, priority=priority), [bytes([value]) * 16]
        deadline_ns = None if slo_ms is None else self.now_ns + slo_ms * MS
        self.entered[connection, self.next_key] = (value, deadline_ns)
        digest = self.cache.digest(request, frames)
        self.core.submit(self.now_ns, connection, self.next_key, request, list(frames), digest)
        self.drain(value)

    @rule()
    def model_replaced(self) -> None:
        self.cache.forget("m")

    @rule(data=st.data(), worker=WORKERS)
    def dispatch(self, data: st.DataObject, worker: str) -> None:
        if self.values:
            self.next_action += 1
            request_id = data.draw(st.sampled_from(sorted(self.values)))
            message = Dispatch(self.next_action, worker, (request_id,), (False,), 4)
            self.core.dispatched(self.now_ns, message)

    @rule(data=st.data(), good=st.sampled_from([True, True, False]))
    def outputs(self, data: st.DataObject, good: bool) -> None:
        if self.pushed:
            action_id, request_id = data.draw(st.sampled_from(self.pushed))
            frames = (bytes([self.values[request_id]]) * 16, bytes(4)) if good else ()
            self.core.outputs(self.now_ns, Output(action_id, request_id, 1), frames)

    def drain(self, value: int | None = None) -> None:
        """Take what came out; ``value`` is the input of the one request that may have been submitted."""
        for effect in self.core.drain():
            match effect:
                case Arrive():
                    self.values[effect.request_id] = self._value_of(effect.request_id, value)
                case Push() if not effect.message.withdrawn:
                    assert effect.frames == (bytes([self.values[effect.message.request_id]]) * 16,)
                    self.pushed.append((effect.message.action_id, effect.message.request_id))
                case Answer():
                    self.replies[effect.connection, effect.key] += 1
                    wanted = self.entered[effect.connection, effect.key][0]
                    assert effect.frames[0] == bytes([wanted]) * 16, "another input's outputs"
                case Refuse():
                    self.replies[effect.connection, effect.key] += 1

    def _value_of(self, request_id: int, value: int | None) -> int:
        request = self.core._by_id.get(request_id)
        if request is None:
            return self.values.get(request_id, 0 if value is None else value)
        return self.entered[request.connection, request.key][0]


AnyInterleaving.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
