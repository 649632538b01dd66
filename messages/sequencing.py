"""The states that a sequence carries from one request to the next, and the inputs that tell its position."""

from __future__ import annotations

import msgspec


class State(msgspec.Struct, frozen=True):
    """A tensor that a sequence carries from each of its requests to the next."""

    input: str
    """Name of the input that it is fed to."""
    output: str
    """Name of the output that it is taken from."""
    dims: tuple[int, ...] | None = None
    """Its shape at the first request, as `TensorSpec.shape`. None: the input's, where open dimensions are
    those of the request, or else the least that the model takes."""
    initial: bytes = b""
    """Bytes of one row of it at the first request, in row-major order; empty for zeros."""
    shown: bool = False
    """True if clients may have the output."""


class Control(msgspec.Struct, frozen=True):
    """An input that says where in its sequence a request is: one number or text for each row."""

    input: str
    kind: str
    """``start``, ``end`` or ``ready``, which is always true; or ``id``: the sequence's."""
    false: float = 0
    true: float = 1


class Sequencing(msgspec.Struct, frozen=True):
    """The states and controls of a model whose requests come in sequences; a gateway keeps the states."""

    states: tuple[State, ...] = ()
    controls: tuple[Control, ...] = ()
    idle_ns: int | None = None
    """Longest time that a sequence may be without a request; None for the gateway's default."""

    @property
    def kept_inputs(self) -> frozenset[str]:
        """The inputs that clients do not give."""
        states = [state.input for state in self.states]
        return frozenset([*states, *[control.input for control in self.controls]])

    @property
    def kept_outputs(self) -> frozenset[str]:
        """The outputs that clients do not get."""
        return frozenset([each.output for each in self.states if not each.shown])
