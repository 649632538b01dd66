"""Requests of sequences under everything that can happen, in any order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Answer, Arrive, Connection, Push, Refuse
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.peers import Dispatch, Output
from tests.gateway.core.interleaving import ALICE, BOB, WORKERS, Entered, Interleaving
from tests.gateway.core.stateful import accepted, added, floats

MOST, MOST_BYTES = 3, 40


class Said(NamedTuple):
    """What a request was."""

    sequence: int
    start: bool
    value: float


class AnyInterleaving(Interleaving):
    """Few sequences, so that their requests meet; each answer has to be what its sequence makes it."""

    @initialize()
    def start(self) -> None:
        config = GatewayConfig(
            max_in_flight=14,
            max_in_flight_per_connection=9,
            controller_wait_ms=400.0,
            max_sequences=MOST,
            max_sequence_bytes=MOST_BYTES,
            sequence_idle_ms=300.0,
        )
        self.begin(GatewayCore(config))
        self.core.controller_welcomed(0, 1)
        self.entered: dict[Entered, Said] = {}
        self.frames: dict[int, tuple[Any, ...]] = {}
        self.known: list[int] = []
        self.sums: dict[int, float] = {}
        """Of each sequence, what its last answer was."""
        self.last_key: dict[int, int] = {}
        """Of each sequence, the request of that answer."""

    def all_entered(self) -> list[Entered]:
        return list(self.entered)

    def all_known(self) -> list[int]:
        return sorted(self.known)

    @rule(
        connection=st.sampled_from([ALICE, BOB]),
        slo_ms=st.sampled_from([None, None, 50, 500]),
        sequence=st.sampled_from([1, 1, 1, 2, 3, 4]),
        start=st.sampled_from([False, False, True]),
        end=st.sampled_from([False, False, True]),
        rows=st.sampled_from([1, 1, 1, 2]),
        late_outputs=st.booleans(),
    )
    def submit(
        self,
        connection: Connection,
        slo_ms: int | None,
        sequence: int,
        start: bool,
        end: bool,
        rows: int,
        late_outputs: bool,
    ) -> None:
        self.next_key += 1
        request = accepted(
            sequence, start=start, end=end, rows=rows, slo_ms=slo_ms, late_outputs=late_outputs
        )
        value = float(self.next_key)
        self.entered[connection, self.next_key] = Said(sequence, start, value)
        self.core.submit(self.now_ns, connection, self.next_key, request, [floats(*[value] * 2 * rows)])

    @rule()
    def answer_all(self) -> None:
        """Do what a cluster does when all is well."""
        for request_id in list(self.known):
            self.next_action += 1
            self.core.dispatched(self.now_ns, Dispatch(self.next_action, "w", (request_id,), (False,), 4))
            self.drain()
            if (self.next_action, request_id) in self.pushed:
                outputs = added(self.frames[request_id])
                self.core.outputs(self.now_ns, Output(self.next_action, request_id, 1), outputs)

    @rule()
    def model_removed(self) -> None:
        self.core.sequences.forget("m")

    @rule(data=st.data(), worker=WORKERS)
    def dispatch(self, data: st.DataObject, worker: str) -> None:
        if self.known:
            self.next_action += 1
            request_id = data.draw(st.sampled_from(sorted(self.known)))
            self.core.dispatched(self.now_ns, Dispatch(self.next_action, worker, (request_id,), (False,), 4))

    @rule(data=st.data(), good=st.sampled_from([True, True, True, False]))
    def outputs(self, data: st.DataObject, good: bool) -> None:
        if self.pushed:
            action_id, request_id = data.draw(st.sampled_from(self.pushed))
            frames = added(self.frames[request_id]) if good else ()
            self.core.outputs(self.now_ns, Output(action_id, request_id, 1), frames)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.core.sequences) <= MOST
        assert self.core.sequences.bytes <= MOST_BYTES

    def drain(self) -> None:
        for effect in self.core.drain():
            match effect:
                case Arrive():
                    self.known.append(effect.request_id)
                case Push() if not effect.message.withdrawn:
                    request_id = effect.message.request_id
                    assert self.frames.setdefault(request_id, effect.frames) == effect.frames
                    self.pushed.append((effect.message.action_id, request_id))
                case Answer():
                    self.replies[effect.connection, effect.key] += 1
                    self._answered(effect)
                case Refuse():
                    self.replies[effect.connection, effect.key] += 1

    def _answered(self, answer: Answer) -> None:
        said = self.entered[answer.connection, answer.key]
        sequence = said.sequence
        before = self.last_key.get(sequence, 0)
        assert answer.key > before, "a request has overtaken another one of its sequence"
        if not said.start:
            between = [
                key
                for (_, key), each in self.entered.items()
                if before < key < answer.key and each.sequence == sequence and each.start
            ]
            assert not between, "it went on with what was before a start that has no outputs"
        was = 0.0 if said.start else self.sums[sequence]
        [frame] = answer.frames
        numbers = np.frombuffer(frame, np.float32).tolist()  # type: ignore[call-overload]
        assert set(numbers) == {was + said.value}
        self.sums[sequence], self.last_key[sequence] = was + said.value, answer.key


AnyInterleaving.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
