"""The journal of an application: what of its states a store does not have yet, and what to ask it. Pure.

A state is written once its changes have been gathered for `GATHER_NS`, by compare-and-set. Who loses adds
what was learnt here to what is there (`Policy.merged`), and writes again. A write whose reply did not come
may have been done: it is asked for again just as it was, and its token in the record tells. So no update is
lost or counted twice, whatever fails and however often.

While a store is away, states change in memory as ever, and what memory has to drop waits here, bounded.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from mainspring.selection.contexts import Contexts
from mainspring.selection.policy import Policy, State
from mainspring.selection.stores.records import (
    CONTEXT,
    SHARED,
    TOTAL,
    Erase,
    Job,
    Outcome,
    Read,
    Record,
    Stored,
    Write,
    decoded,
    encoded,
)

_COUNT: Final = ""
"""Stands for a member in the record of the sums of all contexts' states: how many contexts they are of."""


def with_count(sums: State, count: float) -> State:
    """Return sums as a record has them."""
    return {**sums, _COUNT: (count,)}


def total_fits(policy: Policy, state: State) -> bool:
    """Say whether a record is one of sums, with as many numbers of each member as the policy has."""
    return _COUNT in state and policy.fits(_without_count(state) or policy.init())


def merged_totals(policy: Policy, there: State, before: State, after: State) -> tuple[State, float]:
    """Return the sums that are stored, and the count, with what changed here between two added to them.

    ``before`` is empty where nothing was stored before.
    """
    sums = _plus(_scaled(policy, there), _scaled(policy, after), 1)
    count = there[_COUNT][0] + after[_COUNT][0] - (before[_COUNT][0] if before else 0.0)
    return _plus(sums, _scaled(policy, before), -1), count


def _plus(one: State, other: State, sign: int) -> State:
    """Return sums with others added (1) or taken away (-1); an empty state is nothing."""
    if not other:
        return one
    return {
        member: tuple(
            [
                old + sign * each
                for old, each in zip(one.get(member, (0.0,) * len(numbers)), numbers, strict=True)
            ]
        )
        for member, numbers in other.items()
    }


def _without_count(state: State) -> State:
    return {member: numbers for member, numbers in state.items() if member != _COUNT}


def _scaled(policy: Policy, total: State) -> State:
    """Return sums with the members that entered since they were stored, as of the mean context."""
    sums = _without_count(total)
    if not sums:
        return {}
    count = total[_COUNT][0]
    mean = policy.completed(
        {member: tuple([each / count for each in numbers]) for member, numbers in sums.items()}
    )
    return {
        member: sums.get(member) or tuple([each * count for each in numbers])
        for member, numbers in mean.items()
    }


GATHER_NS: Final = 100_000_000
"""Time for which changes are gathered: the most that a crash loses."""
FRESH_NS: Final = 1_000_000_000
"""Age at which a state that is used is read again: another gateway may have learnt."""
MOST_WAITING: Final = 10_000
"""Contexts to read, contexts that no store knows, and states that memory dropped before they were written."""


class Tracked:
    """Knowledge of a state's record."""

    __slots__ = ("base", "doubt", "fresh", "known", "left", "read_ns", "tokens", "version")

    def __init__(self, base: State | None) -> None:
        self.base = base
        """The state as the record has it or, where there is none, as it began; None if it did not change."""
        self.version = 0
        self.tokens: tuple[int, ...] = ()
        self.known = False
        """True once the store has said what it has."""
        self.read_ns = 0
        self.fresh = False
        """True if it was counted as a new context, which it may not be."""
        self.left: State | None = None
        """The state, where memory dropped it."""
        self.doubt: tuple[int, State] | None = None
        """A write that may have been done, its token and what it wrote; no other one follows before that is
        known, since only one of several could have been, and to tell which all would have to be kept."""


