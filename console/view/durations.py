"""How long the scheduler expects actions to take, now and at any instant that is remembered.

The stream holds all that the scheduler's own estimates are made of, and its own classes make them here. Where
a stream's beginning is missing they are learnt: a picture says them, and each action bears the one that was
used for it, which holds until a measurement or a doubt makes it another.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable

from mainspring.cluster.estimates import Estimates, InferTimes, LoadTime
from mainspring.messages.model import ModelSpec
from mainspring.messages.observing import Estimated

CHANGES = 4_096
"""Changes of each estimate that are remembered at most, at 16 bytes each."""
FOREVER_NS = 1 << 62
FORMER = 256
"""Estimates that nobody has a use for any more that are remembered."""

InferKey = tuple[str, str, tuple[int, ...]]
LoadKey = tuple[str, int]


class Changes:
    """What a number was, before each record of the stream that changed it."""

    __slots__ = ("_before", "_seqs")

    def __init__(self) -> None:
        self._seqs = array("q")
        self._before = array("q")

    def add(self, seq: int, before: int) -> None:
        """Note what it was before a record changed it."""
        seqs = self._seqs
        seqs.append(max(seq, seqs[-1]) if seqs else seq)
        self._before.append(max(-FOREVER_NS, min(before, FOREVER_NS)))
        if len(seqs) > CHANGES:
            del seqs[: CHANGES // 2], self._before[: CHANGES // 2]

    def at(self, seq: int, present: int) -> int:
        """Return what it was before a record, given what it is."""
        index = bisect_left(self._seqs, seq)
        return self._before[index] if index < len(self._seqs) else present


class Infers:
    """Estimates of one executable on one kind of device, with what they were."""

    __slots__ = ("_infer", "_transfer", "since_seq", "times")

    def __init__(self, times: InferTimes, since_seq: int) -> None:
        self.times = times
        self.since_seq = since_seq
        """With which record of the stream they began."""
        self._infer = [Changes() for _ in times.sizes]
        self._transfer = [Changes() for _ in times.sizes]

    def at(self, seq: int, index: int) -> tuple[int, int]:
        """Return EXEC's and the inputs' estimate for a size as they were before a record of the stream."""
        times = self.times
        return (
            self._infer[index].at(seq, times.ns[index]),
            self._transfer[index].at(seq, times.transfer_ns[index]),
        )

    def note(self, seq: int, infer_ns: list[int], transfer_ns: list[int]) -> None:
        """Note what changed with a record, given copies of what was before."""
        for changes, before, present in (
            (self._infer, infer_ns, self.times.ns),
            (self._transfer, transfer_ns, self.times.transfer_ns),
        ):
            if before != present:
                for index, ns in enumerate(before):
                    if present[index] != ns:
                        changes[index].add(seq, ns)

    def learn(self, seq: int, index: int, duration_ns: int) -> None:
        """Take over the estimate that an action bears, if it is another one."""
        estimates_ns = self.times.ns
        if estimates_ns[index] != duration_ns:
            self._infer[index].add(seq, estimates_ns[index])
            estimates_ns[index] = duration_ns

    def replace(self, infer_ns: list[int], transfer_ns: list[int], rank: int) -> None:
        """Begin anew with these."""
        self.times = InferTimes(self.times.sizes, infer_ns, rank)
        self.times.transfer_ns[:] = transfer_ns


class Loads:
    """Estimate of copying so many bytes to one kind of device, with what it was."""

    __slots__ = ("_changes", "since_seq", "time")

    def __init__(self, time: LoadTime, since_seq: int) -> None:
        self.time = time
        self.since_seq = since_seq
        self._changes = Changes()

    def at(self, seq: int) -> int:
        """Return the estimate as it was before a record of the stream."""
        return self._changes.at(seq, self.time.ns)

    def note(self, seq: int, ns: int) -> None:
        """Note what changed with a record, given what was before."""
        if self.time.ns != ns:
            self._changes.add(seq, ns)

    def learn(self, seq: int, duration_ns: int) -> None:
        """Take over the estimate that an action bears, if it is another one."""
        if self.time.ns != duration_ns:
            self._changes.add(seq, self.time.ns)
            self.time.ns = duration_ns


class Durations:
    """All estimates, as long as some model has a use for them."""

    def __init__(self) -> None:
        self._seeds = Estimates()
        self._infers: dict[InferKey, Infers] = {}
        self._loads: dict[LoadKey, Loads] = {}
        self._held: Counter[tuple[str, tuple[int, ...]] | int] = Counter()
        self._former_infers: deque[tuple[InferKey, Infers]] = deque(maxlen=FORMER)
        self._former_loads: deque[tuple[LoadKey, Loads]] = deque(maxlen=FORMER)
        self.seq = 0
        """The record of the stream with which a model or worker last came."""

    def ranked(self, rank: int) -> None:
        """Take what begins from now on as the scheduler does (`SchedulerConfig.estimate_rank`)."""
        self._seeds.rank = rank

    def hold(self, spec: ModelSpec, kinds: Iterable[str]) -> None:
        """Keep a model's estimates until `release`, and begin those on kinds of devices that are there."""
        self._held[spec.executable, spec.batch_sizes] += 1
        self._held[spec.weights_bytes] += 1
        self._seeds.hold(spec)
        for kind in kinds:
            self.infers(kind, spec)
            self.loads(kind, spec)

    def release(self, spec: ModelSpec) -> None:
        """Drop what no other model shares with this one."""
        executable = spec.executable, spec.batch_sizes
        self._held[executable] -= 1
        if self._held[executable] <= 0:
            del self._held[executable]
            for key in [key for key in self._infers if key[1:] == executable]:
                self._former_infers.append((key, self._infers.pop(key)))
        self._held[spec.weights_bytes] -= 1
        if self._held[spec.weights_bytes] <= 0:
            del self._held[spec.weights_bytes]
            for load_key in [key for key in self._loads if key[1] == spec.weights_bytes]:
                self._former_loads.append((load_key, self._loads.pop(load_key)))
        self._seeds.release(spec)

    def infers(self, kind: str, spec: ModelSpec) -> Infers:
        """Return the estimates of a model's executable on a kind of device."""
        key = kind, spec.executable, spec.batch_sizes
        found = self._infers.get(key)
        if found is None:
            found = self._infers[key] = Infers(self._seeds.infer_times(kind, spec), self.seq)
        return found

    def holds(self, spec: ModelSpec) -> bool:
        """Return whether a model that is served has a use for this one's estimates."""
        return (spec.executable, spec.batch_sizes) in self._held and spec.weights_bytes in self._held

    def loads(self, kind: str, spec: ModelSpec) -> Loads:
        """Return the estimate for a model's weights on a kind of device."""
        key = kind, spec.weights_bytes
        found = self._loads.get(key)
        if found is None:
            found = self._loads[key] = Loads(self._seeds.load_time(kind, spec), self.seq)
        return found

    def infer_at(self, kind: str, spec: ModelSpec, seq: int, index: int) -> tuple[int, int]:
        """Return EXEC's and the inputs' estimate for a size as they were before a record of the stream."""
        key = kind, spec.executable, spec.batch_sizes
        known = self._infers.get(key)
        if known is None or known.since_seq > seq:
            former = [each for had, each in self._former_infers if had == key and each.since_seq <= seq]
            known = former[-1] if former else known
        if known is None:
            times = Estimates().infer_times(kind, spec)
            return times.ns[index], times.transfer_ns[index]
        return known.at(seq, index)

    def load_at(self, kind: str, spec: ModelSpec, seq: int) -> int:
        """Return a LOAD's estimate as it was before a record of the stream."""
        key = kind, spec.weights_bytes
        known = self._loads.get(key)
        if known is None or known.since_seq > seq:
            former = [each for had, each in self._former_loads if had == key and each.since_seq <= seq]
            known = former[-1] if former else known
        return Estimates().load_time(kind, spec).ns if known is None else known.at(seq)

    def loaded(self, kind: str, spec: ModelSpec, duration_ns: int) -> None:
        """Learn from a LOAD what to expect of sizes that nobody has a profile of."""
        self._seeds.loaded(kind, spec, duration_ns)

    def tell(self, estimated: Estimated, spec: ModelSpec) -> None:
        """Take over what a picture says."""
        infers = self.infers(estimated.device_kind, spec)
        sizes = len(spec.batch_sizes)
        if len(estimated.infer_ns) == sizes and len(estimated.transfer_ns) == sizes:
            infers.replace([*estimated.infer_ns], [*estimated.transfer_ns], self._seeds.rank)
        self.loads(estimated.device_kind, spec).time = LoadTime(estimated.load_ns, self._seeds.rank)

    def give_up(self, now_ns: int, seq: int, kind: str, spec: ModelSpec, index: int, waited_ns: int) -> None:
        """Take in that an INFER of a size was waited for in vain, as the scheduler does."""
        infers = self.infers(kind, spec)
        infer_ns, transfer_ns = [*infers.times.ns], [*infers.times.transfer_ns]
        infers.times.give_up(now_ns, index, waited_ns)
        infers.note(seq, infer_ns, transfer_ns)

    def doubt(self, now_ns: int, seq: int, spec: ModelSpec, kinds: Iterable[str]) -> None:
        """Doubt a model's estimates on all kinds of devices, as is done before a request is turned away."""
        for kind in kinds:
            infers, loads = self.infers(kind, spec), self.loads(kind, spec)
            infer_ns, transfer_ns, load_ns = [*infers.times.ns], [*infers.times.transfer_ns], loads.time.ns
            infers.times.doubt(now_ns)
            loads.time.doubt(now_ns)
            infers.note(seq, infer_ns, transfer_ns)
            loads.note(seq, load_ns)
