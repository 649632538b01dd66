"""A model whose requests come in sequences, for tests: it adds what it gets to what it got before."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Accepted, Answer, Arrive, Connection, Effect, Push, Refuse, Turn
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import Signature, signature_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import (
    ModelSpec,
    TensorSpec,
)
from mainspring.messages.peers import Dispatch, Output, Rejected
from mainspring.messages.sequencing import Control, Sequencing, State
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")
BOB = Connection("http", b"bob")

SEQUENCING = Sequencing((State("past", "next"),), (Control("start", "start"),))


def adding(name: str = "m", sequencing: Sequencing = SEQUENCING, **changes: Any) -> ModelSpec:
    """Return the model: ``x`` and the state ``past`` are two numbers, ``y`` and ``next`` their sums."""
    pair = (2,)
    named = tuple([TensorSpec("name", "uint64", (1,)) for each in sequencing.controls if each.kind == "id"])
    return msgspec.structs.replace(
        make_spec(name),
        inputs=(
            TensorSpec("past", "float32", pair),
            TensorSpec("x", "float32", pair),
            TensorSpec("start", "int32", (1,)),
            *named,
        ),
        outputs=(TensorSpec("next", "float32", pair), TensorSpec("y", "float32", pair)),
        sequencing=sequencing,
        **changes,
    )


SIGNATURE = signature_of(adding())


def accepted(
    sequence: int | str = 7,
    *,
    start: bool = False,
    end: bool = False,
    rows: int = 1,
    slo_ms: int | None = None,
    signature: Signature = SIGNATURE,
    late_outputs: bool = True,
) -> Accepted:
    """Return a request of a sequence as the table takes it."""
    return Accepted(
        signature.spec.name,
        rows,
        None if slo_ms is None else slo_ms * 1_000_000,
        tuple(range(len(signature.inputs))),
        signature.every_output,
        signature,
        late_outputs=late_outputs,
        turn=Turn(sequence, start, end),
    )


def floats(*values: float) -> bytes:
    """Return numbers as they are sent."""
    return np.array(values, np.float32).tobytes()


def added(frames: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """Return what the model makes of these inputs, in the order of its own."""
    past, x = (np.frombuffer(frame, np.float32) for frame in frames[:2])
    total = (past + x).tobytes()
    return total, total


class Table:
    """A request table with a controller and a worker that the tests play."""

    def __init__(self, **options: Any) -> None:
        self.core = GatewayCore(GatewayConfig(**options))
        self.core.controller_welcomed(0, 1)
        self.now_ns = 0
        self.arrived: list[int] = []
        self.pushed: dict[int, tuple[Any, ...]] = {}
        self.answers: dict[int, list[float]] = {}
        self.refusals: dict[int, Refuse] = {}
        self._keys = 0

    def submit(self, request: Accepted, *values: float, connection: Connection = ALICE) -> int:
        """Submit a request; return its key."""
        self._keys += 1
        x = floats(*(values or (1.0, 0.0) * request.rows))
        self.core.submit(self.now_ns, connection, self._keys, request, [x])
        self.take()
        return self._keys

    def take(self) -> list[Effect]:
        """Note what the table sends."""
        effects = self.core.drain()
        self.core.validate()
        for effect in effects:
            match effect:
                case Arrive(request_id=request_id):
                    self.arrived.append(request_id)
                case Push(message=message, frames=frames) if not message.withdrawn:
                    self.pushed[message.request_id] = frames
                case Answer(key=key, frames=frames):
                    assert key not in self.answers
                    last = frames[-1] if frames else b""
                    self.answers[key] = np.frombuffer(last, np.float32).tolist()  # type: ignore[call-overload]
                case Refuse(key=key):
                    assert key not in self.refusals
                    self.refusals[key] = effect
        return effects

    def dispatch(self, request_id: int, worker: str = "w") -> None:
        self.core.dispatched(self.now_ns, Dispatch(request_id, worker, (request_id,), (False,), 1))
        self.take()

    def run(self) -> None:
        """Dispatch and answer all that has arrived, and what arrives by that."""
        while self.arrived:
            request_id = self.arrived.pop(0)
            self.dispatch(request_id)
            if request_id in self.pushed:
                self.answer(request_id)

    def answer(self, request_id: int) -> None:
        outputs = added(self.pushed[request_id])
        self.core.outputs(self.now_ns, Output(request_id, request_id, 1), outputs)
        self.take()

    def reject(self, request_id: int) -> None:
        self.core.rejected(0, Rejected(request_id, Reason.DEADLINE_PASSED, "too late"))
        self.take()

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.core.tick(self.now_ns)
        self.take()
