"""Best schedule of one device whose memory is short, with all arrivals known: exact, or within proven limits.

Instants and durations are whole steps. EXEC runs one batch at a time, LOAD copies one model at a time beside
it, and what a LOAD displaces is gone at once. At given prices of EXEC's, LOAD's and the pages' time each
model chooses for itself (`values`), and what that is worth together is above any schedule (`priced`). The
search (`best_short`) goes from instant to instant through all that a schedule can have done until then, and
leaves out what the prices show to be no better than what is known.

Nothing is lost by what else is left out: a batch begins when EXEC, its model or its last request is there; a
LOAD when the one before has ended, or the execution of what it displaces; a batch takes the oldest requests
that it ends in time for, as many as it has room for.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NONE, BEGINNING = -1, -2
ITERATIONS = 120
PATIENCE = 8
"""Iterations without a better bound after which steps are half as long."""
WIDTH = 30_000
"""States of one instant that are followed; the best of the others limits what is proven."""


class Lane(msgspec.Struct, frozen=True):
    """A model's requests, and what it takes to run them; instants and durations in steps."""

    arrivals: list[int]
    due: list[int]
    """Deadlines in the order of the arrivals, ascending."""
    table: list[tuple[int, int]]
    """(batch size, duration), both ascending."""
    load: int
    pages: int
    held: bool
    """True if the device holds it at the beginning."""


class Proven(msgspec.Struct, frozen=True):
    """Answers in time of a schedule that was found, and the most that any schedule can have."""

    found: int
    most: int


class Prices(msgspec.Struct, frozen=True):
    """Prices of a step of EXEC, of LOAD and of all pages together, in requests."""

    exec: Floats
    load: Floats
    pages: Floats


def values(lane: Lane, prices: Prices, pages: int) -> tuple[Floats, Floats]:
    """Return what a model can gain from each step and request on: if it isn't held, and if it is."""
    horizon, count = len(prices.exec), len(lane.due)
    hold = prices.pages * (lane.pages / pages)
    run, copy = (_before(each + hold) for each in (prices.exec, prices.load))
    away, held = np.zeros((horizon + 1, count + 1)), np.zeros((horizon + 1, count + 1))
    for at in range(horizon - 1, -1, -1):
        gain = held[at + 1] - hold[at]
        arrived = bisect_right(lane.arrivals, at)
        for size, duration in lane.table:
            first = bisect_left(lane.due, at + duration)
            if at + duration <= horizon and first < arrived:
                after = np.minimum(np.arange(first, arrived) + size, arrived)
                worth = after - np.arange(first, arrived) - (run[at + duration] - run[at])
                gain[first:arrived] = np.maximum(gain[first:arrived], worth + held[at + duration][after])
        out = away[at + 1].copy()
        if at + lane.load <= horizon:
            out = np.maximum(out, held[at + lane.load] - (copy[at + lane.load] - copy[at]))
        away[at] = _skipping(out)
        held[at] = np.maximum(_skipping(gain), away[at])
    return away, held


def _before(prices: Floats) -> Floats:
    """Return what all steps before each cost together."""
    return np.concatenate([[0.0], np.cumsum(prices)])


def _skipping(gain: Floats) -> Floats:
    """Let each request be passed over."""
    return np.maximum.accumulate(gain[::-1])[::-1]


def _used(lane: Lane, prices: Prices, pages: int, tables: tuple[Floats, Floats]) -> tuple[Floats, ...]:
    """Return the steps of EXEC, LOAD and the part of the pages that a model takes at these prices."""
    away, held = tables
    horizon = len(prices.exec)
    part = lane.pages / pages
    run = _before(prices.exec + prices.pages * part)
    execs, loads, holds = np.zeros(horizon), np.zeros(horizon), np.zeros(horizon)
    at, first, there = 0, 0, lane.held
    while at < horizon:
        value = (held if there else away)[at, first]
        if there and value <= away[at, first] + 1e-12:
            there = False
        if not there:
            until = at + lane.load
            if value <= away[at + 1, first] + 1e-12 or until > horizon:
                at += 1
                continue
            loads[at:until], holds[at:until], at, there = 1.0, part, until, True
            continue
        ran = _batch(lane, held, run, at, first, value)
        until, first = ran or (at + 1, first)
        holds[at:until] = part
        if ran:
            execs[at:until] = 1.0
        at = until
    return execs, loads, holds


