"""The faults of a town, and their instants: a list that a seed draws, of which any part can be left out."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

MS: Final = 1_000_000
FIRST_NS: Final = 1_500 * MS
SPAN_NS: Final = 3_000 * MS
"""Faults begin within this time after the first may."""
STANDBY: Final = "controller1"
PLACES: Final = {
    "stall": ("pair",),
    "partition": ("process",),
    "break": ("pair",),
    "crash": ("process",),
    "power": ("process",),
    "pause": ("process",),
    "takeover": ("controller",),
    "step": ("process",),
    "slow": ("worker",),
    "hang": ("worker",),
    "fail": ("worker",),
    "lost": ("worker",),
    "full": ("worker",),
}
"""The kinds of faults, and what each befalls."""


class Fault(msgspec.Struct, frozen=True):
    """One fault."""

    kind: str
    """One of `PLACES`."""
    at_ns: int
    for_ns: int
    """Time that it lasts."""
    where: str
    """The process that it befalls; of a pair the first."""
    to: str = ""
    """The second of a pair."""
    amount: float = 0.0
    """Its degree, where there is one."""

    @property
    def end_ns(self) -> int:
        """Return when it is over."""
        return self.at_ns + self.for_ns

    def __str__(self) -> str:
        between = f" -> {self.to}" if self.to else ""
        degree = f" ({self.amount:.3g})" if self.amount else ""
        begin, end = self.at_ns / 1e9, self.end_ns / 1e9
        return f"{begin:7.3f} s to {end:7.3f} s  {self.kind} {self.where}{between}{degree}"


def drawn(draws: Random, processes: list[str], pairs: list[tuple[str, str]], count: int) -> list[Fault]:
    """Return faults in the order of time; ``pairs`` are those that talk."""
    workers = [each for each in processes if each.startswith("worker")]
    found = [_one(draws, processes, pairs, workers) for _ in range(count)]
    return sorted(found, key=lambda each: each.at_ns)


def _one(
    draws: Random, processes: list[str], pairs: list[tuple[str, str]], workers: list[str]
) -> Fault:  # fmt: skip
    kind = draws.choice(list(PLACES))
    at_ns = FIRST_NS + round(draws.random() * SPAN_NS)
    # Mostly short, seldom as long as 10 s.
    for_ns = round(min(10.0, draws.lognormvariate(-1.0, 1.3)) * 1e9)
    if PLACES[kind] == ("pair",):
        where, to = draws.choice(pairs)
        if draws.random() < 0.5:
            where, to = to, where
        return Fault(kind, at_ns, 0 if kind == "break" else for_ns, where, to, draws.random() * 0.2)
    if kind == "takeover":
        return Fault(kind, at_ns, 0, STANDBY)
    where = draws.choice(workers if PLACES[kind] == ("worker",) else processes)
    if kind == "step":
        return Fault(kind, at_ns, 0, where, amount=draws.lognormvariate(-4.0, 2.0))
    if kind == "slow":
        return Fault(kind, at_ns, for_ns, where, amount=draws.choice((1.5, 3.0, 10.0, 50.0)))
    if kind == "hang":
        # Long enough, more often than not, for the controller to give the worker up.
        for_ns = round(min(10.0, draws.lognormvariate(0.7, 0.8)) * 1e9)
    if kind in ("crash", "power"):
        for_ns = max(for_ns, 20 * MS)
    return Fault(kind, at_ns, for_ns, where)
