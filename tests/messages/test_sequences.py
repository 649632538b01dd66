"""What a model's sequences may be, checked against its tensors; and what controls are told."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.messages.model import (
    ModelSpec,
    OpenDim,
    Symbol,
    TensorSpec,
    Term,
)
from mainspring.messages.sequences import MOST_INITIAL_BYTES, check_sequencing, control_row
from mainspring.messages.sequencing import Control, Sequencing, State
from tests.gateway.fakes import make_spec

LENGTH = OpenDim(0, (Term(0),))


def spec(*states: State, controls: tuple[Control, ...] = (), **changes: Any) -> ModelSpec:
    return msgspec.structs.replace(
        make_spec("m"),
        inputs=(
            TensorSpec("x", "float32", (2,)),
            TensorSpec("h", "float32", (3, 2)),
            TensorSpec("past", "float32", (8,), (LENGTH,)),
            TensorSpec("start", "float32", (1,)),
            TensorSpec("name", "S4", ()),
        ),
        outputs=(
            TensorSpec("y", "float32", (2,)),
            TensorSpec("h_out", "float32", (3, 2)),
            TensorSpec("next", "float32", (9,), (OpenDim(0, (Term(0, 1, 1),)),)),
            TensorSpec("half", "float16", (3, 2)),
            TensorSpec("short", "float32", (4,)),
            TensorSpec("long", "float32", (9,)),
        ),
        symbols=(Symbol("length", (4, 8), 2),),
        sequencing=Sequencing(states, controls),
        **changes,
    )


@pytest.mark.parametrize(
    "state",
    [
        State("h", "h_out"),
        State("h", "h_out", (3, 2), bytes(24)),
        State("h", "h_out", initial=bytes(24)),
        State("past", "next"),
        State("past", "next", (5,), bytes(20)),
        State("past", "short"),
    ],
)
def test_states_that_fit(state: State) -> None:
    check_sequencing(spec(state))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State("g", "h_out"), "there is no input 'g' for its sequences; it has 'x', 'h'"),
        (State("h", "g"), "there is no output 'g' to take a state from; it has 'y', 'h_out'"),
        (State("h", "half"), "is float16 where it is taken and float32 where it is fed"),
        (State("h", "y"), r"is \['rows', '2'\] where it is taken and \['rows', '3', '2'\] where it is fed"),
        (State("x", "next"), "each dimension must be the same, or open where it is fed"),
        (State("past", "long"), "each dimension must be the same, or open where it is fed"),
        (State("h", "h_out", (3, 3)), r"has dims \[3, 3\]; the input is \['3', '2'\]"),
        (State("past", "next", (1,)), r"has dims \[1\]; the input is \['<=8'\]"),
        (State("h", "h_out", initial=bytes(20)), "has 20 bytes; one row of float32.* has 24"),
        (State("past", "next", initial=bytes(20)), "has bytes and no dims"),
    ],
)
def test_states_that_do_not_fit(state: State, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_sequencing(spec(state))


@pytest.mark.parametrize(
    ("states", "controls", "says"),
    [
        ((State("h", "h_out"), State("past", "h_out")), (), "two states are taken from the output 'h_out'"),
        ((State("h", "h_out"),), (Control("h", "start"),), "'h' is a state or a control twice"),
        ((), (Control("x", "start"),), "it must have one element in each row"),
        ((), (Control("start", "begin"),), "the control 'begin' is none; it is one of start, end"),
        ((), (Control("start", "id"),), "is float32; for 'id' it is one of int32, int64, .* or text"),
        ((), (Control("name", "ready"),), "is S4; for 'ready' it is one of bool"),
    ],
)
def test_what_contradicts_itself(states: tuple[State, ...], controls: tuple[Control, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_sequencing(spec(*states, controls=controls))


def test_initial_states_are_bounded() -> None:
    wide = TensorSpec("x", "uint8", (MOST_INITIAL_BYTES + 1,))
    model = msgspec.structs.replace(
        spec(State("x", "y", initial=bytes(MOST_INITIAL_BYTES + 1))),
        inputs=(wide,),
        outputs=(msgspec.structs.replace(wide, name="y"),),
    )
    with pytest.raises(ValueError, match="have more than 1,048,576 bytes"):
        check_sequencing(model)


def test_what_a_control_says() -> None:
    def row(control: Control, dtype: str, **said: Any) -> bytes:
        given = {"start": False, "end": False, "sequence": 1, **said}
        return control_row(control, TensorSpec(control.input, dtype, ()), **given)

    assert row(Control("a", "start", -1, 2.5), "float32", start=True) == np.float32(2.5).tobytes()
    assert row(Control("a", "start", -1, 2.5), "float32", end=True) == np.float32(-1).tobytes()
    assert row(Control("a", "end"), "bool", end=True) == b"\1"
    assert row(Control("a", "ready", 0, 9), "int32") == np.int32(9).tobytes()
    assert row(Control("a", "id"), "uint64", sequence=2**64 - 1) == b"\xff" * 8
    assert row(Control("a", "id"), "S4", sequence="ab") == b"ab\0\0"
    assert row(Control("a", "id"), "S4", sequence=17) == b"17\0\0"
    for dtype, sequence in (("int32", 2**31), ("uint64", "ab"), ("S4", "abcde")):
        with pytest.raises(ValueError, match="the sequence's id"):
            row(Control("a", "id"), dtype, sequence=sequence)
