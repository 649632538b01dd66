"""The driver of the gateway's core: wires it to the controller, to the workers and to all front ends.

A front end calls `submit`, `cancel`, `ask` and `forget`, and is called back with one `Answer`, `Refuse` or
reply for each; which protocol its clients speak is its own affair. Everything runs in one thread, and nothing
here waits: the server calls `serve` with the connections that may have messages, and `tick` when time has
passed. Each of these methods gives its event to the core and then does what the core asks for.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.admin import AdminCommand, AdminTable, answered_here, asked_of
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.catalog import catalog_of
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.effects import (
    Answer,
    Arrive,
    Connection,
    Effect,
    Push,
    Refuse,
    Withdraw,
    arrival_of,
)
from mainspring.gateway.core.readiness import Readiness
from mainspring.gateway.core.request_table import OwnRefusals
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import BadRequest, check_request
from mainspring.gateway.learning import LearningLinks
from mainspring.gateway.memory import Memory
from mainspring.gateway.oip.triton_texts import in_words
from mainspring.gateway.peer_connections import LinkOf, WorkerLinks
from mainspring.gateway.replies import Replies
from mainspring.gateway.shards import Shard, addresses_of, earlier
from mainspring.gateway.token_limits import Accounts, TokenLimits
from mainspring.messages import peers
from mainspring.messages.clients import EndSequence, ErrorReply, InferRequest, StatusReply
from mainspring.messages.codec import TO_GATEWAY, BadMessage
from mainspring.messages.codes import Reason
from mainspring.messages.ids import shard_of
from mainspring.messages.learning import FeedbackCounted, RelayFeedback
from mainspring.messages.limits import TokenParts
from mainspring.messages.queries import Chosen, StepsKnown
from mainspring.messages.served import Awaited, Standing
from mainspring.messages.sharding import ShardMap
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.tokens import NOTHING, Credential, TokenFile

log = logging.getLogger("mainspring.gateway")


class GatewayDriver:
    """The gateway's core and its sockets; see the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        config: GatewayConfig,
        clock: Callable[[], int] = monotonic_ns,
        link: LinkOf = Link,
        seed: int | None = None,
    ) -> None:
        """``link`` makes the connections; ``seed`` is the catalog's, None for any."""
        self.config, self.clock = config, clock
        self.catalog = catalog_of(config, secrets.randbits(31) if seed is None else seed)
        self.told = Told(self.catalog, addresses_of(config))
        self.tokens = TokenFile(config)
        self.gate = self.tokens.gate
        """Says who may ask for what; front ends ask it before they call `submit` or `ask`."""
        self.limits = TokenLimits(self.gate)
        self.cache = PredictionCache(config.cache_bytes, config.cache_models, clock)
        self.core = GatewayCore(config, self.catalog.signatures, self.cache, self.told.shards)
        self.counts: Counter[str] = Counter()
        """Messages that could not be used or sent, by why."""
        self._replies = Replies(self.counts)
        self.front_ends = self._replies.front_ends
        """The front ends, by the name in their connections."""
        self._refusals = OwnRefusals()
        self.core.observers.add(self._refusals)
        if self.tokens.check_ns is not None:
            self.core.observers.add(Accounts())
        self._performing = False
        self._max_slo_ns = milliseconds(config.max_slo_ms)
        self._admin = AdminTable(config, lambda: self.told.map)
        now_ns, count, seed = self.clock(), self._count, self.catalog.graphs.applications.seed
        self.shards = [
            Shard(number, hub, config, now_ns, count, partial(self._holds, number), link, clock, seed)
            for number in range(len(addresses_of(config)))
        ]
        """The controllers."""
        self.readiness = Readiness(
            self.told, lambda number: self.shards[number].uncounted(clock()), config.readiness
        )
        self.learning = LearningLinks(config, self.catalog, self.shards)
        self._first = self.shards[0]
        self._others: dict[object, Shard] = {each.link.port: each for each in self.shards[1:]}
        self.memory = Memory(config.slab_bytes)
        """The memory that front ends receive large tensors in."""
        self.workers = WorkerLinks(
            hub, config, lambda _: self._count("bad_framing_from_workers"), self.memory, link
        )

    # --- front ends ---

    @property
    def alone(self) -> str | None:
        """Return why nothing is known of any model, if that is for want of a controller; else None."""
        known = self.catalog.signatures or any(each.session.welcomed for each in self.shards)
        return None if known else self._first.absent

    def submit(
        self,
        connection: Connection,
        request: InferRequest,
        frames: Sequence[Any],
        *,
        lent: bool = False,
        came_ns: int = 0,
        shown: Credential = NOTHING,
    ) -> None:
        """Take a request with its tensors' frames, or refuse it; ``lent``: its client may change them.

        ``came_ns``: when its first bytes came, if that is known; ``shown``: the token that came with it.
        """
        if (alone := self.alone) is not None:
            self._turn_away(connection, request, Reason.CONTROLLER_UNREACHABLE, alone)
            return
        sizes = [len(frame) for frame in frames]
        try:
            taken, whole = self.catalog.completed(self.catalog.prioritised(request), frames)
            if whole is not frames:
                frames, sizes = whole, [len(frame) for frame in whole]
            accepted = check_request(taken, sizes, self.catalog.resolve, self._max_slo_ns)
            if self.gate.has_accounts:
                accepted = self.limits.charged(accepted, shown, sum(sizes))
        except BadRequest as error:
            self._turn_away(connection, request, error.reason, in_words(error, request, sizes, self.catalog))
            return
        now_ns = self.clock()
        if lent and accepted.turn is None and self.cache.is_on(accepted.signature.spec.public_name):
            # Others may be answered with what these inputs give: they must not change any more.
            frames = [self.memory.copy(frame) for frame in frames]
        # What a sequence's request is answered depends on more than its own inputs.
        cached = self.cache.used and not accepted.turn
        digest, spent_ns = self.cache.digest(accepted, frames) if cached else None, 0
        if digest is not None:
            spent_ns = self.clock() - now_ns
            self.cache.took(accepted.model, digest, spent_ns)
        self.core.submit(now_ns, connection, request.key, accepted, list(frames), digest, spent_ns, came_ns)
        self._perform()

    def cancel(self, connection: Connection, key: int) -> None:
        """Give up a request of this connection."""
        self.core.cancel(connection, key)
        self._perform()

    def end_sequence(self, message: EndSequence) -> None:
        """Drop a sequence; one that is not known, or whose model is not served any more, is so already."""
        with contextlib.suppress(BadRequest):
            name = self.catalog.resolve(message.model, message.version).spec.name
            self.core.sequences.end(name, message.sequence_id)

    def forget(self, connection: Connection) -> None:
        """Give up all requests of a connection that is gone."""
        self.core.forget_connection(connection)
        self._perform()

    def ask(self, connection: Connection, command: AdminCommand) -> None:
        """Pass a command to change or see the cluster on to the controllers that it concerns."""
        if (said := answered_here(command, self.catalog.graphs, len(self.shards))) is not None:
            self._replies.reply(connection, said)
            return
        concerned = [self.shards[number] for number in asked_of(command, self.told)]
        shards = [each for each in concerned if each.session.welcomed]
        asked = self._admin.ask(self.clock(), connection, command, [each.number for each in shards])
        if isinstance(asked, ErrorReply):
            self._replies.reply(connection, asked)
            return
        for each in shards:
            each.link.deliver(asked)

    # --- sockets ---

    def serve(self, port: object, limit: int) -> None:
        """Take at most ``limit`` messages from a connection of the driver that may have some."""
        shard = self._first if port is self._first.link.port else self._others.get(port)
        if shard is not None:
            if not shard.session.welcomed:
                # The connection may have opened just now.
                self._keep_session(self.clock(), shard)
            self._serve_controller(shard, limit)
        elif (worker := self.workers.worker_of(port)) is not None:
            self._serve_worker(worker, limit)
        self._perform()

    def _count(self, why: str) -> None:
        self.counts[why] += 1

    def _holds(self, shard: int, model: str) -> bool:
        """Return whether a request for a model is in flight at a shard's controller, or may come to be."""
        if len(self.shards) == 1:
            return self.core.holds(model)
        return self.told.shard_of(model) == shard or self.core.holds(model, shard)

    def _serve_controller(self, shard: Shard, limit: int) -> None:
        for _ in range(limit):
            data = shard.link.receive()
            if data is None:
                if shard.cut_off(self.clock()):
                    self._controller_lost(self.clock(), shard)
                return
            try:
                message = TO_GATEWAY.decode(data)
            except BadMessage:
                self.counts["bad_messages_from_controller"] += 1
                continue
            self._from_controller(self.clock(), shard, message)

    def _from_controller(self, now_ns: int, shard: Shard, message: object) -> None:
        shard.session.heard(now_ns)
        if shard.astray and not isinstance(message, peers.Welcome):
            return
        match message:
            case peers.Dispatch():
                self.core.dispatched(now_ns, message)
            case peers.Rejected():
                self.core.rejected(now_ns, message)
            case Chosen():
                self.core.chosen(message)
            case peers.Ping():
                self._pinged(now_ns, shard, message)
            case peers.ModelUp():
                self._model_up(now_ns, shard, message)
            case peers.ModelDown():
                self._model_down(now_ns, shard, message)
            case peers.Served():
                self._served(shard, message)
            case Standing() | Awaited():
                self.readiness.heard(shard.number, message)
            case TokenParts():
                shard.link.send(self.limits.told(now_ns, message))
            case peers.DefaultSlo(model=name, slo_ns=slo_ns):
                self.told.set_default_slo(shard.number, name, slo_ns)
            case peers.Graph():
                self._set_graph(shard, message)
            case peers.WorkerUp():
                self._worker_up(shard, message)
            case peers.WorkerDown():
                if self.told.worker_down(shard.number, message.worker):
                    self._worker_lost(now_ns, message.worker)
            case peers.AdminReply():
                self._admin_reply(shard, message)
            case RelayFeedback() | FeedbackCounted():
                self.learning.take(now_ns, shard, message)
            case ShardMap():
                self._take_map(now_ns, shard, message)
            case peers.Welcome():
                self._welcomed(now_ns, shard, message)
            case peers.Refused():
                if shard.refused(now_ns, message):
                    self._controller_lost(now_ns, shard)
            case peers.Goodbye() | peers.Leads():
                shard.left(now_ns, message)
                self._controller_lost(now_ns, shard)

    def _pinged(self, now_ns: int, shard: Shard, message: peers.Ping) -> None:
        if shard.session.welcomed:  # the first one comes behind all models and workers
            self.readiness.told_all(now_ns, shard.number)
        times = message.sent_ns, now_ns, self.clock()
        shard.link.send(peers.Pong(message.sequence, *times, refused=self._refusals.counts))
        self.workers.settle()

    def _welcomed(self, now_ns: int, shard: Shard, message: peers.Welcome) -> None:
        if not shard.welcome(now_ns, message):
            self._controller_lost(now_ns, shard)
            return
        if shard is self._first:
            self.limits.welcomed(message.gateways)
        self.readiness.begin_session(shard.number)
        self.core.controller_welcomed(now_ns, message.number)

    def _take_map(self, now_ns: int, shard: Shard, told: ShardMap) -> None:
        """Route by a newer map; tell a controller that has lost it the one that is known here."""
        known = self.told.map
        fault = shard.map_fault(told, known)
        if fault:
            self.counts["bad_shard_maps"] += 1
            log.warning("a map of the controller at %s is left alone: %s", shard.address, fault)
        elif told.version < known.version:
            self.counts["old_shard_maps"] += 1
            shard.link.deliver(known)
        elif told.version > known.version:
            self._moved(now_ns, self.told.take_map(told))

    def _moved(self, now_ns: int, models: list[str]) -> None:
        for name in models:
            self.core.model_moved(now_ns, name)

    def _controller_lost(self, now_ns: int, shard: Shard) -> None:
        self.core.controller_lost(now_ns, shard.number)
        shard.draining.controller_lost()
        self.learning.lost(shard.number)
        for connection, reply in self._admin.controller_lost(shard.number):
            self._replies.reply(connection, reply)

    def _model_up(self, now_ns: int, shard: Shard, message: peers.ModelUp) -> None:
        try:
            moved = self.told.model_up(shard.number, message.model)
        except ValueError as error:
            self.counts["bad_models"] += 1
            log.warning("%s", error)
            return
        self.cache.revise(self.catalog.signatures, message.model.name)
        shard.draining.keep(message.model.name)
        self.readiness.note(message.model.public_name)
        self._moved(now_ns, moved)

    def _served(self, shard: Shard, message: peers.Served) -> None:
        self.told.serve(shard.number, message.model)
        self.cache.switch(message.model.name, message.model.cache or None)
        self.readiness.note(message.model.name)

    def _set_graph(self, shard: Shard, message: peers.Graph) -> None:
        self.told.set_graph(shard.number, message.name, message.graph, message.shares)
        self.readiness.note(message.name)

    def _model_down(self, now_ns: int, shard: Shard, message: peers.ModelDown) -> None:
        moved = self.told.model_down(shard.number, message)
        if message.name not in self.catalog.signatures:
            self.cache.forget(message.name)
            self.core.sequences.forget(message.name)
        shard.draining.model_down(now_ns, message)
        self.readiness.note(message.name)
        self._moved(now_ns, moved)

    def _worker_up(self, shard: Shard, message: peers.WorkerUp) -> None:
        try:
            self.workers.connect(message.worker, message.data_address)
        except OSError as error:
            self.counts["bad_worker_addresses"] += 1
            log.warning("%s", error)
            return
        twice = self.told.worker_up(shard.number, message.worker, message.data_address)
        if twice:
            self.counts["worker_names_taken_twice"] += 1
            log.warning("%s", twice)

    def _worker_lost(self, now_ns: int, worker: str) -> None:
        # Outputs that arrived before the worker died are as good as any.
        for _ in range(self.config.input_backlog_messages):
            if not self._serve_worker(worker, self.config.burst_messages):
                break
        self.workers.disconnect(worker)
        self.core.worker_lost(now_ns, worker)

    def _admin_reply(self, shard: Shard, message: peers.AdminReply) -> None:
        if not self._admin.awaits(message.token, shard.number):
            self.counts["late_admin_replies"] += 1
            return
        counts, sequences = Counter(self.all_counts()), self.core.sequences
        if len(sequences):
            counts["sequences"] += len(sequences)
            counts["sequence_bytes"] += sequences.bytes
        answered = self._admin.answered(message, counts, shard.number)
        if answered is not None:
            connection, reply = answered
            if isinstance(reply, StatusReply):
                reply = msgspec.structs.replace(reply, status=self.readiness.shown(reply.status))
            self._replies.reply(connection, reply)

    def all_counts(self) -> dict[str, int]:
        """Return what was counted here, by name."""
        parts = self.core.counts, self.core.sequences.counts, self.cache.counts, self.counts
        return self.catalog.counts | {name: count for part in parts for name, count in part.items()}

    def _serve_worker(self, worker: str, limit: int) -> bool:
        """Take a bounded number of outputs; return whether there may be more."""
        link = self.workers.link_of(worker)
        for _ in range(limit):
            frames = None if link is None else link.receive()
            if frames is None:
                return False
            try:
                outputs = self.workers.outputs(worker, frames)
            except BadMessage as error:
                self.counts["bad_messages_from_workers"] += 1
                log.debug("worker %s sent a message that can't be used: %s", worker, error)
                continue
            if outputs is not None:
                self.core.outputs(self.clock(), *outputs)
        return True

    # --- time, and what comes out ---

    def next_wakeup_ns(self) -> int:
        """Return when `tick` is to be called next."""
        nearest_ns = earlier(self._first.next_wakeup_ns(), self.core.next_wakeup_ns())
        nearest_ns = earlier(nearest_ns, self._admin.next_wakeup_ns())
        nearest_ns = earlier(nearest_ns, self.told.next_wakeup_ns())
        if self.tokens.check_ns is not None:
            nearest_ns = earlier(min(nearest_ns, self.tokens.check_ns), self.limits.next_ns())
        for shard in self._others.values():
            nearest_ns = min(nearest_ns, shard.next_wakeup_ns())
        return nearest_ns

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        self.core.tick(now_ns)
        if self.tokens.check_ns is not None:
            self.tokens.tick(now_ns)
            if self.limits.report_due(now_ns):
                self._first.link.send(self.limits.report(now_ns))
        for connection, reply in self._admin.tick(now_ns):
            self._replies.reply(connection, reply)
        confirm_ns = self.told.next_wakeup_ns()
        workers, moved = self.told.tick(now_ns)
        for worker in workers:
            self._worker_lost(now_ns, worker)
        if confirm_ns is not None and confirm_ns <= now_ns:
            self.cache.revise(self.catalog.signatures)
        self._moved(now_ns, moved)
        for shard in self.shards:
            for name in shard.draining.tick(now_ns):
                shard.link.deliver(peers.Drained(name))
            self._keep_session(now_ns, shard)
        self._perform()

    def _keep_session(self, now_ns: int, shard: Shard) -> None:
        if shard.keep_session(now_ns, self.told.ready):
            self._controller_lost(now_ns, shard)

    def _perform(self) -> None:
        """Do what the core asks for.

        A front end that gets a reply may submit or give up requests at once: what follows is done by the
        outer call, behind what was asked for before.
        """
        if self._performing:
            return
        self._performing = True
        try:
            while effects := self.core.drain():
                for effect in effects:
                    self._do(effect)
        finally:
            self._performing = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Arrive():
                self._arrive(effect)
            case Push():
                if not self.workers.send(effect.worker, effect.message, effect.frames):
                    self.counts["unsent_to_workers"] += 1
            case Answer():
                self._replies.answer(effect)
            case Refuse():
                self._replies.refuse(effect)
            case StepsKnown():
                self.shards[shard_of(effect.query_id)].link.deliver(effect)
            case Withdraw(request_id=request_id):
                self.shards[shard_of(request_id)].link.deliver(peers.Cancel(request_id))

    def _arrive(self, effect: Arrive) -> None:
        left_ns = None if effect.deadline_ns is None else effect.deadline_ns - self.clock()
        if not self.shards[shard_of(effect.request_id)].link.deliver(arrival_of(effect, left_ns)):
            self.core.arrival_unsent(self.clock(), effect.request_id)

    def _turn_away(self, connection: Connection, request: InferRequest, reason: Reason, detail: str) -> None:
        self.core.observers.turned_away(request, reason)
        self._replies.refuse(Refuse(connection, request.key, reason, detail))

    # --- the end ---

    def abandon(self) -> None:
        """Answer all that is left: the gateway stops."""
        self.core.abandon()
        self._perform()

    def goodbye(self) -> None:
        """Take leave of the controller."""
        for shard in self.shards:
            shard.link.send(peers.Goodbye(f"gateway {shard.link.name} stops"))
        self.memory.close()
