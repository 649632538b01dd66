"""A worker's outputs as a request's reply. Pure."""

from __future__ import annotations

from mainspring.gateway.pending import Dispatched, Pending
from mainspring.gateway.sends import Answer, Frame
from mainspring.gateway.validation import Accepted
from mainspring.messages.clients import Timing
from mainspring.messages.peers import TensorHeader


def wrong_outputs(accepted: Accepted, frames: tuple[Frame, ...]) -> str | None:
    """Return what is wrong with the sizes of a worker's outputs, if anything is."""
    wanted = [accepted.rows * size for size in accepted.signature.output_row_bytes]
    given = [len(frame) for frame in frames]
    return None if given == wanted else f"outputs of {given} bytes instead of {wanted}"


def answer(
    now_ns: int, request: Pending, dispatch: Dispatched, execute_ns: int, frames: tuple[Frame, ...]
) -> Answer:
    """Return the reply: the outputs that the client wants, and where its time went."""
    timing = Timing(
        total_ns=now_ns - request.arrived_ns,
        # A request that shares another's execution may have come after its dispatch.
        queue_ns=max(0, dispatch.at_ns - request.arrived_ns),
        execute_ns=execute_ns,
        left_ns=None if request.deadline_ns is None else request.deadline_ns - now_ns,
        batch_size=dispatch.batch_size,
        cold_start=dispatch.cold,
        worker=dispatch.worker,
    )
    return _answer(request, frames, timing)


def answer_kept(now_ns: int, request: Pending, frames: tuple[Frame, ...]) -> Answer:
    """Return the reply with outputs that were computed before: no worker had a part in it."""
    timing = Timing(
        total_ns=now_ns - request.arrived_ns,
        queue_ns=0,
        execute_ns=0,
        left_ns=None if request.deadline_ns is None else request.deadline_ns - now_ns,
        batch_size=0,
        cold_start=False,
        worker="",
        cached=True,
    )
    return _answer(request, frames, timing)


def _answer(request: Pending, frames: tuple[Frame, ...], timing: Timing) -> Answer:
    accepted = request.accepted
    specs, shape = accepted.signature.spec.outputs, accepted.signature.spec.client_shape
    wanted = [specs[index] for index in accepted.output_order]
    return Answer(
        connection=request.connection,
        key=request.key,
        outputs=tuple([TensorHeader(each.name, each.dtype, shape(each, accepted.rows)) for each in wanted]),
        frames=tuple([frames[index] for index in accepted.output_order]),
        timing=timing,
    )