class Journal:
    """A `contexts.Watcher` that keeps a store and memory equal."""

    def __init__(
        self,
        application: str,
        policy: Policy,
        contexts: Contexts,
        token: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """``token`` returns that of the next write; ``wake`` is called when there is something to do."""
        self.application = application
        self._policy = policy
        self._policy_name = policy.family
        self._contexts = contexts
        self._token = token
        self._wake = wake
        self.counts: Counter[str] = Counter()
        """``written``, ``conflicts``, ``lost`` (states that no store got)."""
        self._tracked: dict[str, Tracked] = {SHARED: Tracked(None), TOTAL: Tracked({})}
        self._dirty: OrderedDict[str, int] = OrderedDict()
        """Keys to write, each with the instant from when on."""
        self._wanted: dict[str, None] = {SHARED: None, TOTAL: None}
        self._reading: frozenset[str] = frozenset()
        """Keys that the job under way reads."""
        self._nothing: OrderedDict[str, int] = OrderedDict()
        """Contexts of which the store has nothing, with the instant when it said so."""
        self._left: OrderedDict[str, None] = OrderedDict()
        self._erasing: dict[str, None] = {}
        self._stale: set[str] = set()
        """Keys erased since the job under way was made: what it says of them is no more so."""
        self._written: list[State] = []
        contexts.watcher = self

    def adopt(self, policy: Policy) -> None:
        """Go on with a policy whose states mean the same, of other members."""
        self._policy = policy

    # --- what memory says ---

    def used(self, now_ns: int, context: str | None) -> State | None:
        """Have a state read that was not for long, or never."""
        key = _key(context)
        tracked = self._tracked.get(key)
        if tracked is not None:
            if now_ns - tracked.read_ns >= FRESH_NS:
                self._want(now_ns, key)
            if tracked.left is None:
                return None
            state, tracked.left = tracked.left, None
            del self._left[key]
            return state
        if now_ns - self._nothing.get(key, -FRESH_NS) >= FRESH_NS:
            self._want(now_ns, key)
        if now_ns - self._tracked[TOTAL].read_ns >= FRESH_NS:
            self._want(now_ns, TOTAL)
        return None

    def _want(self, now_ns: int, key: str) -> None:
        if key in self._wanted or key in self._reading or len(self._wanted) >= MOST_WAITING:
            return
        self._wanted[key] = None
        if (tracked := self._tracked.get(key)) is not None:
            tracked.read_ns = now_ns
        self._wake()

    def known(self, context: str | None) -> bool:
        """Say whether the store's state of a context, or that it has none, is known."""
        key = _key(context)
        tracked = self._tracked.get(key)
        return key in self._nothing if tracked is None else tracked.known

    def changing(self, now_ns: int, context: str | None, before: State, *, new: bool) -> None:
        """Note a state that is about to change."""
        key = _key(context)
        tracked = self._tracked.get(key)
        if tracked is None:
            tracked = self._tracked[key] = Tracked(before)
            tracked.known = self._nothing.pop(key, None) is not None
        elif tracked.base is None:
            tracked.base = before
        if context is not None:
            tracked.fresh |= new
            self._mark(now_ns, TOTAL)
        self._mark(now_ns, key)

    def _mark(self, now_ns: int, key: str) -> None:
        if key not in self._dirty:
            self._dirty[key] = now_ns + GATHER_NS
            self._wake()

    def dropped(self, context: str, state: State) -> None:
        """Keep a state that is not written yet; forget that of one that is."""
        key = _key(context)
        if key not in self._dirty:
            self._tracked.pop(key, None)
            return
        self._tracked[key].left = state
        self._left[key] = None
        if len(self._left) > MOST_WAITING:
            oldest, _ = self._left.popitem(last=False)
            del self._tracked[oldest], self._dirty[oldest]
            self.counts["lost"] += 1

    def forget(self, context: str) -> None:
        """Erase a context: what is not written yet now, what the store has with the next job."""
        key = _key(context)
        self._undo(context)
        self._erasing[key] = None
        self._stale.add(key)
        self._wake()

    def _undo(self, context: str) -> None:
        """Take what was learnt of a context since the store had it out of the sums."""
        key = _key(context)
        tracked = self._tracked.pop(key, None)
        self._dirty.pop(key, None)
        self._left.pop(key, None)
        if tracked is None:
            return
        state = self._contexts.peek(context) if tracked.left is None else tracked.left
        if state is not None and tracked.base is not None:
            self._contexts.add(self._policy.completed(state), -1)
            if not tracked.fresh:
                self._contexts.add(self._policy.completed(tracked.base), 1)

    # --- what the store is asked ---

    def due_ns(self) -> int | None:
        """Return when there is something to ask; None if nothing is."""
        if self._erasing or self._wanted:
            return 0
        return next(iter(self._dirty.values()), None)

    def take(self, now_ns: int, most: int, *, all_of_it: bool = False) -> Job:
        """Return what to ask now, of each at most ``most``; ``all_of_it``: also what is being gathered."""
        erasures = [Erase(self.application, key) for key in [*self._erasing][:most]]
        reads = [Read(self.application, key) for key in [*self._wanted][:most]]
        for erasure in erasures:
            del self._erasing[erasure.key]
        for read in reads:
            del self._wanted[read.key]
        ready = itertools.takewhile(lambda each: all_of_it or each[1] <= now_ns, self._dirty.items())
        due = [key for key, _ in itertools.islice(ready, most)]
        self._written, writes = [], []
        for key in due:
            tracked = self._tracked[key]
            token, state = tracked.doubt or (self._token(), self._state(key))
            self._written.append(state)
            record = encoded(self._policy_name, state, tracked.tokens, token)
            writes.append(Write(self.application, key, tracked.version, token, record))
        self._reading = frozenset([each.key for each in reads])
        self._stale.clear()
        return Job(tuple(erasures), tuple(reads), tuple(writes))

    def _state(self, key: str) -> State:
        if key == TOTAL:
            return with_count(self._contexts.sums, self._contexts.count)
        left = self._tracked[key].left
        found = self._contexts.peek(_context(key)) if left is None else left
        assert found is not None, f"a state that is to be written is gone: {key}"
        return found

    def failed(self, job: Job, *, doubtful: bool) -> None:
        """Take back a job that came to nothing, or of which that is not known."""
        self._reading = frozenset()
        self._erasing = {**{each.key: None for each in job.erasures}, **self._erasing}
        self._wanted = {**{each.key: None for each in job.reads}, **self._wanted}
        for write, state in zip(job.writes, self._written, strict=True):
            if doubtful and write.key not in self._stale and write.key in self._tracked:
                self._tracked[write.key].doubt = write.token, state

    def done(self, now_ns: int, job: Job, outcome: Outcome) -> None:
        """Take in what came of a job."""
        self._reading = frozenset()
        for stored in outcome.erased:
            record = decoded(stored)
            if record is not None and record.policy == self._policy_name and self._policy.fits(record.state):
                self._contexts.add(self._policy.completed(record.state), -1)
                self._mark(now_ns, TOTAL)
        for read, stored in zip(job.reads, outcome.read, strict=True):
            self._found(now_ns, read.key, stored)
        for write, state, conflict in zip(job.writes, self._written, outcome.conflicts, strict=True):
            if conflict is not None:
                self.counts["conflicts"] += 1
                self._found(now_ns, write.key, conflict)
                if write.key in self._dirty:
                    # At once: who waited would lose again to one that writes all the time.
                    self._dirty[write.key] = now_ns
                    self._dirty.move_to_end(write.key, last=False)
            elif write.key not in self._stale:
                self.counts["written"] += 1
                self._has(now_ns, write.key, write.token, state)

    def lost_all(self) -> None:
        """Write all states that memory has once more: the store has started empty, and has none."""
        self._nothing.clear()
        for key, tracked in self._tracked.items():
            tracked.version, tracked.tokens, tracked.doubt = 0, (), None
            if tracked.base is not None and key not in self._dirty:
                self._dirty[key] = 0

    def _has(self, now_ns: int, key: str, token: int, state: State) -> None:
        """Note that a write was done."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return
        tracked.base, tracked.version = state, token
        tracked.tokens = (*[each for each in tracked.tokens if each >> 32 != token >> 32], token)
        tracked.doubt, tracked.fresh, tracked.known, tracked.read_ns = None, False, True, now_ns
        self._settle(now_ns, key, state)

    def _settle(self, now_ns: int, key: str, there: State) -> None:
        """Keep a key among those to write only if its state differs from what is there."""
        if key not in self._dirty:
            return
        if self._state(key) != there:
            self._dirty[key] = now_ns + GATHER_NS
            self._dirty.move_to_end(key)
            return
        del self._dirty[key]
        if self._tracked[key].left is not None:
            del self._tracked[key], self._left[key]

    def _found(self, now_ns: int, key: str, stored: Stored) -> None:
        """Take in what a store has under a key."""
        if key in self._stale or key in self._erasing:
            return
        tracked, context = self._tracked.get(key), _context(key)
        record = decoded(stored)
        if record is not None and not (record.policy == self._policy_name and self._fits(key, record.state)):
            record = None
        if tracked is None and record is None:
            self._nothing[key] = now_ns
            while len(self._nothing) > MOST_WAITING:
                self._nothing.popitem(last=False)
            return
        if tracked is None:
            tracked = self._tracked[key] = Tracked(None)
        if not stored.version and tracked.version and context is not None:
            self._undo(context)
            self._contexts.remove(context)
            return
        tracked.read_ns, tracked.known = now_ns, True
        if stored.version == tracked.version:
            return
        if record is None:
            # Another policy's, or erased: what is here stands in its place.
            tracked.version, tracked.tokens, tracked.doubt = stored.version, (), None
            return
        self._merge(now_ns, key, tracked, record)
        tracked.version, tracked.tokens, tracked.doubt = stored.version, record.tokens, None
        tracked.fresh = False
        self._settle(now_ns, key, record.state)

    def _merge(self, now_ns: int, key: str, tracked: Tracked, record: Record) -> None:
        """Have memory keep what the store has and what was learnt here beside it."""
        base, ours = tracked.base, False
        if tracked.doubt is not None and tracked.doubt[0] in record.tokens:
            base, ours = tracked.doubt[1], True
        tracked.base = record.state
        if key == TOTAL:
            self._merge_total(base or {}, record.state)
            return
        context = _context(key)
        mine = self._contexts.peek(context) if tracked.left is None else tracked.left
        if mine is not None and base is not None:
            merged = self._policy.merged(record.state, base, mine)
            if tracked.fresh and not ours:
                # It was taken for a new one, and the sums have it already.
                self._contexts.add(self._policy.completed(base), -1)
        else:
            merged = self._policy.completed(record.state)
        if context is None:
            self._contexts.own = merged
        elif tracked.left is not None:
            tracked.left = merged
        else:
            self._contexts.put(now_ns, context, merged)

    def _fits(self, key: str, state: State) -> bool:
        return self._policy.fits(state) if key != TOTAL else total_fits(self._policy, state)

    def _merge_total(self, base: State, there: State) -> None:
        contexts = self._contexts
        here = with_count(contexts.sums, contexts.count)
        contexts.total(*merged_totals(self._policy, there, base, here))

    def validate(self) -> None:
        """Raise AssertionError if what waits is not tracked, or what is tracked is nowhere."""
        assert self._dirty.keys() <= self._tracked.keys()
        assert self._left.keys() <= self._dirty.keys()
        for key, tracked in self._tracked.items():
            assert (tracked.left is not None) == (key in self._left), key
            assert key in (SHARED, TOTAL) or tracked.left or self._contexts.peek(_context(key)), key


def _key(context: str | None) -> str:
    return SHARED if context is None else CONTEXT + context


def _context(key: str) -> str | None:
    return key.removeprefix(CONTEXT) if key.startswith(CONTEXT) else None
