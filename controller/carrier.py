"""Carries the scheduler's commands out: actions to workers, dispatches and rejections to gateways."""

from __future__ import annotations

import logging

import msgspec

from mainspring.controller.counters import AnswerLimit, Dropped
from mainspring.controller.members import Members
from mainspring.controller.post import Post
from mainspring.controller.sessions import SessionTable, WorkerSession
from mainspring.messages.actions import Action, Infer, Load
from mainspring.messages.commands import Command, DropWorker, Reject
from mainspring.messages.ids import gateway_of
from mainspring.messages.peers import Dispatch, Rejected

_LOGGER = logging.getLogger(__name__)


def on_worker_clock(action: Action, offset_ns: int) -> Action:
    """Return an action with its instants on the clock of a worker that is ``offset_ns`` ahead."""
    if not isinstance(action, Infer | Load) or offset_ns == 0:
        return action
    return msgspec.structs.replace(
        action,
        earliest_ns=action.earliest_ns + offset_ns,
        latest_ns=action.latest_ns + offset_ns,
        predicted_begin_ns=action.predicted_begin_ns + offset_ns,
    )


def dispatches(action: Infer) -> dict[int, Dispatch]:
    """Return what each gateway, by its number, is to be told of an INFER of at least one request."""
    numbers = [gateway_of(request_id) for request_id in action.request_ids]
    if numbers.count(numbers[0]) == len(numbers):
        whole = Dispatch(action.action_id, action.worker, action.request_ids, action.cold, action.batch_size)
        return {numbers[0]: whole}
    found = {}
    for number in dict.fromkeys(numbers):
        mine = [index for index, other in enumerate(numbers) if other == number]
        found[number] = Dispatch(
            action_id=action.action_id,
            worker=action.worker,
            request_ids=tuple([action.request_ids[index] for index in mine]),
            cold=tuple([action.cold[index] for index in mine]),
            batch_size=action.batch_size,
        )
    return found


class Carrier:
    """Sends commands; each worker's session remembers which INFERs are out on it."""

    def __init__(self, sessions: SessionTable, members: Members, post: Post, dropped: Dropped) -> None:
        self._sessions = sessions
        self._members = members
        self._post = post
        self._dropped = dropped
        self._error_limit = AnswerLimit()

    def carry_out(self, now_ns: int, commands: list[Command]) -> None:
        """Send what each command asks for, in order; then end the sessions that broke over it.

        A command that can't be carried out is a fault of ours: it is counted and logged, and does not keep
        the others from leaving. Its worker is dropped when its result is overdue.
        """
        for command in commands:
            try:
                self._carry_out(now_ns, command)
            except Exception:
                self._dropped.count("internal_error")
                if self._error_limit.allows(now_ns, b"", type(command).__name__):
                    _LOGGER.exception("could not carry out %.2000r", command)
        self._members.settle(now_ns)

    def infers_out(self) -> int:
        """How many INFERs are out on workers that are still there."""
        return sum(len(worker.infers_out) for worker in self._sessions.workers.values())

    def _carry_out(self, now_ns: int, command: Command) -> None:
        match command:
            case Infer():
                self._infer(command)
            case Reject():
                self._reject(now_ns, command)
            case DropWorker(worker=worker, reason=reason):
                self._members.drop(now_ns, worker, reason)
            case _:
                self._to_worker(command)

    def _worker_of(self, action: Action) -> WorkerSession | None:
        session = self._sessions.workers.get(action.worker)
        if session is None or not session.joined:
            self._dropped.count("worker_gone")
            return None
        return session

    def _to_worker(self, action: Action) -> None:
        session = self._worker_of(action)
        if session is not None:
            self._post.to(session, on_worker_clock(action, session.clock.offset_ns))

    def _infer(self, action: Infer) -> None:
        """Tell the gateways, then the worker: the inputs have the longer way."""
        session = self._worker_of(action)
        if session is None:
            return
        for number, dispatch in dispatches(action).items():
            gateway = self._sessions.gateway(number)
            if gateway is None:
                self._dropped.count("gateway_gone", len(dispatch.request_ids))
            else:
                self._post.to(gateway, dispatch)
        if self._post.to(session, on_worker_clock(action, session.clock.offset_ns)):
            session.infers_out.add(action.action_id)

    def _reject(self, now_ns: int, reject: Reject) -> None:
        gateway = self._sessions.gateway(gateway_of(reject.request_id))
        if gateway is None:
            self._dropped.count("gateway_gone")
            return
        finish_ns = reject.earliest_finish_ns
        left_ns = None if finish_ns is None else finish_ns - now_ns
        self._post.to(gateway, Rejected(reject.request_id, reject.reason, reject.detail, left_ns))
