"""Each way in which a request can be wrong is refused with what would be right."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.core.catalog import Catalog, unknown_model
from mainspring.gateway.core.effects import Accepted
from mainspring.gateway.core.validation import (
    BadRequest,
    Signature,
    check_request,
    nearest,
)
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.durations import LONGEST_NS
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import make_spec

HOUR_NS = 3_600_000_000_000
SPEC = ModelSpec(
    name="encoder",
    weights_hash="",
    executable="",
    batch_sizes=(1, 2, 4),
    weights_bytes=1,
    extents=(1,),
    inputs=(TensorSpec("ids", "int64", (3,)), TensorSpec("mask", "float32", (3, 2))),
    outputs=(TensorSpec("first", "float32", ()), TensorSpec("last", "float32", (2,))),
    profiles={},
)
CATALOG = Catalog()
for _name in ("encoder", "resnet50", "resnet18"):
    CATALOG.model_up(msgspec.structs.replace(SPEC, name=_name))
IDS = TensorHeader("ids", "int64", (2, 3))
MASK = TensorHeader("mask", "float32", (2, 3, 2))


def check(
    inputs: tuple[TensorHeader, ...] = (IDS, MASK),
    frame_bytes: tuple[int, ...] = (48, 48),
    model: str = "encoder",
    slo_ns: int | None = 50_000_000,
    outputs: tuple[str, ...] | None = None,
    priority: int = 0,
) -> Accepted:
    request = InferRequest(1, model, inputs, slo_ns, outputs, priority=priority)
    return check_request(request, frame_bytes, CATALOG.resolve, HOUR_NS)


def test_a_right_request_passes() -> None:
    accepted = check()
    assert (accepted.rows, accepted.frame_order, accepted.output_order) == (2, (0, 1), (0, 1))


def test_inputs_may_come_in_any_order_and_outputs_be_chosen() -> None:
    accepted = check((MASK, IDS), outputs=("last",))
    assert (accepted.frame_order, accepted.output_order) == ((1, 0), (1,))


def test_the_one_other_model_is_counted_as_one() -> None:
    assert unknown_model("zzz", {"encoder": 0}) == "model 'zzz' is not served; 1 other is"


def test_one_nanosecond_and_one_hour_are_slos() -> None:
    check(slo_ns=1)
    check(slo_ns=HOUR_NS)
    check(slo_ns=None)


def shaped(*shape: int) -> tuple[TensorHeader, ...]:
    return (TensorHeader("ids", "int64", shape), MASK)


WRONG: list[tuple[dict[str, object], Reason, str]] = [
    ({"model": "resnet5"}, Reason.UNKNOWN_MODEL, "'resnet5' is not served; did you mean 'resnet50'"),
    ({"model": "zzz"}, Reason.UNKNOWN_MODEL, "'zzz' is not served; 3 others are"),
    ({"model": "x" * 5000}, Reason.UNKNOWN_MODEL, "..."),
    ({"priority": -1}, Reason.BAD_INPUT, "the priority is -1: 1 is the highest"),
    ({"slo_ns": 0}, Reason.BAD_SLO, "0 ms is not positive; give more than 0 and at most 3,600,000 ms, or"),
    ({"slo_ns": -1}, Reason.BAD_SLO, "-0.000001 ms is not positive"),
    ({"slo_ns": HOUR_NS + 1}, Reason.BAD_SLO, "3,600,000.000001 ms is absurdly long"),
    ({"slo_ns": LONGEST_NS - 10**9}, Reason.BAD_SLO, "an SLO of over a hundred years is absurdly long"),
    ({"inputs": (IDS,)}, Reason.BAD_INPUT, "input 'mask' missing; model 'encoder' takes 'ids', 'mask'"),
    ({"inputs": ()}, Reason.BAD_INPUT, "inputs 'ids', 'mask' missing"),
    (
        {"inputs": (IDS, MASK, TensorHeader("x", "int64", (2,)))},
        Reason.BAD_INPUT,
        "no input 'x'; model 'encoder' takes",
    ),
    ({"inputs": (IDS, MASK, IDS)}, Reason.BAD_INPUT, "'ids' was given twice"),
    (
        {"inputs": (TensorHeader("ids", "float64", (2, 3)), MASK)},
        Reason.BAD_INPUT,
        "input 'ids' has dtype float64; model 'encoder' takes int64",
    ),
    ({"inputs": shaped(2, 4)}, Reason.BAD_INPUT, "'ids' has shape [2, 4]; model 'encoder' takes [rows, 3]"),
    ({"inputs": shaped(2, 3, 1)}, Reason.BAD_INPUT, "takes [rows, 3]"),
    ({"inputs": shaped(3)}, Reason.BAD_INPUT, "put the rows' axis in front, for one row [1, 3]"),
    ({"inputs": shaped()}, Reason.BAD_INPUT, "takes [rows, 3]"),
    ({"inputs": shaped(0, 3)}, Reason.BAD_INPUT, "with at least one row"),
    ({"inputs": shaped(-1, 3)}, Reason.BAD_INPUT, "with at least one row"),
    ({"inputs": shaped(1, 3)}, Reason.BAD_INPUT, "'mask' has 2 rows and input 'ids' has 1"),
    (
        {"inputs": (TensorHeader("ids", "int64", (5, 3)), TensorHeader("mask", "float32", (5, 3, 2)))},
        Reason.TOO_MANY_ROWS,
        "5 rows are more than model 'encoder' takes at once (4), by the gateway's max_rows_per_request",
    ),
    ({"frame_bytes": (48,)}, Reason.BAD_INPUT, "1 frames came for 2 inputs"),
    ({"frame_bytes": (48, 48, 48)}, Reason.BAD_INPUT, "3 frames came for 2 inputs"),
    (
        {"frame_bytes": (47, 48)},
        Reason.BAD_INPUT,
        "'ids' came with 47 bytes; dtype int64 and shape [2, 3] make 48",
    ),
    ({"outputs": ("frist",)}, Reason.BAD_OUTPUT, "no output 'frist'; model 'encoder' gives 'first', 'last'"),
    ({"outputs": ("last", "last")}, Reason.BAD_OUTPUT, "twice"),
]


@pytest.mark.parametrize(("wrong", "reason", "says"), WRONG, ids=lambda each: str(each)[:40])
def test_wrong_requests_are_refused(wrong: dict[str, object], reason: Reason, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check(**wrong)  # type: ignore[arg-type]
    assert caught.value.reason is reason
    assert says in caught.value.detail
    assert len(caught.value.detail) < 500


def test_no_models_at_all() -> None:
    with pytest.raises(BadRequest, match="no model is"):
        check_request(InferRequest(1, "m", (), None), (), Catalog().resolve, HOUR_NS)


def test_suggestions_among_thousands_are_quick() -> None:
    known = {f"resnet50_{number:04}": None for number in range(20_000)}
    begin = time.process_time()
    assert "resnet50_1234" in nearest("resnet50_123", known)
    # Comparing with every name takes seconds.
    assert time.process_time() - begin < 1


headers = st.builds(
    TensorHeader,
    st.sampled_from(["ids", "mask", "other", ""]),
    st.sampled_from(["int64", "float32", "O", "<f4"]),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(-1, 5), max_size=4).map(tuple),
)


@given(
    st.lists(headers, max_size=4).map(tuple),
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.none() | st.integers(-(2**63), 2**64 - 1),
    st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
def test_anything_is_refused_or_right(
    inputs: tuple[TensorHeader, ...],
    frame_bytes: tuple[int, ...],
    slo_ns: int | None,
    outputs: tuple[str, ...] | None,
) -> None:
    try:
        accepted = check(inputs, frame_bytes, "encoder", slo_ns, outputs)
    except BadRequest:
        return
    assert {inputs[place].name for place in accepted.frame_order} == {"ids", "mask"}
    assert 1 <= accepted.rows <= 4


def test_a_scalar_of_a_model_without_rows_may_come_as_one_element() -> None:
    whole = msgspec.structs.replace(
        make_spec("m"), inputs=(TensorSpec("rate", "float32", ()),), batch_sizes=(1,), whole=True
    )
    for shape in ((), (1,)):
        request = InferRequest(1, "m", (TensorHeader("rate", "float32", shape),), None)
        assert check_request(request, [4], lambda *_: Signature(whole), 10**9).rows == 1
    request = InferRequest(1, "m", (TensorHeader("rate", "float32", (1, 1)),), None)
    with pytest.raises(BadRequest, match="takes just"):
        check_request(request, [4], lambda *_: Signature(whole), 10**9)
