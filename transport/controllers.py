"""The connections to the controllers of one cluster of which one leads and the others stand by.

They are used like one `Link`, to the controller that is obeyed (`Allegiance`). Over the others the hellos are
sent too and pings answered, so that whoever leads next knows this process and its clock; and what they say
about who leads is taken in. Whatever else comes from one that is not obeyed is answered with `Deposed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from mainspring.messages.codec import Codec, encode
from mainspring.messages.peers import Deposed, Goodbye, Leads, Ping, Pong, Refused, Welcome
from mainspring.transport.bounds import Delivery
from mainspring.transport.channel import Message
from mainspring.transport.hub import Hub, Port
from mainspring.transport.link import Link

SEPARATOR = ","
"""Separates the addresses of controllers of which one leads."""
STANDBY = "standby"
"""The refusal of a controller that does not lead."""
_HEAD_BYTES = 20
"""Bytes in which a message has its type."""
_ASIDE: Codec[Welcome | Leads | Ping | Refused | Goodbye] = Codec(Welcome | Leads | Ping | Refused | Goodbye)
"""Messages of controllers that are not obeyed."""


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses in a text of one or several."""
    return tuple(each.strip() for each in text.split(SEPARATOR))


def connect(
    hub: Hub, address: str, begin: Callable[[Hub, str], Link], clock: Callable[[], int] = monotonic_ns
) -> Link | ControllerLinks:
    """Connect to a controller, or to all of those whose addresses these are."""
    found = addresses_of(address)
    return begin(hub, address) if len(found) == 1 else ControllerLinks(hub, found, begin, clock)


class _Sharing(Hub):
    """The hub as the links of a group see it: what they have belongs to the group."""

    def __init__(self, hub: Hub, group: ControllerLinks) -> None:
        self.epoll = hub.epoll
        self._hub = hub
        self._group = group
        self.links: dict[int, Port] = {}
        """The link of each descriptor."""

    def add(self, port: Port) -> None:
        self._hub.add(port)

    def drop(self, port: Port) -> None:
        self._hub.drop(port)

    def own(self, fd: int, port: Port) -> None:
        self.links[fd] = port
        self._hub.own(fd, self._group)

    def disown(self, fd: int) -> None:
        self.links.pop(fd, None)
        self._hub.disown(fd)

    def due(self, at_ns: int) -> None:
        self._hub.due(at_ns)