def _batch(
    lane: Lane, held: Floats, run: Floats, at: int, first: int, value: float
) -> tuple[int, int] | None:
    """Return when the batch ends that gains this, and the first request behind it; None if none does."""
    arrived = bisect_right(lane.arrivals, at)
    for size, duration in lane.table:
        until = at + duration
        one = max(first, bisect_left(lane.due, until))
        if until >= len(held):
            break
        for begin in range(one, arrived):
            after = min(begin + size, arrived)
            if after - begin - (run[until] - run[at]) + held[until, after] >= value - 1e-9:
                return until, after
    return None


def priced(lanes: Sequence[Lane], pages: int, known: int) -> tuple[float, Prices]:
    """Return the least that prices were found for which no schedule exceeds, and these; ``known`` is what
    some schedule answers.

    Subgradient descent with Polyak's steps towards what is known.
    """
    horizon = max(lane.due[-1] for lane in lanes) + 1
    prices = Prices(np.full(horizon, 0.3), np.zeros(horizon), np.zeros(horizon))
    least, kept, length, since = np.inf, prices, 1.0, 0
    for _ in range(ITERATIONS):
        tables = [values(lane, prices, pages) for lane in lanes]
        value = float(prices.exec.sum() + prices.load.sum() + prices.pages.sum())
        value += sum(float(each[lane.held][0, 0]) for lane, each in zip(lanes, tables, strict=True))
        since += 1
        if value < least - 1e-6:
            least, kept, since = value, prices, 0
        elif since >= PATIENCE:
            length, since, prices = length / 2, 0, kept
            continue
        used = [_used(lane, prices, pages, each) for lane, each in zip(lanes, tables, strict=True)]
        over = [np.sum([each[place] for each in used], axis=0) - 1.0 for place in range(3)]
        step = length * (value - known) / max(1.0, sum(float(each @ each) for each in over))
        exec_, load, hold = prices.exec, prices.load, prices.pages
        moved = [
            np.maximum(0.0, each + step * by) for each, by in zip((exec_, load, hold), over, strict=True)
        ]
        prices = Prices(*moved)
    return least, kept


State = tuple[int, int, int, int, int, tuple[int, ...]]
"""Instant at which EXEC is free and its model, the same of LOAD (`NONE` if it was free before), the models
that are held, and of each model's requests those that are answered or too late; the last as bits."""


class _Bounds:
    """Limits of what a state can still gain, by prices."""

    def __init__(self, lanes: Sequence[Lane], pages: int, prices: Prices) -> None:
        self._exec, self._load, self._pages = (
            list(accumulate([0.0, *each[::-1].tolist()]))[::-1]
            for each in (prices.exec, prices.load, prices.pages)
        )
        """Price of all steps from each on."""
        self._values = [[each.tolist() for each in values(lane, prices, pages)] for lane in lanes]
        self._parts = [lane.pages / pages for lane in lanes]

    def gain(self, now: int, state: State) -> float:
        """Return it from an instant on."""
        exec_at, running, load_at, loading, held, gone = state
        found: float = self._exec[max(now, exec_at)] + self._load[max(now, load_at)] + self._pages[now]
        for place, mask in enumerate(gone):
            first = (~mask & mask + 1).bit_length() - 1
            if not held >> place & 1:
                found += self._values[place][0][now][first]
                continue
            busy = exec_at if place == running else load_at if place == loading else now
            until = max(now, busy)
            found += self._values[place][1][until][first]
            found -= self._parts[place] * (self._pages[now] - self._pages[until])
        return found


