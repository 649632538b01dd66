"""Actions of one executor: those that are outstanding, and those that ended, packed into bytes.

At 3,000 requests a second some 600,000 actions end within a few minutes. As objects they would take 400 MB
and the garbage collector's time; packed they take 100 MB and none of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct, error

import msgspec

from mainspring.console.view.series import Ring
from mainspring.messages.actions import KINDS, Infer, Load, LoadReason, Timed, kind_of, model_of
from mainspring.messages.actions import Action as Command
from mainspring.messages.codes import Status
from mainspring.telemetry.lifecycles import ActionLife

LOST = "lost"
"""Status of an action whose worker was lost before it ended."""
_KINDS = tuple(KINDS.values())
_STATUSES = (*(status.value for status in Status), LOST)
_STATUS_NUMBER = {status: number for number, status in enumerate(_STATUSES)}
_KIND_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_REASONS = ("", *(reason.value for reason in LoadReason))
_REASON_NUMBER = {reason: number for number, reason in enumerate(_REASONS)}
_HEAD = Struct("<qqqqqqqqqqqqIHHHHHBBB")
_DONE_SEQ = Struct("<q")
_DONE_NS = Struct("<8xq")
_HIDDEN_MOST = 1024
"""Places of forgotten actions at the least before the list is cut: cutting costs its length."""
SECOND_NS = 1_000_000_000
LANE_SECONDS = 301
"""Seconds of which it is remembered how long actions ran, the present one among them."""


class Action(msgspec.Struct, gc=False):
    """One action, outstanding or ended."""

    id: int
    kind: str
    model: str
    batch_size: int
    rows: int
    requests: tuple[int, ...]
    sent_ns: int
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_duration_ns: int
    pages: int = 0
    """Number of pages that a LOAD was given."""
    reason: str = ""
    """Reason for a LOAD, a `LoadReason`; empty of other actions, and where it was not recorded."""
    evicted: tuple[str, ...] = ()
    """The models that were unloaded for a LOAD."""
    done_seq: int = 0
    """Number of its result among the records of the stream (`View.seq`); 0 while it is outstanding."""
    done_ns: int = 0
    """Instant at which its result reached the controller."""
    begin_ns: int = 0
    end_ns: int = 0
    inputs_ns: int = 0
    """Instant at which its inputs were in place, as in `Result.inputs_ns`."""
    device_ns: int = 0
    """Device's part of the duration of an INFER or a LOAD that ended well, as in `Result.device_ns`; 0 of
    others, or if it is not known."""
    status: str = ""
    """A `Status`, or `LOST`; empty while it is outstanding."""
    detail: str = ""

    @property
    def predicted_end_ns(self) -> int:
        """Return the instant at which it was predicted to end."""
        return self.predicted_begin_ns + self.predicted_duration_ns

    @property
    def host_ns(self) -> int:
        """Return the part of its duration that is not the device's, if that is known."""
        return max(0, self.end_ns - self.begin_ns - self.device_ns)

    @property
    def began(self) -> bool:
        """Return whether `begin_ns` and `end_ns` are known."""
        return self.begin_ns > 0


def planned(command: Command, sent_ns: int) -> Action:
    """Return an action as it was sent."""
    kind = kind_of(command)
    if isinstance(command, Timed):
        infer = command if isinstance(command, Infer) else None
        why = command.evidence if isinstance(command, Load) else None
        return Action(
            id=command.action_id,
            kind=kind,
            model=command.model,
            batch_size=0 if infer is None else infer.batch_size,
            rows=0 if infer is None else sum(infer.rows),
            requests=() if infer is None else infer.request_ids,
            sent_ns=sent_ns,
            earliest_ns=command.earliest_ns,
            latest_ns=command.latest_ns,
            predicted_begin_ns=command.predicted_begin_ns,
            predicted_duration_ns=command.predicted_duration_ns,
            pages=len(command.pages) if isinstance(command, Load) else 0,
            reason="" if why is None else why.reason._value_,
            evicted=() if why is None else why.evicted,
        )
    return Action(command.action_id, kind, model_of(command), 0, 0, (), sent_ns, sent_ns, sent_ns, sent_ns, 0)


def ended(life: ActionLife, seq: int) -> Action:
    """Return an action that has ended with a record of the stream, or went with its worker."""
    action = planned(life.action, life.sent_ns)
    action.done_seq, action.done_ns = seq, life.ended_ns or 0
    result = life.result
    if result is None:
        action.status, action.detail = LOST, life.lost
        return action
    action.begin_ns, action.end_ns = result.begin_ns, result.end_ns
    action.inputs_ns, action.detail = result.inputs_ns, result.detail
    if isinstance(life.action, Infer | Load) and result.status is Status.OK:
        action.device_ns = result.device_ns
    # As `value`, which is a call.
    action.status = result.status._value_
    return action


def pack(action: Action) -> bytes:
    """Return an ended action's bytes; raise `struct.error` if a number does not fit."""
    requests = action.requests
    model, detail = action.model.encode()[:65535], action.detail.encode()[:400]
    evicted = "\n".join(action.evicted).encode()[:65535] if action.evicted else b""
    head = _HEAD.pack(
        action.done_seq,
        action.done_ns,
        action.id,
        action.sent_ns,
        action.earliest_ns,
        action.latest_ns,
        action.predicted_begin_ns,
        action.predicted_duration_ns,
        action.begin_ns,
        action.end_ns,
        action.inputs_ns,
        action.device_ns,
        action.rows,
        action.pages if action.kind == "LOAD" else action.batch_size,
        len(requests),
        len(model),
        len(detail),
        len(evicted),
        _KIND_NUMBER[action.kind],
        _STATUS_NUMBER[action.status],
        _REASON_NUMBER[action.reason],
    )
    return head + b"".join([each.to_bytes(8, "little") for each in requests]) + model + detail + evicted


