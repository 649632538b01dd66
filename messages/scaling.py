"""The messages between a provider of workers and the controller, and the scheduler's decisions about them.

A *provider* starts and stops workers: the launcher on its machine, or a program that asks a cluster manager
for them. It says which kinds it has and which workers it runs (`ProviderHello`, `Running`); the controller
says which it is to run (`Provide`). Both name whole sets, so either may be said again at any time: a message
that was lost, or a controller or provider that starts again, leaves nothing behind that has to be undone.
"""

from __future__ import annotations

import msgspec


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of worker that a provider has."""

    kind: str
    """Name that operators use: the kind of device that its workers have."""
    stem: str
    """Its workers are called this, ``-`` and a number."""
    most: int
    """Workers of the kind that it can run at once."""
    workers: tuple[str, ...] = ()
    """Workers that it runs or is trying to start; not those that it is stopping."""
    fault: str = ""
    """Reason why it can't run one of them now, and when it tries again; empty if it runs all."""
    price: float = 0.0
    """Price of one worker for an hour, in any currency; 0 for not known."""
    moved: tuple[str, ...] = ()
    """The members of `workers` that came from another controller and that this one has not named yet."""
    taken: tuple[str, ...] = ()
    """Names that workers of other controllers have: no new one may be called so."""


class ProviderHello(msgspec.Struct, frozen=True, tag="provider_hello"):
    """A provider's first message, and its first again after each `Refused`."""

    protocol: int
    provider: str
    offers: tuple[Offer, ...]


class Running(msgspec.Struct, frozen=True, tag="running"):
    """The workers that the provider runs now: sent whenever they change."""

    offers: tuple[Offer, ...]


class Provide(msgspec.Struct, frozen=True, tag="provide", omit_defaults=True):
    """Run just these workers of the kind: start those that are missing, and stop all others.

    A command of the scheduler, and sent to the provider as it is.
    """

    provider: str
    kind: str
    workers: tuple[str, ...]
    moved: dict[str, str] = {}
    """Workers that go to another controller, each with that one's address: they are to be run for it."""


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """A line for the operator, who may not see the controller's log: a worker is lost, or is back."""

    text: str


class ProviderSaid(msgspec.Struct, frozen=True, tag="provider_said"):
    """An event: a provider is connected, and this is what it runs."""

    provider: str
    offers: tuple[Offer, ...]
    greets: bool = False
    """True if it has only just connected, so that it may know of nothing that it was told before."""


class ProviderLeft(msgspec.Struct, frozen=True, tag="provider_left"):
    """An event: a provider is gone; the workers that it started may live on, or not."""

    provider: str
    reason: str


class Retire(msgspec.Struct, frozen=True, tag="retire", omit_defaults=True):
    """A note: a worker is to leave, and nothing is loaded there any more.

    ``drained``: others have what they should of its models, and it gets no more work.
    """

    worker: str
    kind: str
    drained: bool = False
    to: str = ""
    """The address of the controller that it is sent to, if it is not to be stopped."""


class Retain(msgspec.Struct, frozen=True, tag="retain"):
    """A note: a worker that was to leave stays, and gets work again."""

    worker: str


class KindStatus(msgspec.Struct, frozen=True):
    """A kind of worker that a provider starts and stops, for a person."""

    kind: str
    provider: str
    """Empty while none is connected."""
    most: int
    """Workers of the kind that the provider can run."""
    wanted: int
    """Number of workers that an operator wants; as many as there were at the start if nobody has said."""
    running: int
    """Workers of it that are connected and are to stay."""
    leaving: tuple[str, ...] = ()
    """Workers that hand over what they hold, finish what they were told, and are stopped then."""
    fault: str = ""
    """Reason why its provider can't run one of them now."""
    price: float = 0.0
    """Price of one worker for an hour, in any currency; 0 for not known."""
    in_time: int = 0
    """Requests that workers of the kind answered in time, since the controller began."""
    late: int = 0
    """Requests that they answered late."""

    @property
    def worth(self) -> str:
        """Return what its workers cost and how well they serve, for a person; empty where neither is known.

        Requests that were refused count for no kind.
        """
        answered = self.in_time + self.late
        price = f"{self.price:g} an hour each" if self.price else ""
        share = f"{self.in_time / answered:.2%} of {answered:,} answers in time" if answered else ""
        return ", ".join(filter(None, (price, share)))

    @property
    def settled(self) -> bool:
        """Return whether there are as many workers as are wanted, and none is on its way out."""
        return self.running == self.wanted and not self.leaving


class KindState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of worker in a snapshot."""

    kind: str
    provider: str
    """Empty while none is connected that has the kind."""
    offer: Offer
    """Last offer of the provider."""
    workers: tuple[str, ...]
    """Workers that the provider is to run, whether it does or not."""
    in_time: int = 0
    """Requests that they answered in time, and late."""
    late: int = 0


FromProvider = ProviderHello | Running


class ScaleState(msgspec.Struct, frozen=True, tag="scale_state", omit_defaults=True):
    """An entry of a snapshot: what is provided, and who leaves."""

    kinds: tuple[KindState, ...] = ()
    retiring: dict[str, tuple[str, bool]] = {}
    """Kind of each worker that leaves, and whether it is drained, by worker."""
    moving: dict[str, str] = {}
    """Address of the other controller that a worker goes to, by worker; all of them are in ``retiring``."""