class ControllerLinks:
    """See the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        addresses: Sequence[str],
        begin: Callable[[Hub, str], Link],
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        """Begin to connect; raise what ``begin`` raises."""
        self._clock = clock
        self._sharing = _Sharing(hub, self)
        self.links = [begin(self._sharing, each) for each in addresses]
        self.allegiance = Allegiance()
        self._hello: Sequence[Any] | None = None
        """The last hello, for controllers that come later."""
        self._greeted = [0] * len(self.links)
        """Number of each link's connections that the hello was sent over, or more."""

    @property
    def _leader(self) -> Link | None:
        leader = self.allegiance.leader
        return None if leader is None else self.links[leader]

    @property
    def epoch(self) -> int:
        """Return the highest epoch that has welcomed this process."""
        return self.allegiance.epoch

    @property
    def connected(self) -> bool:
        """Say whether there is a connection to any controller."""
        return any(link.connected for link in self.links)

    @property
    def obeyed(self) -> bool:
        """Say whether there is a connection to the controller that is obeyed."""
        leader = self._leader
        return leader is not None and leader.connected

    @property
    def opened(self) -> int:
        """Return the number of connections so far."""
        return sum(link.opened for link in self.links)

    @property
    def refusal(self) -> str:
        """Return why one end refused the other in a last attempt; empty if neither did."""
        return next((link.refusal for link in self.links if link.refusal), "")

    def send(self, parts: Sequence[Any]) -> Delivery:
        """Send the controller that is obeyed a message."""
        leader = self._leader
        return Delivery.GONE if leader is None else leader.send(parts)

    def greet(self, parts: Sequence[Any]) -> Delivery:
        """Send all controllers a hello; one that is connected later is sent it then."""
        self._hello = parts
        sent = [self._greet(number, link) for number, link in enumerate(self.links) if link.connected]
        return Delivery.SENT if Delivery.SENT in sent else Delivery.GONE

    def _greet(self, number: int, link: Link) -> Delivery:
        assert self._hello is not None, "nothing to greet with"
        self._greeted[number] = link.opened
        return link.send(self._hello)

    def receive(self) -> Message | None:
        """Return the next message of the controller that is obeyed, or what says that another one leads."""
        leader = self._leader
        while leader is not None and (parts := leader.receive()) is not None:
            if self._is_obeyed(leader, parts):
                return parts
        for number, link in enumerate(self.links):
            if link is leader:
                continue
            if self._hello is not None and link.opened > self._greeted[number] and link.connected:
                self._greet(number, link)
            while (parts := link.receive()) is not None:
                if self._aside(number, link, parts):
                    return parts
        return None

    def _is_obeyed(self, leader: Link, parts: Message) -> bool:
        """Take in the epoch of another welcome of the leader; return whether its message counts."""
        head = bytes(parts[0][:_HEAD_BYTES])
        if b"welcome" not in head and b"leads" not in head:
            return True
        said = _said(parts)
        number = self.allegiance.leader
        assert number is not None, "a leader has a number"
        if not isinstance(said, Welcome | Leads) or self.allegiance.follows(number, said.epoch):
            return True
        leader.send((encode(Deposed(self.epoch)),))
        return False

    def _aside(self, number: int, link: Link, parts: Message) -> bool:
        """Take in what a controller that is not obeyed says; return whether its message counts."""
        said = _said(parts)
        match said:
            case Welcome(epoch=epoch) | Leads(epoch=epoch) if self.allegiance.follows(number, epoch):
                return True
            case Ping(sequence=sequence, sent_ns=sent_ns):
                now_ns = self._clock()
                link.send((encode(Pong(sequence, sent_ns, now_ns, self._clock())),))
            case Refused(code=code):
                return code != STANDBY and self._leader is None
            case Goodbye():
                pass
            case _:
                link.send((encode(Deposed(self.epoch)),))
        return False

    # --- a port of the hub ---

    def pending(self) -> bool:
        """Say whether a message may have been read already."""
        return any(link.pending() for link in self.links)

    def event(self, fd: int, mask: int) -> bool:
        """Serve the link whose descriptor it is; what has opened may have to be greeted."""
        link = self._sharing.links[fd]
        return link.event(fd, mask) or True

    def tick(self, now_ns: int) -> int:
        """Do nothing: the links have ticks of their own."""
        return now_ns + (1 << 61)

    def close(self, until_ns: int) -> None:
        """Close all connections."""
        for link in self.links:
            link.close(until_ns)


def _said(parts: Message) -> Welcome | Leads | Ping | Refused | Goodbye | None:
    """Return what a message says about who leads; None for one about anything else."""
    try:
        return _ASIDE.decode(parts[0])
    except ValueError:
        return None


class Allegiance:
    """The one of several controllers that a process obeys: that of the highest epoch that welcomed it.

    A lease only agrees who is to lead (`controller.lease`). That a controller which has lost it without
    knowing, because it was stopped or cut off, does no harm any more rests on this rule alone.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """The highest epoch so far; 0 before any."""
        self.leader: int | None = None
        """Index of the controller of that epoch; None before any."""

    def follows(self, controller: int, epoch: int) -> bool:
        """Take in that a controller leads in an epoch; return whether it is the one to obey from now on."""
        if epoch < self.epoch or (epoch == self.epoch and self.leader not in (None, controller)):
            return False
        self.epoch, self.leader = epoch, controller
        return True

    def validate(self) -> None:
        """Check what is always so; raise AssertionError."""
        assert self.epoch >= 0, f"epoch {self.epoch}"
        assert self.leader is not None or self.epoch == 0, f"epoch {self.epoch} is of no controller"