def unpack(data: bytes) -> Action:
    """Return the action of `pack`'s bytes."""
    head = _HEAD.unpack_from(data)
    rows, size, count, model_bytes, detail_bytes, evicted_bytes, kind, status, reason = head[12:]
    at = _HEAD.size + 8 * count
    requests = memoryview(data)[_HEAD.size : at].cast("Q")
    detail_at = at + model_bytes
    evicted_at = detail_at + detail_bytes
    evicted = data[evicted_at:].decode(errors="replace").split("\n") if evicted_bytes else ()
    name = _KINDS[kind]
    return Action(
        id=head[2],
        kind=name,
        model=data[at:detail_at].decode(errors="replace"),
        batch_size=0 if name == "LOAD" else size,
        rows=rows,
        requests=tuple(requests),
        sent_ns=head[3],
        earliest_ns=head[4],
        latest_ns=head[5],
        predicted_begin_ns=head[6],
        predicted_duration_ns=head[7],
        pages=size if name == "LOAD" else 0,
        reason=_REASONS[reason],
        evicted=tuple(evicted),
        done_seq=head[0],
        done_ns=head[1],
        begin_ns=head[8],
        end_ns=head[9],
        inputs_ns=head[10],
        device_ns=head[11],
        status=_STATUSES[status],
        detail=data[detail_at:evicted_at].decode(errors="replace"),
    )


def _done_seq(data: bytes) -> int:
    seq: int = _DONE_SEQ.unpack_from(data)[0]
    return seq


def _done_ns(data: bytes) -> int:
    now_ns: int = _DONE_NS.unpack_from(data)[0]
    return now_ns


class Lane:
    """The actions of one executor of one worker, over all sessions of that name."""

    def __init__(self, worker: str, executor: str) -> None:
        self.worker = worker
        self.executor = executor
        """``EXEC``, ``LOAD`` or ``OTHER``."""
        self.sent: dict[int, int] = {}
        """Number of each outstanding action among the records of the stream (`View.seq`), by id."""
        self.busy_ns = Ring(LANE_SECONDS)
        """Time in which actions ran, by second of the controller's clock."""
        self._ended: list[bytes] = []
        """Ended actions, packed, in the order of their results."""
        self._first = 0
        """Index of the first action in the list that is not forgotten: those before it are empty until the
        list is cut."""
        self.longest_ns = 0
        """The longest that any action was from its sending to its result."""

    def __len__(self) -> int:
        """Return how many ended actions are remembered."""
        return len(self._ended) - self._first

    def end(self, action: Action) -> None:
        """Remember an action that has ended."""
        self.sent.pop(action.id, None)
        try:
            self._ended.append(pack(action))
        except (error, OverflowError):
            # Its numbers are beyond any clock and any id: there is nothing to show.
            return
        self.longest_ns = max(self.longest_ns, action.done_ns - action.sent_ns)
        if action.status == "ok":
            self._busy(action.begin_ns, min(action.end_ns, action.done_ns))

    def busy_share(self, now_ns: int, seconds: int) -> float:
        """Return the share of the last whole seconds in which actions ran that have ended."""
        last = now_ns // SECOND_NS
        busy_ns = sum(self.busy_ns[second] for second in range(last - seconds, last))
        return min(1.0, busy_ns / (seconds * SECOND_NS))

    def newest(self) -> Iterator[Action]:
        """Yield the ended actions, the newest result first."""
        for index in range(len(self._ended) - 1, self._first - 1, -1):
            yield unpack(self._ended[index])

    def ended_in(self, from_ns: int, to_ns: int, after: int = 0) -> Iterator[Action]:
        """Yield the ended actions of which a part may lie in a span of time, the newest result first.

        ``after`` leaves those out whose results came with a record up to that.
        """
        ended = self._ended
        first = bisect_left(ended, from_ns, self._first, key=_done_ns)
        if after:
            first = max(first, bisect_right(ended, after, self._first, key=_done_seq))
        last = bisect_right(ended, to_ns + self.longest_ns, first, key=_done_ns)
        for index in range(last - 1, first - 1, -1):
            yield unpack(ended[index])

    def forget(self, before_ns: int, most: int) -> None:
        """Forget what ended before an instant, and the oldest of more than ``most``."""
        ended, known = self._ended, self._first
        first = max(bisect_left(ended, before_ns, known, key=_done_ns), len(ended) - most)
        ended[known:first] = [b""] * (first - known)
        self._first = first
        if first > _HIDDEN_MOST and 8 * first > len(ended):
            del ended[:first]
            self._first = 0

    def _busy(self, begin_ns: int, end_ns: int) -> None:
        """Enter a time in which an action ran, split over the seconds that it touches."""
        # A worker that says an action took hours is wrong, and would have us enter each second of them.
        begin_ns = max(begin_ns, end_ns - 60 * SECOND_NS)
        while begin_ns < end_ns:
            second = begin_ns // SECOND_NS
            until_ns = min(end_ns, (second + 1) * SECOND_NS)
            self.busy_ns.add(second, until_ns - begin_ns)
            begin_ns = until_ns
