"""Policies that learn nothing: one member, fixed shares of requests, a vote, and `linear`'s members. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mainspring.messages.applications import LINEAR
from mainspring.selection.linear.model import LinearOptions
from mainspring.selection.outputs import Output
from mainspring.selection.policy import Inputs, Policy, Selected, State, drawn

_SPAN = 1 << 64


class StaticOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `static`."""

    member: str = ""
    """The member that answers; empty: the first."""


class Fixed(Policy):
    """A policy that feedback does not change."""

    def learn(
        self, state: State, losses: Mapping[str, Sequence[float]], selected: Mapping[str, Selected]
    ) -> State:
        """Return the state as it is."""
        return state


class Static(Fixed):
    """One member answers all requests."""

    name = "static"
    Options = StaticOptions

    def __init__(self, members: Sequence[str], output: Output, options: msgspec.Struct) -> None:
        """Raise ValueError if the option names no member."""
        super().__init__(members, output, options)
        self._member = self.options.member or self.members[0]
        if self._member not in self.members:
            raise ValueError(f"option member is {self._member!r}; choose one of {', '.join(self.members)}")

    def shares(self, state: State) -> Mapping[str, float]:
        """Return the whole for the member."""
        return {each: float(each == self._member) for each in self.members}

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return the member."""
        return {self._member: 1.0}


class AbOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `ab`."""

    shares: tuple[float, ...] = ()
    """Each member's share of the requests, in the order of the members; empty: equal ones."""


class Ab(Fixed):
    """Each member answers a fixed share of requests, always the same one for a context."""

    name = "ab"
    Options = AbOptions

    def __init__(self, members: Sequence[str], output: Output, options: msgspec.Struct) -> None:
        """Raise ValueError if the shares are not one of at least 0 for each member."""
        super().__init__(members, output, options)
        given = self.options.shares or (1.0,) * len(self.members)
        if len(given) != len(self.members) or not min(given) >= 0 or not 0 < sum(given) < math.inf:
            raise ValueError(
                f"option shares is {list(given)} for {len(self.members)} members; give each one a share of "
                "at least 0"
            )
        self._shares = {member: share / sum(given) for member, share in zip(self.members, given, strict=True)}

    def shares(self, state: State) -> Mapping[str, float]:
        """Return the fixed shares."""
        return self._shares

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return a context's member, which shares and names decide, or one that is drawn by the shares."""
        if context is None:
            at = generator.random()
        else:
            digest = hashlib.blake2b(context.encode(), digest_size=8).digest()
            at = int.from_bytes(digest, "big") / _SPAN
        member = drawn(self._shares, at)
        return {member: self._shares[member]}


class Majority(Fixed):
    """All members answer, and each counts the same."""

    name = "majority"

    def select(
        self, state: State, inputs: Inputs, generator: np.random.Generator, context: str | None = None
    ) -> dict[str, float]:
        """Return all members in their owner's order."""
        return dict.fromkeys(self.members, 1.0)


class Linear(Majority):
    """The policy in front of `selection.linear`: weights of each user over features of items (Velox).

    The member that computes features is asked, if there is one; `LinearApplication` does the rest.
    """

    name = LINEAR
    Options = LinearOptions
