"""The request table: exactly one reply for each request, whatever dies. Pure.

Messages go in through the methods, each with ``now_ns`` on the gateway's clock; what is to be sent comes
out of `drain`. No socket, clock or thread: `driver` drives it. Neither does it know of ZeroMQ's clients:
any front end submits, and gets one `Answer` or `Refuse` back through its `Connection`.

A request is in one place at a time (`requests.Place`), such as *submitted* (a controller knows its id). A
new controller, or one that forgot this gateway, gets all that is pending under new ids; outputs that come
for an old id are accepted all the same. Of several controllers, each has the requests for its models: a
request's id says where it was submitted, and one that is submitted again goes to where its model is by then.

Where a model's outputs are cached, a request may be answered at once, or *follow* another one of equal inputs
(`sharing`), as it may follow an earlier one of its sequence (`sequences`). One with more rows
than a batch is submitted in pieces, and answered as one (`queries`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.effects import (
    Accepted,
    Connection,
    Dispatched,
    Effect,
    Frame,
    Push,
    Withdraw,
)
from mainspring.gateway.core.queries import QueryFailed, begin, uses, withdrawn
from mainspring.gateway.core.request_table import Controllers, Observers, RequestTable
from mainspring.gateway.core.requests import (
    CANCELLED,
    CLOSING,
    UNSENT,
    Frames,
    Patience,
    Pending,
    answer,
    bad_outputs,
    late_detail,
    may_lack,
    refused,
    replaced,
    timed_out,
    unreachable,
    wrong_outputs,
)
from mainspring.gateway.core.sequences import Sequences
from mainspring.gateway.core.sharing import Sharing
from mainspring.gateway.core.validation import Signature, is_outdated
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Dispatch, Input, Output, Rejected

ARRIVAL_RETRY_NS: Final = 20_000_000
"""Nanoseconds after which a request that could not be sent to the controller is sent again."""

_NO_SIGNATURES: Mapping[str, Signature] = MappingProxyType({})
_NO_SHARDS: Mapping[str, int] = MappingProxyType({})


class GatewayCore:
    """The request table; see the module's docstring."""

    def __init__(
        self,
        config: GatewayConfig,
        signatures: Mapping[str, Signature] = _NO_SIGNATURES,
        cache: PredictionCache | None = None,
        shards: Mapping[str, int] = _NO_SHARDS,
    ) -> None:
        """``signatures``: what is known of the models at present, by name; ``shards``: the shard of each that
        is not in shard 0. Both are only looked at."""
        self._config = config
        self._signatures = signatures
        self._controllers = Controllers(config, shards)
        self._cache = PredictionCache(config.cache_bytes) if cache is None else cache
        self.sequences = Sequences(config)
        self._sharing, self._patience = Sharing(), Patience(config)
        self._closing, self._serial = False, 0
        self._table = RequestTable(config)
        self.chosen = self._table.chosen
        self._pending, self._by_id, self._timers = self._table.pending, self._table.by_id, self._table.timers
        self._effects: list[Effect] = []
        self.observers = Observers()
        self.counts: Counter[str] = Counter()
        """Counts of events by name: ``submitted`` = ``answered`` + ``refused`` + ``abandoned`` + in flight;
        the others count messages that could not be used."""

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def connection_in_flight(self, connection: Connection) -> int:
        """Requests without an answer on one connection."""
        return self._table.count_of(connection)

    def requests(self) -> list[Pending]:
        """Return the requests without an answer."""
        return list(self._pending.values())

    def holds(self, model: str, shard: int | None = None) -> bool:
        """Return whether a request for the model, by the scheduler's name, is in flight, ``shard``: there."""
        requests = self._pending.values()
        return any(uses(each, model) and shard in (None, each.shard) for each in requests)

    # --- front ends ---

    def submit(
        self,
        now_ns: int,
        connection: Connection,
        key: int,
        accepted: Accepted,
        frames: list[Frame],
        digest: bytes | None = None,
        spent_ns: int = 0,
        came_ns: int = 0,
    ) -> None:
        """Take a request that passed validation, or refuse it; ``frames`` as the client ordered them.

        ``digest`` is the cache's for it, and took ``spent_ns``; None for a model whose outputs are not kept.
        ``came_ns``: when its first bytes came, if that was before now.
        """
        request = self._patience.begin(self._serial, now_ns, connection, key, accepted, frames, digest)
        request.cache_ns = spent_ns
        request.came_ns = came_ns or now_ns
        refusal = CLOSING if self._closing else self._table.refusal(request) or begin(request)
        if accepted.turn is not None:
            refusal = refusal or self.sequences.refusal(request)
        if refusal is not None:
            if accepted.turn is not None:
                self.sequences.turned_away(request)
                refusal = refusal[0], self.sequences.told(request, *refusal)
            # Never entered: a duplicate's key belongs to the request that is in flight.
            self._effects.append(refused(request, *refusal))
            self.observers.refused(request, refusal[0])
            return
        self._serial += 1
        self.counts["submitted"] += 1
        if digest is not None and (kept := self._cache.get(accepted.model, digest)) is not None:
            self.counts["answered"] += 1
            self._effects.append(answer(now_ns + spent_ns, request, None, None, kept))
            self.observers.answered(now_ns + spent_ns, request, None, None)
            return
        self._table.add(request)
        if request.flow is not None and not request.pieces:
            self._answer(now_ns, request, None, None, request.flow.outputs())
            return
        if accepted.turn is not None:
            self._timers.arm(request, request.next_look_ns(now_ns))
            if not self.sequences.join(now_ns, request) or not self._begin(request):
                return
        if (digest is not None and self._sharing.join(request)) or self._arrive(request):
            self._timers.arm(request, request.next_look_ns(now_ns))
        else:
            self._wait_for_controller(now_ns, request)

    def cancel(self, connection: Connection, key: int) -> None:
        """Give a request up for its client; nothing happens if it has been answered."""
        request = self._table.find(connection, key)
        if request is not None:
            self._give_up(request, *CANCELLED)

    def forget_connection(self, connection: Connection) -> None:
        """Give up the requests of a client that is gone: no replies."""
        # The last first: what stands behind another one of its sequence must not have its turn by this.
        for request in reversed(self._table.of_connection(connection)):
            self._withdraw(request)
            self._remove(request)
            self.counts["abandoned"] += 1
            self.observers.refused(request, Reason.CANCELLED)

    # --- controller ---

    def controller_welcomed(self, now_ns: int, number: int) -> None:
        """Submit what is pending to a controller that does not know it, under new ids."""
        shard = self._controllers.welcomed(number)
        for request in self._pending.values():
            if request.follows or not self._controllers.concerns(request, shard):
                continue
            self._withdraw(request)
            if request.deadline_ns is None or request.deadline_ns > now_ns:
                self._arrive(request)
            if request.wake_ns != request.expires_ns:
                self._timers.arm(request, request.next_look_ns(now_ns))

    def controller_lost(self, now_ns: int, shard: int = 0) -> None:
        """Keep what can wait for a controller, or for outputs on their way; refuse the rest."""
        if not self._controllers.lost(now_ns, shard):
            return
        for request in list(self._pending.values()):
            if request.serial not in self._pending or not self._controllers.concerns(request, shard):
                continue
            if request.request_id is not None:
                request.recall()
            if not request.dispatches and not request.follows:
                self._submit_again(now_ns, request)

    def model_moved(self, now_ns: int, model: str) -> None:
        """Submit what waits for the controller that had a model to the one that has it now."""
        for request in list(self._pending.values()):
            if request.accepted.model != model or request.request_id is not None or request.follows:
                continue
            if request.deadline_ns is None or request.deadline_ns > now_ns:
                self._submit_again(now_ns, request)

    def arrival_unsent(self, now_ns: int, request_id: int) -> None:
        """Try again soon with a request that could not be sent to the controller, while its deadline allows.

        Its connection may be about to be found broken, or its queue is full.
        """
        request = self._by_id.get(request_id)
        if request is None or request.request_id != request_id:
            return
        if request.whole is not None:
            # A piece that was to run again: what is left of all is submitted again.
            request = request.whole
            self._effects.append(Withdraw(request.request_id or 0))
            self._effects += withdrawn(request)
        request.recall()
        if now_ns + ARRIVAL_RETRY_NS < request.until_ns:
            self._timers.arm(request, now_ns + ARRIVAL_RETRY_NS)
        else:
            self._refuse(request, *UNSENT)

    def dispatched(self, now_ns: int, message: Dispatch) -> None:
        """Push the inputs of each request that still waits; tell the worker which don't."""
        if len(message.cold) != len(message.request_ids):
            self.counts["bad_dispatches"] += 1
            return
        for request_id, cold in zip(message.request_ids, message.cold, strict=True):
            request = self._by_id.get(request_id)
            if request is not None and is_outdated(request.accepted, self._signatures):
                self._give_up(request.whole or request, *replaced(request.accepted.model))
                request = None
            if request is None or request.request_id != request_id:
                self.counts["withdrawn_inputs"] += 1
                self._effects.append(Push(message.worker, Input(message.action_id, request_id, True), ()))
                continue
            dispatch = Dispatched(message.action_id, message.worker, message.batch_size, cold, now_ns)
            request.dispatch(dispatch)
            if request.whole is not None:
                request.whole.dispatch(dispatch)
            self._effects.append(Push(message.worker, Input(message.action_id, request_id), request.frames))

    def rejected(self, now_ns: int, message: Rejected) -> None:
        """Pass the controller's rejection on."""
        request = self._by_id.get(message.request_id)
        if request is None or request.request_id != message.request_id:
            self.counts["late_rejections"] += 1
            return
        if request.whole is not None:
            self._go_on(now_ns, request, None, message, ())
            return
        self._effects += withdrawn(request)
        self._refuse(request, message.reason, message.detail, message.earliest_finish_left_ns)

    # --- workers ---

    def worker_lost(self, now_ns: int, worker: str) -> None:
        """Submit again what was last dispatched to a worker that is gone.

        The controller dispatches the requests of unfinished actions again by itself. But an action may
        have been reported as done and its outputs have died with the worker: only the gateway knows that
        they never came.
        """
        for request in self._table.sent_to(now_ns, worker):
            self._withdraw(request)
            self._submit_again(now_ns, request)
            self.counts["resubmitted"] += 1

    def outputs(self, now_ns: int, message: Output, frames: Frames) -> None:
        """Answer the request with a worker's outputs, in the order of the model's outputs."""
        request = self._by_id.get(message.request_id)
        if request is None:
            self.counts["late_outputs"] += 1
            return
        dispatch = next((d for d in request.dispatches if d.action_id == message.action_id), None)
        if dispatch is None:
            self.counts["unexpected_outputs"] += 1
            return
        wrong = wrong_outputs(request.accepted, frames)
        if wrong is not None:
            self.counts["bad_outputs"] += 1
            self._give_up(request.whole or request, *bad_outputs(dispatch.worker, wrong))
            return
        if request.accepted.turn is not None:
            late_ns = 0 if request.deadline_ns is None else now_ns - request.deadline_ns
            if late_ns > 0 and not request.accepted.late_outputs:
                # They are of no use to the client any more: its sequence's state must not have gone on.
                self._give_up(request, Reason.TIMED_OUT, late_detail(late_ns))
                return
            self.sequences.take(now_ns, request, frames)
        if request.dispatches[-1] is not dispatch or request.request_id != message.request_id:
            # The controller has sent it elsewhere meanwhile, or is about to.
            self._withdraw(request)
        if request.whole is not None:
            self._go_on(now_ns, request, dispatch, message, frames)
        else:
            self._answer(now_ns, request, dispatch, message, frames)

    def _go_on(
        self, now_ns: int, piece: Pending, by: Dispatched | None, message: Output | Rejected, frames: Frames
    ) -> None:
        """Have a query go on, a piece of which has outputs or was rejected; answer it at its end."""
        query = piece.whole or piece
        try:
            outputs = self._table.go_on(now_ns, piece, by, message, frames, self._effects)
        except QueryFailed as failed:
            self._give_up(query, failed.reason, failed.detail, failed.earliest_finish_left_ns)
            return
        if outputs is not None:
            last, output = (query.flow and query.flow.last) or (None, None)
            self._answer(now_ns, query, last, output, outputs)

    def _answer(
        self, now_ns: int, request: Pending, by: Dispatched | None, message: Output | None, frames: Frames
    ) -> None:
        """Reply to a request, and to those that wait for the same outputs."""
        waiting = [request]
        if request.digest is not None:
            if all(each.kept for each in request.pieces) and (request.flow is None or request.flow.best):
                request.cache_ns += self._cache.put(request.accepted, request.digest, frames)
            waiting = self._sharing.take(request.digest)
            self._cache.counts_of(request.accepted.model).shared += len(waiting) - 1
        for each in waiting:
            if each is not request:
                self._withdraw(each)
                each.flow = request.flow
            self._remove(each)
            self.counts["answered"] += 1
            self._effects.append(answer(now_ns, each, by, message, frames))
            self.observers.answered(now_ns, each, by, message)

    # --- time ---

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next, if nothing else happens."""
        idle_ns, next_ns = self.sequences.next_wakeup_ns(), self._timers.next_ns()
        if idle_ns is None or next_ns is None:
            return next_ns if idle_ns is None else idle_ns
        return min(idle_ns, next_ns)

    def tick(self, now_ns: int) -> None:
        """Answer what has run out of time; send again what could not be sent to the controller."""
        while (request := self._timers.pop_due(now_ns)) is not None:
            unsent = request.request_id is None and not request.dispatches and not request.follows
            reached = self._controllers.number_for(request.accepted.model) is not None
            if now_ns < request.expires_ns and not (unsent and not reached):
                self._timers.arm(request, request.next_look_ns(now_ns))
                in_time = request.deadline_ns is None or now_ns < request.deadline_ns
                if request.outputs_overdue(now_ns):
                    self._withdraw(request)
                    self.counts["resubmitted"] += 1
                if request.request_id is None and in_time and not request.follows:
                    self._arrive(request)
            elif unsent:
                self._refuse(request, *unreachable(now_ns, request))
            else:
                self._cut_off(now_ns, request)
        self.sequences.tick(now_ns)

    def shut_down(self) -> None:
        """Refuse all that comes from now on."""
        self._closing = True

    def abandon(self) -> None:
        """Answer all that is left: the gateway stops."""
        self._sharing.clear()
        self.sequences.clear()
        for request in list(self._pending.values()):
            self._give_up(request, *CLOSING)

    def drain(self) -> list[Effect]:
        """Return what is to be sent, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def validate(self) -> None:
        """Check that every table says the same; raise AssertionError with the story of what does not."""
        self._table.validate()
        self._sharing.validate(self._pending.values())
        self._cache.validate()
        self.sequences.validate(self._pending)
        ended = self.counts["answered"] + self.counts["refused"] + self.counts["abandoned"]
        assert self.counts["submitted"] == ended + len(self._pending), f"requests lost: {self.counts}"

    # --- the steps ---

    def _arrive(self, request: Pending) -> bool:
        """Submit a request to the controller that has its model; return False if that is not there."""
        number = self._controllers.number_for(request.accepted.model)
        if number is not None:
            self._effects.append(self._table.arrive(request, number))
        return number is not None

    def _submit_again(self, now_ns: int, request: Pending) -> None:
        """Submit a request whose controller is lost to the one that has its model, or have it wait."""
        if not self._arrive(request):
            self._wait_for_controller(now_ns, request.whole or request)
        elif request.whole is None:
            self._timers.arm(request, request.next_look_ns(now_ns))

    def _wait_for_controller(self, now_ns: int, request: Pending) -> None:
        until_ns = self._controllers.awaited_until_ns(now_ns, request)
        if until_ns is None:
            self._refuse(request, *unreachable(now_ns, request))
        else:
            self._timers.arm(request, until_ns)

    def _withdraw(self, request: Pending) -> None:
        if request.request_id is not None:
            self._effects.append(Withdraw(request.request_id))
            self._effects += withdrawn(request)
            request.recall()

    def _cut_off(self, now_ns: int, request: Pending) -> None:
        """End a request whose time is over: a graph's with what there is, if it may lack the rest."""
        reason, detail = timed_out(now_ns, request)
        left = [each for each in request.pieces if each.kept is None]
        for piece in left if may_lack(request.accepted) else ():
            rejected = Rejected(piece.request_id or 0, reason, detail)
            self._withdraw(piece)
            self._go_on(now_ns, piece, None, rejected, ())
            if request.serial not in self._pending:
                return
        self._give_up(request, reason, detail)

    def _give_up(self, request: Pending, reason: Reason, detail: str, left_ns: int | None = None) -> None:
        self._withdraw(request)
        self._refuse(request, reason, detail, left_ns)

    def _refuse(
        self, request: Pending, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None
    ) -> None:
        self._end(request, reason, self.sequences.told(request, reason, detail), earliest_finish_left_ns)
        self._next_turn(request)

    def _end(
        self, request: Pending, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None
    ) -> None:
        """Send a refusal, without a look at who has waited for the request."""
        self._table.remove(request)
        self.counts["refused"] += 1
        self.observers.refused(request, reason)
        self._effects.append(refused(request, reason, detail, earliest_finish_left_ns))

    def _remove(self, request: Pending) -> None:
        self._table.remove(request)
        self._next_turn(request)

    def _next_turn(self, request: Pending) -> None:
        """Submit what has waited for a request that is in the table no more."""
        if request.digest is not None:
            for heir in self._sharing.leave(request):
                self._lead(heir)
        if request.accepted.turn is None:
            return
        following = self.sequences.leave(request)
        while following is not None:
            refusal = self.sequences.begin(following)
            if refusal is None:
                self._lead(following)
                return
            self._end(following, refusal[0], self.sequences.told(following, *refusal))
            following = self.sequences.leave(following)

    def _begin(self, request: Pending) -> bool:
        """Give the first request in line its state; return False if it is refused."""
        if (refusal := self.sequences.begin(request)) is not None:
            self._refuse(request, *refusal)
        return refusal is None

    def _lead(self, heir: Pending) -> None:
        """Submit a request that followed one which ended without outputs."""
        if self._arrive(heir):
            return
        self._timers.arm(heir, self._controllers.awaited_since_loss_ns(heir))
