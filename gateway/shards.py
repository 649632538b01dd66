"""The controllers of a gateway: one, or several that each have a part of the models.

A gateway keeps a session with each; what happens to one of them, its death included, concerns its own models
only. Which shard has which model is decided in `gateway.core.told`, from what controllers tell and the newest
map, which the first controller keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.catalog import DrainingModels
from mainspring.gateway.peer_connections import ControllerLink, LinkOf
from mainspring.messages import PROTOCOL_VERSION, peers
from mainspring.messages.ids import MAX_GATEWAY, shard_of_gateway
from mainspring.messages.served import NO_CONTROLLER, why
from mainspring.messages.sharding import ShardMap, map_fault
from mainspring.transport.hub import Hub
from mainspring.transport.link import BAD_MESSAGE, ControllerSession, Link

log = logging.getLogger("mainspring.gateway")

_COUNTED_ON: Final = 0.7
"""Part of ``controller_timeout_ms`` after which nobody counts on a controller that gives no sign of life."""


def addresses_of(config: GatewayConfig) -> tuple[str, ...]:
    """Return the controllers' addresses, by shard."""
    return config.shards or (config.controller_address,)


def earlier(at_ns: int, other_ns: int | None) -> int:
    """Return the earlier of two instants, of which the second may be never."""
    return at_ns if other_ns is None or at_ns <= other_ns else other_ns


class Shard:
    """One controller: the connection, the session, and the models that it wants to remove."""

    def __init__(
        self,
        number: int,
        hub: Hub,
        config: GatewayConfig,
        now_ns: int,
        count: Callable[[str], object],
        holds: Callable[[str], bool],
        link: LinkOf = Link,
        clock: Callable[[], int] = monotonic_ns,
        seed: int = 0,
    ) -> None:
        """Begin to connect. ``count`` counts what could not be used or sent, by why; ``holds``: whether a
        request for a model is in flight here; ``seed``: as `GatewayHello.seed`. Raises OSError as
        `ControllerLink`."""
        self.number = number
        self._seed = seed
        self.address = addresses_of(config)[number]
        self._several = len(config.shards) > 1
        self._count = count
        self.link = ControllerLink(hub, config, self.address, count, link, clock)
        self.session = ControllerSession(
            now_ns,
            hello_ns=milliseconds(config.hello_interval_ms),
            silence_ns=milliseconds(config.controller_timeout_ms),
        )
        self._quiet_ns = milliseconds(config.controller_timeout_ms * _COUNTED_ON)
        self.draining = DrainingModels(holds)
        self.astray = False
        """True if the controller there is that of another shard, so that what it tells counts for nothing."""
        self._missed_ns: int | None = now_ns + milliseconds(config.controller_timeout_ms)
        """Instant at which a first controller is missed; None once it was, or has come."""

    @property
    def absent(self) -> str:
        """Return why there is no session, for clients; empty if there is one."""
        if self.session.welcomed:
            return ""
        return (
            self.session.refusal
            or self.link.port.refusal
            or (f"the gateway has not reached its controller at {self.address} yet")
        )

    def uncounted(self, now_ns: int) -> str:
        """Return why the controller is not to be counted on, as a reason for readiness; empty if it is."""
        if not self.session.welcomed:
            return why(NO_CONTROLLER, self.absent)
        quiet = self.session.silent_for_ns(now_ns) >= self._quiet_ns
        return why(NO_CONTROLLER, f"the one at {self.address} gives no sign of life") if quiet else ""

    def welcome(self, now_ns: int, message: peers.Welcome) -> bool:
        """Begin a session; return False if this is not the controller that it should be."""
        if message.protocol != PROTOCOL_VERSION:
            self._count("protocol_mismatch")
            detail = f"the controller speaks protocol {message.protocol}, this gateway {PROTOCOL_VERSION}"
            self.session.lose(now_ns, f"{detail}; install the same release of Mainspring on both")
            return False
        if not 0 <= message.number < MAX_GATEWAY:
            self._count("bad_messages_from_controller")
            self.session.lose(now_ns, f"the controller gave this gateway the number {message.number}")
            return False
        says = shard_of_gateway(message.number)
        self.astray = says != self.number
        if self.astray:
            self._count("wrong_shard")
            said = (
                f"the controller at {self.address} says that it is shard {says}, and this gateway has it as "
                f"shard {self.number}: give gateways and controllers the same [shards], in the same order"
            )
            if self.session.refusal != said:
                log.warning("%s", said)
            self.session.lose(now_ns, said)
            return False
        self.session.welcome(now_ns)
        return True

    def cut_off(self, now_ns: int) -> bool:
        """End the session if its connection has ended; return whether there was one."""
        return self.session.cut_off(now_ns, self.link.port.obeyed)

    def left(self, now_ns: int, message: peers.Goodbye | peers.Leads) -> None:
        """End the session: the controller stops, or another one leads, which is greeted at once."""
        if isinstance(message, peers.Leads):
            self.session.led(now_ns)
        else:
            self.session.lose(now_ns)

    def refused(self, now_ns: int, message: peers.Refused) -> bool:
        """Take a refusal in; return whether it ends the session."""
        said = f"the controller refused this gateway ({message.code}): {message.detail}"
        refusal = self.session.refused(now_ns, message.code, said)
        if refusal.news:
            log.warning("%s", said)
        if message.code == BAD_MESSAGE:
            self._count("refused_by_controller")
        return refusal.lost

    def keep_session(self, now_ns: int, ready: bool) -> bool:
        """Say hello while the controller does not know this gateway; return whether it was lost just now.

        ``ready``: whether the gateway knows models.
        """
        session = self.session
        session.connected(now_ns, self.link.port.opened)
        lost = session.timed_out(now_ns)
        if lost:
            log.warning("no sign of life from the controller at %s", self.address)
        if session.hello_due(now_ns):
            session.hello_sent(now_ns)
            self.link.greet(self._seed)
            self._miss(now_ns, ready)
        return lost

    def next_wakeup_ns(self) -> int:
        """Return when `keep_session` or ``draining.tick`` is to be called next."""
        return earlier(self.session.next_wakeup_ns(), self.draining.next_wakeup_ns())

    def map_fault(self, told: ShardMap, known: ShardMap) -> str:
        """Return why a map of this controller is not taken, empty if it is; it is at least as new."""
        if self.number:
            return f"shard {self.number} told a map, which the first controller keeps"
        fault = map_fault(told)
        if fault is not None:
            return f"the map can't be used: {fault}"
        if told.addresses != known.addresses:
            return (
                f"its controllers are {', '.join(told.addresses)}, and this gateway's are "
                f"{', '.join(known.addresses)}: give gateways and controllers the same [shards]"
            )
        return ""

    def _miss(self, now_ns: int, ready: bool) -> None:
        """Say once if there has never been a controller for longer than one may be silent."""
        if self._missed_ns is None or now_ns < self._missed_ns:
            return
        self._missed_ns = None
        if (self._several or not ready) and not self.session.refusal:
            log.warning(
                "no controller answers at %s: requests are refused until one does. Is the address right, "
                "and is `mainspring controller` running there?",
                self.address,
            )
