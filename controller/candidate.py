"""One of several controllers that share a lease: it leads, or stands by until it does.

While it stands by it listens like the leader (`Standby`), and follows that (`Following`). Once the lease is
its own, it tells all peers so, and is a `Controller` until it stops, or another one has a higher epoch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from mainspring.controller.config import ControllerConfig
from mainspring.controller.lease import Leadership
from mainspring.controller.lease_files import open_store
from mainspring.controller.lease_keeper import LeaseKeeper
from mainspring.controller.memory import Memory
from mainspring.controller.server import Controller, Door, listen
from mainspring.controller.standby import Following, Standby
from mainspring.messages.roles import Role
from mainspring.scheduler.config import SchedulerConfig
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.stopping import WhenSet

_LOGGER = logging.getLogger(__name__)
HANDOVER_NS: Final = 1_000_000_000
"""Longest time that a controller which stops waits for another one to lead."""
LIMITS = Limits(part_bytes=64 << 20, backlog_bytes=1 << 20, backlog_messages=1_000)
_WAIT_NS: Final = 20_000_000
Make = Callable[[SchedulerConfig, Door], Controller]
"""Makes the controller that leads, with what it serves."""


class OwnTenure:
    """The time in which this controller leads, in one epoch."""

    def __init__(self, core: Leadership, keeper: LeaseKeeper) -> None:
        self._core, self._keeper, self._epoch = core, keeper, core.epoch
        self._until_ns: int | None = None
        """Instant until which it waits, while it stops, for another one to lead."""

    def goes_on(self, now_ns: int, controller: Controller) -> bool:
        """See `server.Tenure`."""
        core = self._core
        self._keeper.alive(now_ns)
        self._keeper.settle()
        core.told(controller.told_epoch)
        controller.may_change(core.grants(now_ns))
        return core.seen == self._epoch and (core.leads or self._until_ns is not None)

    def hands_over(self, now_ns: int, controller: Controller) -> bool:
        """See `server.Tenure`."""
        if self._until_ns is None:
            self._until_ns = now_ns + HANDOVER_NS if controller.followed else now_ns
            self._keeper.release()
        return now_ns < self._until_ns


class Candidate:
    """See the module's docstring."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: SchedulerConfig,
        make: Make,
    ) -> None:
        """Listen; raise as `Controller` does."""
        self._config, self._scheduler, self._make = config, scheduler, make
        self._memory = Memory(config.state_file, config.forget)
        self._shows = present(Role.CONTROLLER, config.keys)
        self._hub = Hub()
        self._listener = listen(self._hub, config, self._shows)
        self.address = self._listener.address
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hub.watch(self._bell, self)
        try:
            store = open_store(config.lease, self.address, self.address)
        except ValueError as error:
            self._hub.close()
            raise OSError(str(error)) from None
        self.core = Leadership(store.ttl_ns)
        """This controller's part in the lease."""
        self.core.told(self._memory.epoch)
        self._keeper = LeaseKeeper(store, self.core, self._ring)

    def serve(self, stop: threading.Event) -> None:
        """Lead or stand by until ``stop`` is set."""
        try:
            with WhenSet(stop, self._ring):
                while not stop.is_set():
                    standby = self._stand_by(stop)
                    if self.core.leads:
                        self._lead(stop, standby)
        finally:
            self._keeper.close()
            self._hub.close(round(self._config.goodbye_linger_ms * 1e6))
            os.close(self._bell)

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _stand_by(self, stop: threading.Event) -> Standby:
        """Stand by until this controller leads, or stops."""
        standby = Standby(self._config, self._listener)
        following: Following | None = None
        while not stop.is_set():
            self._keeper.settle()
            if self.core.leads:
                break
            now_ns = time.monotonic_ns()
            lease = self._keeper.lease
            if lease is not None and lease.held and lease.address not in (standby.leader, self.address):
                standby.leader = lease.address
                if following is not None:
                    following.close()
                following = self._follow(lease.address)
            if following is not None:
                following.turn(now_ns)
            self._keeper.want(warm=following is not None and following.warm)
            while (received := self._listener.receive()) is not None:
                standby.receive(now_ns, *received)
            self.core.told(standby.told_epoch)
            if now_ns >= standby.next_beat_ns:
                standby.beat(now_ns)
            self._hub.wait(_WAIT_NS)
        if following is not None:
            following.close()
        return standby

    def _follow(self, address: str) -> Following | None:
        name = f"standby:{os.getpid()}".encode()
        expects = Identity(Role.CONTROLLER)
        try:
            link = Link(self._hub, address, LIMITS, name=name, shows=self._shows, expects=expects)
        except ValueError as error:
            _LOGGER.warning("the lease names a controller that can't be followed: %s", error)
            return None
        return Following(link, self.address, self._memory)

    def _lead(self, stop: threading.Event, standby: Standby) -> None:
        """Lead until this controller stops, or another one leads."""
        epoch = self.core.epoch
        level = logging.WARNING if standby.leader else logging.INFO
        _LOGGER.log(level, "the controller at %s leads, in epoch %d", self.address, epoch)
        self._memory.began(epoch)
        scheduler = msgspec.structs.replace(self._scheduler, epoch=epoch)
        tenure = OwnTenure(self.core, self._keeper)
        door = Door(self._hub, self._listener, self._memory, standby.clocks(), tenure)
        controller = self._make(scheduler, door)
        standby.lead(epoch)
        controller.serve(stop)
        _LOGGER.warning("the controller at %s does not lead any more", self.address)


def run(
    config: ControllerConfig,
    scheduler: SchedulerConfig,
    stop: threading.Event,
    on_ready: Callable[[str], None] | None,
    make: Make,
) -> None:
    """Run one of several controllers until ``stop`` is set; arguments as of `server.run`."""
    candidate = Candidate(config, scheduler, make)
    if on_ready is not None:
        on_ready(candidate.address)
    candidate.serve(stop)
