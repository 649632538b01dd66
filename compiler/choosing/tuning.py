"""Choosing a kernel's fastest variant on a GPU: a search bounded in time, whose winners the store keeps.

The compiler's model of a GPU (`compiler.tvm.tiles`) ranks the variants of each function; the first few are
built, run in turns and compared by their medians. A winner is kept under the function and the architecture,
so that later compilations into the same store, of this model or another with the same function, generate the
same kernel and search no more. The timer is an argument: nothing here knows a GPU.
"""

from __future__ import annotations

import hashlib
import logging
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.plan import Timer, TimerFailed, Trial
from mainspring.compiler.artifact.store import Store

SECONDS = 60.0
"""Default bound of a model's search. One function takes a few seconds, most of them to compile."""
VARIANTS = 12
"""Most variants of a function that are timed."""
ROUNDS = 9
"""Number of runs of each variant."""
MARGIN = 0.02
"""Share of the time by which a variant has to beat the model's own: less may be noise."""
MOST_FAILURES = 3
"""Failed trials after which a search ends: the GPU can't be used."""

_LOGGER = logging.getLogger(__name__)


class Subject(NamedTuple):
    """A function of loops that can be generated in several ways."""

    key: str
    """Key of everything that the generated kernels depend on besides the choice and the architecture."""
    cost: float
    """Total time by the compiler's model; the longest are timed first."""
    choices: Sequence[Any]
    """Tuples of numbers, the model's own choice first."""
    build: Callable[[Sequence[Any]], Trial]
    """Compiles some of the choices, in this order; raises `CompileError`."""


class Winner(msgspec.Struct, frozen=True):
    """A measured choice as the store keeps it."""

    key: str
    arch: str
    choice: msgspec.Raw
    """Numbers of the choice, as JSON."""
    ns: dict[str, int] = {}
    """The median of each variant that was timed, by its choice as JSON; how it was chosen, for people."""


class Tuner(NamedTuple):
    """Chooses variants for one store."""

    store: Store
    open_timer: Callable[[], AbstractContextManager[Timer]] | None = None
    """Returns a timer for one search; None: only what the store knows is used."""
    seconds: float = SECONDS
    """Bound of a model's search; the trial that is under way when they are over is finished."""
    clock: Callable[[], float] = time.monotonic

    def choose(self, subjects: Sequence[Subject], arch: str) -> dict[str, Any]:
        """Return measured choices by the subjects' keys; for a subject that is missing nothing is known."""
        found: dict[str, Any] = {}
        for each in subjects:
            known = self._known(each, arch)
            if known is not None:
                found[each.key] = known
        new = [each for each in subjects if each.key not in found and len(each.choices) > 1]
        if new and self.open_timer is not None and self.seconds:
            with self.open_timer() as timer:
                found |= self._search(timer, sorted(new, key=lambda each: (-each.cost, each.key)), arch)
        return found

    def _search(self, timer: Timer, subjects: Sequence[Subject], arch: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        failures, end = 0, self.clock() + self.seconds
        for number, each in enumerate(subjects):
            if self.clock() >= end or failures >= MOST_FAILURES:
                _LOGGER.warning(
                    "%d of %d kernels were timed %s; the others are as the compiler's model has them",
                    number - failures,
                    len(subjects),
                    "before the GPU failed" if failures >= MOST_FAILURES else f"in {self.seconds:g} s",
                )
                break
            try:
                choice, ns = fastest(each, timer)
            except (TimerFailed, CompileError) as error:
                failures += 1
                _LOGGER.warning("a kernel's variants could not be timed: %s", error)
                continue
            found[each.key] = choice
            winner = Winner(each.key, arch, _written(choice), ns)
            self.store.put_winner(_name(each.key, arch), msgspec.json.encode(winner))
        return found

    def _known(self, subject: Subject, arch: str) -> Any:
        """Return the choice that the store has; None if it has none that this version can still make."""
        try:
            content = self.store.winner(_name(subject.key, arch))
            kept = msgspec.json.decode(content, type=Winner) if content is not None else None
        except (StoreError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            _LOGGER.warning("a kernel is timed again: what the store has of it can't be read (%s)", error)
            return None
        if kept is None or (kept.key, kept.arch) != (subject.key, arch):
            return None
        wanted = bytes(kept.choice)
        return next((each for each in subject.choices if bytes(_written(each)) == wanted), None)


def fastest(subject: Subject, timer: Timer) -> tuple[Any, dict[str, int]]:
    """Return the fastest of a subject's first variants, and the median of each in ns.

    Raises `TimerFailed` and `CompileError`.
    """
    choices = subject.choices[:VARIANTS]
    order = in_turns(len(choices), ROUNDS, subject.key)
    ns = timer(msgspec.structs.replace(subject.build(choices), order=order))
    if len(ns) != len(order):
        raise TimerFailed(f"{len(order)} runs were asked for and {len(ns)} were timed")
    runs: dict[int, list[int]] = {number: [] for number in range(1, len(choices) + 1)}
    for number, took in zip(order, ns, strict=True):
        runs[number].append(took)
    medians = {number: statistics.median_low(each) for number, each in runs.items()}
    best = min(medians, key=lambda number: (medians[number], number))
    if medians[best] >= medians[1] * (1 - MARGIN):
        best = 1
    told = {bytes(_written(choices[number - 1])).decode(): took for number, took in medians.items()}
    return choices[best - 1], told


def in_turns(count: int, rounds: int, seed: str) -> tuple[int, ...]:
    """Return the numbers from 1 to ``count`` once for each round, in an order that differs in each.

    A clock that changes while they run then changes for all alike, and none always follows the same other.
    """
    generator = random.Random(seed)
    return tuple(number for _ in range(rounds) for number in generator.sample(range(1, count + 1), count))


def _written(choice: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(choice))


def _name(key: str, arch: str) -> str:
    return hashlib.sha256(f"{arch}\n{key}".encode()).hexdigest()