def best_short(lanes: Sequence[Lane], pages: int, known: int = 0, width: int = WIDTH) -> Proven:
    """Return what the best schedule answers, exactly if it follows no more states than ``width`` at each
    instant; ``known`` is what some schedule answers."""
    least, prices = priced(lanes, pages, known)
    bounds = _Bounds(lanes, pages, prices)
    instants = sorted({at for lane in lanes for at in lane.arrivals})
    first = sum(1 << place for place, lane in enumerate(lanes) if lane.held)
    start: State = (NONE, NONE, 0, BEGINNING, first, (0,) * len(lanes))
    reached: dict[int, dict[State, int]] = {0: {start: 0}}
    pending, most, left_out = [0], known, 0.0
    while pending:
        now = heapq.heappop(pending)
        states = reached.pop(now)
        if len(states) > width:
            ordered = sorted(states, key=lambda each: -states[each] - bounds.gain(now, each))
            left_out = max(left_out, states[ordered[width]] + bounds.gain(now, ordered[width]))
            states = {each: states[each] for each in ordered[:width]}
        done: dict[State, int] = {}
        while states:
            state, served = states.popitem()
            if done.get(state, -1) >= served:
                continue
            done[state] = served
            most = max(most, served)
            for at, after, more in _following(lanes, pages, instants, now, state):
                total = served + more
                if int(total + bounds.gain(at, after) + 1e-6) <= most:
                    continue
                if at == now:
                    into = states
                elif at in reached:
                    into = reached[at]
                else:
                    into = reached[at] = {}
                    heapq.heappush(pending, at)
                if into.get(after, -1) < total:
                    into[after] = total
    return Proven(most, max(most, min(int(left_out + 1e-6), int(least + 1e-6))))


def _following(
    lanes: Sequence[Lane], pages: int, instants: list[int], now: int, state: State
) -> Iterator[tuple[int, State, int]]:
    """Yield what can be done next: when, the state after it, and the requests that it answers."""
    exec_at, running, load_at, loading, held, gone = state
    free = max(now, exec_at)
    # Those that are too late are gone, so that states which differ in nothing else are one.
    gone = tuple(
        mask | (1 << bisect_left(lane.due, free + lane.table[0][1])) - 1
        for mask, lane in zip(gone, lanes, strict=True)
    )
    if exec_at <= now:
        for place, lane in enumerate(lanes):
            if held >> place & 1 and not (place == loading and load_at > now):
                for until, mask, count in _batches(lane, now, gone[place]):
                    after = (*gone[:place], mask, *gone[place + 1 :])
                    yield now, (until, place, load_at, loading, held, after), count
    if load_at <= now:
        for place, kept in _loads(lanes, pages, now, state):
            until = now + lanes[place].load
            yield now, (exec_at, running, until, place, kept | 1 << place, gone), 0
    place = bisect_right(instants, now)
    later = [at for at in (exec_at, load_at, *instants[place : place + 1]) if at > now]
    if later:
        at = min(later)
        # What ended before is of no account any more; what ends now lets a LOAD begin.
        ran = (exec_at, running) if exec_at >= at else (NONE, NONE)
        loaded = (load_at, loading) if load_at >= at else (NONE, NONE)
        yield at, (*ran, *loaded, held, gone), 0


def _batches(lane: Lane, now: int, gone: int) -> Iterator[tuple[int, int, int]]:
    """Yield the batches that can begin: when they end, what is gone then, and how many they answer."""
    arrived, before = bisect_right(lane.arrivals, now), 0
    for size, duration in lane.table:
        first = bisect_left(lane.due, now + duration)
        taken = [each for each in range(first, arrived) if not gone >> each & 1][:size]
        if len(taken) <= before:
            return
        before = len(taken)
        yield now + duration, gone | sum(1 << each for each in taken), before


def _loads(lanes: Sequence[Lane], pages: int, now: int, state: State) -> Iterator[tuple[int, int]]:
    """Yield the models that can be loaded, each with those that are kept: no more leave than have to."""
    exec_at, running, load_at, loading, held, _ = state
    ended = load_at == now and loading != NONE
    if not ended and not (exec_at == now and running != NONE):
        return
    places = [place for place in range(len(lanes)) if held >> place & 1]
    free = pages - sum(lanes[place].pages for place in places)
    may_leave = [place for place in places if not (place == running and exec_at > now)]
    for place, lane in enumerate(lanes):
        if held >> place & 1 or now + lane.load + lane.table[0][1] > lane.due[-1]:
            continue
        enough: list[int] = []
        for count in range(len(may_leave) + 1):
            for chosen in combinations(may_leave, count):
                mask = sum(1 << each for each in chosen)
                if any(each & mask == each for each in enough):
                    continue
                if free + sum(lanes[each].pages for each in chosen) < lane.pages:
                    continue
                enough.append(mask)
                if ended or mask >> running & 1:
                    yield place, held & ~mask
