"""Sessions of providers of workers: hellos, heartbeats, what they run and are told to (`messages.scaling`).

What a provider says becomes an event, and the scheduler's `Provide` a message to it. A kind has one provider
at a time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Dropped, Outbox, Wire
from mainspring.controller.peer_lifecycle import kind_fault, name_fault, protocol_detail
from mainspring.controller.sessions import RETIRED_REMEMBERED, PeerSession
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import encode
from mainspring.messages.peers import Goodbye, Welcome
from mainspring.messages.roles import Role
from mainspring.messages.scaling import Notice, Offer, Provide, ProviderHello, ProviderLeft, ProviderSaid
from mainspring.transport.bounds import Delivery

_LOGGER = logging.getLogger(__name__)
MOST_PROVIDERS: Final = 64
MOST_KINDS: Final = 64
"""Kinds that one provider may have."""
MOST_WORKERS: Final = 4096
"""Workers of one kind."""
MOST_CHARACTERS: Final = 500
"""Longest text of what is wrong with a kind, in characters; the rest is cut off."""


class Provider(PeerSession):
    """The session of one provider."""

    kind = "provider"

    def __init__(self, peer: bytes, name: str, number: int, now_ns: int) -> None:
        super().__init__(peer, name, number, now_ns)
        self.offers: tuple[Offer, ...] = ()
        """Its last offers."""


class Providers:
    """Begins and ends the sessions of providers, and carries what they are told and say."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        wire: Wire,
        outbox: Outbox,
        dropped: Dropped,
        greeted: Callable[[int], None],
        places: Mapping[str, str],
    ) -> None:
        """``greeted`` is called with the time once a provider has said what it has; ``places`` has the
        controllers that workers were sent to (`Journal.places`)."""
        self._timeout_ns = round(config.heartbeat_timeout_ms * 1e6)
        self._scheduler = scheduler
        self._wire = wire
        self._outbox = outbox
        self._dropped = dropped
        self._greeted = greeted
        self._places = places
        self._providers: dict[bytes, Provider] = {}
        self._retired: OrderedDict[bytes, None] = OrderedDict()
        """Processes that lost their name to a newer one, the oldest first."""
        self._number = 0
        self._last_beat_ns = 0

    def find(self, peer: bytes) -> Provider | None:
        """Return the session of a peer."""
        return self._providers.get(peer)

    def hello(self, now_ns: int, peer: bytes, hello: ProviderHello) -> None:
        """Begin a session, or refuse it; earlier ones of its name and of its process end."""
        refusal = self._refusal(peer, hello)
        if refusal is not None:
            self._outbox.refuse(now_ns, peer, *refusal)
            self.refused(now_ns, peer)
            return
        for former in list(self._providers.values()):
            if former.peer == peer:
                self.end(now_ns, former, "it said hello again", said=former.name != hello.provider)
            elif former.name == hello.provider:
                detail = f"a newer process is provider {former.name!r} now"
                self._outbox.refuse(now_ns, former.peer, "name_taken", detail)
                self.end(now_ns, former, "a newer process took its name", said=False)
                self._retire(former.peer)
        self._retired.pop(peer, None)
        self._number += 1
        provider = Provider(peer, hello.provider, self._number, now_ns)
        self._providers[peer] = provider
        self._send(now_ns, provider, Welcome(PROTOCOL_VERSION, provider.number))
        _LOGGER.info("%s begins", provider)
        provider.offers = _bounded(hello.offers)
        own = tuple([self._own(now_ns, provider, offer) for offer in provider.offers])
        self._scheduler.handle(now_ns, ProviderSaid(provider.name, own, greets=True))
        self._greeted(now_ns)

    def refused(self, now_ns: int, peer: bytes) -> None:
        """End the session of a peer whose next hello was refused, if it has one."""
        provider = self._providers.get(peer)
        if provider is not None:
            self.end(now_ns, provider, "its next hello was refused")

    def running(self, now_ns: int, provider: Provider, offers: Sequence[Offer]) -> None:
        """Take in what a provider runs now."""
        provider.heard_ns = now_ns
        fault = self._offers_fault(provider.peer, provider.name, offers)
        if fault is not None:
            self._outbox.refuse(now_ns, provider.peer, *fault)
            return
        bounded = _bounded(offers)
        if bounded != provider.offers:
            provider.offers = bounded
            self._scheduler.handle(now_ns, ProviderSaid(provider.name, bounded))

    def provide(self, now_ns: int, command: Provide) -> None:
        """Tell a provider what to run; one that is gone is told when it is back."""
        for provider in list(self._providers.values()):
            if provider.name == command.provider:
                self._send(now_ns, provider, command)
                return
        self._dropped.count("provider_gone")

    def end(self, now_ns: int, provider: Provider, why: str, *, said: bool = True) -> None:
        """End a session; the scheduler is told unless another one follows at once."""
        if self._providers.get(provider.peer) is not provider:
            return
        _LOGGER.info("%s ends: %s", provider, why)
        del self._providers[provider.peer]
        if said:
            self._scheduler.handle(now_ns, ProviderLeft(provider.name, why))

    def beat(self, now_ns: int) -> None:
        """Ping all, and end the sessions of those that have been silent for too long."""
        last_ns, self._last_beat_ns = self._last_beat_ns, now_ns
        suspended = now_ns - last_ns > self._timeout_ns // 2
        for provider in list(self._providers.values()):
            if suspended:
                provider.heard_ns = now_ns
            silent_ns = now_ns - provider.heard_ns
            if silent_ns > self._timeout_ns:
                self._dropped.count("peer_silent")
                why = f"silent for {silent_ns / 1e6:.0f} ms"
                self._outbox.refuse(now_ns, provider.peer, "unknown_session", why)
                self.end(now_ns, provider, why)
                continue
            self._send(now_ns, provider, provider.ping(now_ns))

    def _own(self, now_ns: int, provider: Provider, offer: Offer) -> Offer:
        """Return an offer without the workers that went to another controller, of which the provider has not
        heard, and tell it."""
        moved = {name: self._places[name] for name in offer.workers if name in self._places}
        if not moved:
            return offer
        own = tuple([name for name in offer.workers if name not in moved])
        self._send(now_ns, provider, Provide(provider.name, offer.kind, own, moved))
        return msgspec.structs.replace(offer, workers=own)

    def notify(self, text: str) -> None:
        """Give every provider a line for its operator; one whose connection has ended does without."""
        for provider in self._providers.values():
            self._wire.send(provider.peer, (encode(Notice(text)),))

    def goodbye(self, detail: str) -> None:
        """Tell all that the controller stops."""
        for provider in self._providers.values():
            self._wire.send(provider.peer, (encode(Goodbye(detail)),))

    def _retire(self, peer: bytes) -> None:
        """Remember that a process lost its name: it does not take it back while the newer one lives."""
        self._retired[peer] = None
        if len(self._retired) > RETIRED_REMEMBERED:
            self._retired.popitem(last=False)

    def _send(self, now_ns: int, provider: Provider, message: msgspec.Struct) -> None:
        delivery = self._wire.send(provider.peer, (encode(message),))
        if delivery is not Delivery.SENT:
            self._dropped.count(delivery.value)
            self.end(now_ns, provider, "its connection ended")

    def _refusal(self, peer: bytes, hello: ProviderHello) -> tuple[str, str] | None:
        if hello.protocol != PROTOCOL_VERSION:
            return "protocol_mismatch", protocol_detail(hello.protocol)
        fault = name_fault(hello.provider)
        if fault is not None:
            return "bad_message", f"the hello can't be used: {fault}"
        certificate = self._wire.certificate(peer)
        if certificate is not None:
            foreign = certificate.name_fault(Role.PROVIDER, hello.provider.encode())
            if foreign:
                return "name_taken", foreign
        if len(self._providers) >= MOST_PROVIDERS and peer not in self._providers:
            return "too_many_peers", f"{MOST_PROVIDERS} providers are connected, which is the bound"
        if peer in self._retired and any(each.name == hello.provider for each in self._providers.values()):
            return "name_taken", "a newer process has this name; stop this one, or give it a name of its own"
        return self._offers_fault(peer, hello.provider, hello.offers)

    def _offers_fault(self, peer: bytes, name: str, offers: Sequence[Offer]) -> tuple[str, str] | None:
        """Return why a provider can't have these kinds, if it can't."""
        if len(offers) > MOST_KINDS:
            return "bad_message", f"it has {len(offers)} kinds of workers; {MOST_KINDS} are the most"
        kinds = [offer.kind for offer in offers]
        workers = [worker for offer in offers for worker in offer.workers]
        if len(set(kinds)) < len(kinds) or len(set(workers)) < len(workers):
            return "bad_message", "a kind, or a worker, is in what it runs twice"
        for offer in offers:
            fault = _offer_fault(offer)
            if fault is not None:
                return "bad_message", f"what it runs of kind {offer.kind[:100]!a} can't be used: {fault}"
        for other in self._providers.values():
            taken = [offer.kind for offer in other.offers if offer.kind in kinds]
            if other.name != name and other.peer != peer and taken:
                detail = f"{other.name} has workers of kind {taken[0]} already; a kind has one provider"
                return "name_taken", detail
        return None


def _offer_fault(offer: Offer) -> str | None:
    """Return what is wrong with a kind that a provider says it has, if anything is."""
    if (fault := kind_fault(offer.kind)) is not None:
        return fault
    if not 0 <= offer.most <= MOST_WORKERS or len(offer.workers) > MOST_WORKERS:
        return f"there can be 0 to {MOST_WORKERS:,} workers"
    for name in (offer.stem, *offer.workers):
        fault = name_fault(name)
        if fault is not None:
            return fault.replace("its name", "a worker's name", 1)
    return None


def _bounded(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return offers with as much of what is wrong as a person reads, in characters that a terminal shows."""
    return tuple([msgspec.structs.replace(each, fault=_shown(each.fault)) for each in offers])


def _shown(fault: str) -> str:
    return "".join([each if each.isprintable() else " " for each in fault[:MOST_CHARACTERS]])
