"""The network thread's work: messages from the controller and the gateways, and replies to them.

Tensors go from frames straight into IO memory and back, concurrently with EXEC (Clockwork, section 4.4: INPUT
and OUTPUT). No message stops the thread: an unusable message is counted by its reason and dropped.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Action, Infer, Load, Open, Prepare, Release, Result, Unload
from mainspring.messages.codec import FROM_GATEWAY, TO_WORKER, BadMessage, encode
from mainspring.messages.codes import Status
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import (
    Describe,
    Described,
    Goodbye,
    Greet,
    Input,
    Leads,
    Output,
    Ping,
    Pong,
    Refused,
    Restored,
    Welcome,
    WorkerHello,
)
from mainspring.messages.sharding import AGAIN, MOVED
from mainspring.transport.bounds import Delivery
from mainspring.transport.link import ControllerSession
from mainspring.worker.batches import Outbox
from mainspring.worker.config import WorkerConfig
from mainspring.worker.engine import DeviceLost, Monitored, SharesInputs
from mainspring.worker.engines.artifacts import StoreWatch
from mainspring.worker.executors import Executors
from mainspring.worker.inputs import HeldInput, Inputs
from mainspring.worker.segments import OVERTAKEN, Segments
from mainspring.worker.sockets import Sockets

LOG = logging.getLogger(__name__)

BURST = 64
"""Messages taken from one socket before the others get a turn."""
TICK_NS = 5_000_000
"""Time between two checks of what is due: hellos, silence, old inputs."""
GREETING_NS = 50_000_000
"""Longest sleep while the controller is yet to be greeted."""
LOOK_NS = 250_000_000
"""Longest sleep of a worker that is welcome: how late early inputs may be found too old, or garbage be
collected. What is due to the controller is known, and whatever else happens wakes the thread."""
LONGEST_HELLO_NS = 400_000_000
"""Longest time between two hellos. A controller that has just started keeps requests for its first worker for
several times as long (`ControllerConfig.start_grace_ms`), so that none is rejected for lack of a worker."""
IDLE_NS = 1_000_000_000
"""Time without an action after which garbage is collected."""
UNSENT = {Delivery.GONE: "gateway: gone before its output", Delivery.FULL: "gateway: reads too slowly"}
"""Reasons why an output could not be sent, by the outcome of sending."""


class Network:
    """The sockets' side of a worker; one thread calls it."""

    def __init__(
        self,
        config: WorkerConfig,
        sockets: Sockets,
        executors: Executors,
        inputs: Inputs,
        outbox: Outbox,
        notes: list[str],
        watch: StoreWatch | None = None,
        monitored: Monitored | None = None,
        targets: tuple[str, ...] = (),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``monitored`` watches its device; None if the engine does not. ``targets`` is the hello's."""
        self._config = config
        self._sockets = sockets
        self._sent = ""
        """Same as `WorkerHello.sent`."""
        self._executors = executors
        self._inputs = inputs
        self._loading: dict[int, str] = {}
        """The model of each outstanding LOAD, by the action's id."""
        self._loads: dict[str, tuple[int, int]] = {}
        """Begin and end of the last LOAD of each resident model."""
        device = inputs.transfers
        self._segments = Segments(
            sockets.data,
            config.slab_bytes,
            device if isinstance(device, SharesInputs) else None,
            inputs.spoil,
        )
        self._outbox = outbox
        self._notes = notes
        self._watch = watch
        self._monitored = monitored
        self._targets = targets
        self._health: DeviceHealth | None = None
        self._clock = clock
        now_ns = clock()
        self._session = self._new_session(now_ns)
        self._next_tick_ns = now_ns
        self._acted_ns = now_ns
        self._welcomed = False
        """True once a controller has taken this worker in."""
        self._collected = False
        self._connections_ended = 0
        """Number of gateways' connections that have ended, at either end, and were counted in `dropped`."""
        self.dropped: Counter[str] = Counter()
        """Messages that could not be used or delivered, by reason."""

    def _new_session(self, now_ns: int) -> ControllerSession:
        return ControllerSession(
            now_ns,
            hello_ns=self._config.hello_retry_ms * 1_000_000,
            longest_hello_ns=LONGEST_HELLO_NS,
            silence_ns=self._config.controller_silence_ms * 1_000_000,
        )

    def step(self, timeout_ns: int) -> None:
        """Wait for something to do, at most this long, and do it."""
        found = self._sockets.hub.wait(timeout_ns)
        self.flush()
        if self._sockets.controller in found:
            self._take_from_controller()
        if self._sockets.data in found:
            self._take_from_gateways()
        self.flush()
        self._tick(self._clock())

    def longest_wait_ns(self, now_ns: int) -> int:
        """Return how long `step` may wait at most, for what no message and no bell says."""
        if not self._session.welcomed:
            return GREETING_NS
        return max(TICK_NS, min(LOOK_NS, self._session.next_wakeup_ns() - now_ns))

    def flush(self) -> None:
        """Send what has ended: each request's outputs, then the action's result."""
        self._executors.settle()
        while (end := self._outbox.pop()) is not None:
            result, io = end
            if io is not None:
                # Abandoned outputs too: afterwards the memory may be another action's.
                fault = self._inputs.received(io)
                if result is not None:
                    result = self._send_outputs(result, fault)
                with self._executors.driving() as core:
                    core.outputs_sent(io.slot)
            if result is not None:
                self._finish(result)

    def goodbye(self, detail: str) -> None:
        """Say goodbye to the controller."""
        if self._session.welcomed:
            self._to_controller(encode(Goodbye(detail)))

    # --- the controller ---

    def _take_from_controller(self) -> None:
        for _ in range(BURST):
            parts = self._sockets.controller.receive()
            if parts is None:
                if self._session.cut_off(self._clock(), self._sockets.controller.obeyed):
                    self._abandon("its connection has ended")
                    self._next_tick_ns = 0
                return
            self._from_controller(parts)

    def _from_controller(self, frames: list[Any]) -> None:
        now_ns = self._clock()
        try:
            if len(frames) != 1:
                raise BadMessage(f"{len(frames)} frames instead of one")
            message = TO_WORKER.decode(frames[0])
        except BadMessage as error:
            self._drop("controller: undecodable", str(error))
            return
        self._session.heard(now_ns)
        match message:
            case Ping():
                pong = Pong(
                    message.sequence,
                    message.sent_ns,
                    now_ns,
                    self._clock(),
                    dict(self.dropped),
                    self._health,
                )
                self._to_controller(encode(pong))
                self._segments.tell()
            case Welcome(protocol=protocol) if protocol != PROTOCOL_VERSION:
                detail = f"the controller speaks protocol {protocol}, this worker {PROTOCOL_VERSION}"
                self._drop("controller: other protocol", f"{detail}; install the same release on both")
            case Welcome():
                self._welcomed = True
                if self._session.welcome(now_ns):
                    LOG.info("welcomed by the controller")
                else:
                    self._abandon("the controller began another session")
            case Refused():
                self._refused(now_ns, message)
            case Goodbye():
                if self._session.lose(now_ns):
                    self._abandon(f"the controller said goodbye: {message.detail}")
            case Leads():
                self._session.led(now_ns)
                self._next_tick_ns = 0
                self._abandon(f"another one leads, in epoch {message.epoch}")
            case Describe():
                self._describe(message)
            case Greet():
                self._greet_other(now_ns, message)
            case Infer() | Load() | Prepare() | Release() | Unload() | Open():
                self._accept(now_ns, message)

    def _greet_other(self, now_ns: int, message: Greet) -> None:
        """Leave the controller for another one, with all that is prepared and resident."""
        try:
            controller = self._sockets.greet(message.controller)
        except OSError as error:
            self._drop("controller: sent to no address", str(error))
            return
        LOG.warning("sent to the controller at %s", message.controller)
        if self._session.lose(now_ns):
            self._abandon("it belongs to another one")
        self._sockets.controller.close(0)
        self._sockets = self._sockets._replace(controller=controller)
        self._session = self._new_session(now_ns)
        self._sent = AGAIN if message.again else MOVED

    def _describe(self, message: Describe) -> None:
        """Report what is prepared under these names."""
        with self._executors.driving() as core:
            found = [core.residency.find(name) for name in message.models]
        self._to_controller(encode(Described(tuple(each.model for each in found if each is not None))))

    def _look_at_store(self, now_ns: int) -> None:
        """Have the files of failed models examined, and report the models whose files have changed."""
        if self._watch is None:
            return
        if self._watch.due(now_ns):
            with self._executors.driving():
                self._executors.look_at_store(self._watch)
        while (model := self._watch.changed()) is not None:
            # A controller that does not know this worker has it prepare everything anyway.
            if self._session.welcomed:
                LOG.info("the files of %s have changed: it can be tried again", model.name)
                self._to_controller(encode(Restored(model)))

    def _look_at_device(self) -> None:
        """Take what its monitor saw last; if the device is lost, the worker ends as after a failed EXEC."""
        if self._monitored is None:
            return
        try:
            self._health = self._monitored.health()
        except DeviceLost as error:
            self._executors.broken = self._executors.broken or f"the device is lost: {error}"

    def _accept(self, now_ns: int, action: Action) -> None:
        if not self._session.welcomed:
            self._drop("controller: action before welcome", f"action {action.action_id}")
            return
        self._session.acted()
        self._acted_ns, self._collected = now_ns, False
        with self._executors.driving() as core:
            if isinstance(action, Infer):
                action = core.residency.resolved(action)
            results = core.submit(now_ns, action)
            prepared = core.residency.find(action.model) if isinstance(action, Infer) else None
            io = None if results else core.reservation(action.action_id)
            if results and results[0].status is Status.OK:
                if isinstance(action, Unload):
                    self._executors.unload(action.model)
                    self._loads.pop(action.model, None)
                elif isinstance(action, Release):
                    self._executors.release(action.model)
        for result in results:
            self._inputs.refuse(result.action_id)
            self._send_result(result)
        if not results and isinstance(action, Load):
            self._loading[action.action_id] = action.model
        if isinstance(action, Infer) and prepared is not None and io is not None:
            for request_id, held in self._inputs.open(action, prepared.model, io):
                # Unusable inputs of one request end the action for all of them.
                if self._awaited(action.action_id, request_id):
                    self._place(action.action_id, request_id, held)

    def _refused(self, now_ns: int, message: Refused) -> None:
        text = f"the controller refuses this worker ({message.code}): {message.detail}"
        refusal = self._session.refused(now_ns, message.code, text)
        if refusal.lost:
            self._abandon(f"the controller does not know this session: {message.detail}")
        elif refusal.news:
            LOG.warning("%s", text)

    def _abandon(self, why: str) -> None:
        """Drop the actions of a controller that has lost this worker, so that the next hello is correct."""
        LOG.warning("greeting the controller again: %s", why)
        self.flush()
        with self._executors.driving():
            self._executors.abandon()
        self._inputs.clear()
        self._loading.clear()

    def _greet(self, now_ns: int) -> None:
        """Say hello, unless EXEC or LOAD still runs a job of the session before."""
        with self._executors.driving() as core:
            if not core.quiet:
                return
            prepared, resident = core.residency.prepared(), core.residency.resident()
            pages = len(core.residency.pages)
        hello = WorkerHello(
            PROTOCOL_VERSION,
            self._config.name,
            self._config.device_kind,
            pages,
            PAGE_BYTES,
            self._sockets.data_address,
            prepared,
            resident,
            tuple(self._notes),
            self._sent,
            self._targets,
            self._welcomed,
            self._sockets.controller.epoch,
        )
        self._sockets.controller.greet((encode(hello),))
        self._session.hello_sent(now_ns)

    # --- the gateways ---

    def _take_from_gateways(self) -> None:
        for _ in range(BURST):
            received = self._sockets.data.receive()
            if received is None:
                return
            self._from_gateway(*received)

    def _from_gateway(self, sender: bytes, parts: list[Any]) -> None:
        try:
            message = FROM_GATEWAY.decode(parts[0])
            if not isinstance(message, Input):
                self._segments.said(sender, message)
                return
        except BadMessage as error:
            self._drop("gateway: undecodable", str(error))
            return
        if message.read:
            self._segments.read(sender, message.read)
        self._take_input(message, self._received(sender, message, parts[1:]))
        if message.places:
            self._segments.took(sender, message)

    def _received(self, sender: bytes, message: Input, parts: list[Any]) -> HeldInput:
        """Return an input as it came, with what is wrong with its places."""
        now_ns, frames, fault = self._clock(), None, ""
        shared = self._segments.shared(sender) if message.places else None
        if not message.withdrawn:
            try:
                frames = self._segments.frames(sender, message, parts)
            except BadMessage as error:
                fault = str(error)
        return HeldInput(sender, frames, now_ns, sum(map(len, frames or ())), message.places, fault, shared)

    def _take_input(self, message: Input, held: HeldInput) -> None:
        """Copy an input to its rows, or aside if its action has not come."""
        if self._awaited(message.action_id, message.request_id):
            self._place(message.action_id, message.request_id, held)
            return
        if not held.fault and held.places and held.frames is not None:
            frames = [bytes(frame) for frame in held.frames]
            fault = self._segments.overtaken(held.sender, held.places)
            held = HeldInput(held.sender, frames, held.since_ns, held.size, (), fault)
        if held.fault:
            # Kept all the same, without its bytes: its action is to end at once, and not when it is too late.
            held = HeldInput(held.sender, None, held.since_ns, 0, (), held.fault)
        dropped = self._inputs.hold(message.action_id, message.request_id, held)
        self._drop("gateway: input without action", f"action {message.action_id}", dropped)

    def _awaited(self, action_id: int, request_id: int) -> bool:
        """Return whether a request's inputs may be copied to their rows now.

        The core has to agree: an executor may have ended the action a moment ago, and its IO memory may
        already belong to another action. The memory stays this action's while its inputs are copied, even if
        the action ends meanwhile, because only this thread allocates IO memory.
        """
        return self._inputs.expects(action_id, request_id) and self._executors.awaits_inputs(action_id)

    def _place(self, action_id: int, request_id: int, held: HeldInput) -> None:
        begin_ns = self._clock()
        fault = self._inputs.place(action_id, request_id, held)
        if not fault and held.places:
            fault = self._segments.overtaken(held.sender, held.places)
        placed_ns = self._clock()
        result = None
        with self._executors.driving() as core:
            if fault:
                result = core.input_refused(placed_ns, action_id, request_id, fault)
            else:
                core.input_arrived(action_id, request_id, placed_ns)
                self._inputs.placed(action_id, request_id, begin_ns, placed_ns)
        if fault:
            self._drop("gateway: unusable input", fault)
        if result is not None:
            self._finish(result)

    def _send_outputs(self, result: Result, fault: str) -> Result:
        """Send each request's outputs; return the action's result, which is OUTPUT_LOST if some were lost.

        Outputs are lost on the device, with ``fault`` as the reason, or with the connection of their gateway,
        which may be back when the controller tries again. The work is not done twice for a gateway that only
        reads too slowly.
        """
        if fault:
            self._drop("outputs lost on the device", fault)
            return msgspec.structs.replace(result, status=Status.OUTPUT_LOST, detail=fault)
        self._segments.settle()
        for request_id, sender, frames in self._inputs.outputs(result.action_id):
            if self._inputs.spoiled(result.action_id, request_id):
                self._drop("gateway: unusable input", OVERTAKEN)
                result = msgspec.structs.replace(result, status=Status.OUTPUT_LOST, detail=OVERTAKEN)
                continue
            times = self._inputs.times(self._clock(), result, request_id, self._loads)
            places, left = self._segments.lend(sender, frames)
            taken = self._segments.taken(sender)
            message = Output(result.action_id, request_id, result.device_ns, times, places, taken)
            # The frames' memory may change as soon as this returns.
            delivery = self._sockets.data.send(sender, (encode(message), *left), volatile=True)
            if delivery is not Delivery.SENT:
                self._segments.take_back(sender, places)
                self._drop(UNSENT[delivery], f"the output of request {request_id}")
            if delivery is Delivery.GONE and result.status is Status.OK:
                detail = f"the connection of request {request_id}'s gateway had ended"
                result = msgspec.structs.replace(result, status=Status.OUTPUT_LOST, detail=detail)
        return result

    # --- both ---

    def _finish(self, result: Result) -> None:
        """Send a result and forget the action."""
        self._inputs.close(result.action_id)
        model = self._loading.pop(result.action_id, None)
        if model is not None and result.status is Status.OK:
            self._loads[model] = result.begin_ns, result.end_ns
        self._send_result(result)

    def _send_result(self, result: Result) -> None:
        if result.status is not Status.OK:
            LOG.info("action %d ended %s: %s", result.action_id, result.status, result.detail)
        if self._session.welcomed:
            self._to_controller(encode(result))

    def _tick(self, now_ns: int) -> None:
        if now_ns < self._next_tick_ns:
            return
        self._next_tick_ns = now_ns + TICK_NS
        if self._session.timed_out(now_ns):
            self._abandon(f"the controller has been silent for {self._config.controller_silence_ms} ms")
        self._session.connected(now_ns, self._sockets.controller.opened)
        if self._sockets.controller.connected and self._session.hello_due(now_ns):
            self._greet(now_ns)
        self._segments.advance()
        self._look_at_store(now_ns)
        self._look_at_device()
        self._drop("gateway: input without action", "too old", self._inputs.expire(now_ns))
        if broken := self._sockets.data.ended - self._connections_ended:
            self._connections_ended += broken
            limit = self._config.max_message_bytes
            LOG.info("a gateway left, or sent a frame beyond max_message_bytes = %d", limit)
            self.dropped["gateway: connection ended"] += broken
        if not self._collected and now_ns - self._acted_ns > IDLE_NS:
            self._collected = True
            if self._config.realtime:
                gc.collect()

    def _to_controller(self, data: bytes) -> None:
        if self._sockets.controller.send((data,)) is not Delivery.SENT:
            self._drop("controller: unreachable", "message not sent")

    def _drop(self, reason: str, detail: str, count: int = 1) -> None:
        if not count:
            return
        if not self.dropped[reason]:
            LOG.warning("dropped a message (%s): %s; more of this kind are only counted", reason, detail)
        self.dropped[reason] += count
