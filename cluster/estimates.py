"""How long actions take, by the last 10 measured durations, seeded from profiles.

Clockwork, section 5.3 ("measurements of past 10 actions duration, stratified by action type, model and
batch size"). INFER is kept for each (device kind, executable, batch size), so that a new copy of a known
model starts with a good estimate; LOAD for each (device kind, weights bytes).

An estimate is their maximum, as Clockwork's is, while they are about equally long, which on a GPU they are.
Where they spread it is the third-largest of ten: beside others' work a CPU has outliers of several times the
median, no measurement foretells the next, and a maximum that holds for ten more executions turns away many
more requests than it saves (docs/measurements.md, "Estimates where durations spread").
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from mainspring.cluster.seeds import indices_by_rows, infer_seeds, profile_of
from mainspring.cluster.spread import Spreads
from mainspring.messages.model import ModelSpec
from mainspring.messages.snapshot import DurationState, InferEstimate, LoadEstimate, LoadRates

SAMPLES: Final = 10
STALE_NS: Final = 1_000_000_000
"""An estimate that was not measured for this long may be doubted, whatever it is."""
SOONEST_NS: Final = 10_000_000
"""Nothing that was measured within this time is doubted."""
RANK: Final = 3
"""Of ten durations that spread, the estimate is the one of this rank, the largest being the first; of fewer,
it is no less than their median."""
HIGHEST_RANK: Final = 5
"""Of ten: no estimate is below the median."""
EVEN: Final = 11, 10
"""Durations spread if the maximum is more than 11/10 of the one that would then be the estimate."""
OUTLYING: Final = 2
"""An estimate of more than this many times the median of at least `FEWEST` samples is an outlier."""
FEWEST: Final = 3
"""Of two samples that differ, neither is known to be the exception."""
UNKNOWN_LOAD_NS_PER_BYTE = 0.25
"""Copy cost assumed of a device that has never loaded anything: 4 GB/s."""
UNKNOWN_OPEN_NS: Final = 500_000_000
"""Duration assumed of an OPEN on a device that has never opened anything; one of the first ten samples."""


class Rolling:
    """An estimate by a seed and then by the last 10 samples."""

    __slots__ = (
        "_doubted",
        "_doubts",
        "_estimate_ns",
        "_halfway_ns",
        "_rank",
        "_review_ns",
        "_samples",
        "_since_ns",
    )

    def __init__(self, seed_ns: int, *, seeds: int = 1, rank: int = RANK) -> None:
        """Begin with a seed that counts as ``seeds`` samples; ``rank`` is as `Estimates.rank`."""
        self._samples: deque[int] = deque((seed_ns,) * seeds, maxlen=SAMPLES)
        self._rank = rank
        self._estimate_ns = seed_ns
        self._since_ns = 0
        """When it was last doubted, or measured to be about as long; what is far shorter contradicts it."""
        self._review_ns = 0
        """Before this there is nothing to doubt."""
        self._doubts = 0
        """How many doubts of outliers in a row no measurement has borne out."""
        self._doubted = False
        """Whether samples were forgotten, and what was measured since does not say if that was right."""
        self._halfway_ns = 0
        """Between what the last doubt forgot and what it kept: below it a measurement bears the doubt out."""

    @property
    def estimate_ns(self) -> int:
        """The estimate."""
        return self._estimate_ns

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self._samples)

    def state(self) -> DurationState:
        """Return all that it knows."""
        return DurationState(
            tuple(self._samples),
            self._estimate_ns,
            self._since_ns,
            self._review_ns,
            self._doubts,
            self._doubted,
            self._halfway_ns,
        )

    def restore(self, state: DurationState) -> int:
        """Know what another one knew, and return the estimate."""
        self._samples = deque(state.samples, maxlen=SAMPLES)
        self._estimate_ns = state.estimate_ns
        self._since_ns = state.since_ns
        self._review_ns = state.review_ns
        self._doubts = state.doubts
        self._doubted = state.doubted
        self._halfway_ns = state.halfway_ns
        return self._estimate_ns

    def add(self, now_ns: int, duration_ns: int) -> int:
        """Take one measured duration in and return the new estimate."""
        self._samples.append(duration_ns)
        if self._doubted:
            self._weigh(duration_ns)
        self._estimate_ns = self._of_samples()
        if OUTLYING * duration_ns >= self._estimate_ns:
            self._since_ns = now_ns
        self._review_ns = self._since_ns + SOONEST_NS
        return self._estimate_ns

    def give_up(self, now_ns: int, duration_ns: int) -> int:
        """Take in that an action was waited for in vain, as often as it takes for every rank to count it.

        The shortest of what was measured before stays: were nothing else known than how long was waited, no
        doubt could ever have the action tried again.
        """
        least_ns = min(self._samples)
        for _ in range(HIGHEST_RANK):
            self.add(now_ns, duration_ns)
        if least_ns < min(self._samples):
            self._samples[0] = least_ns
            self._estimate_ns = self._of_samples()
        return self._estimate_ns

    def _weigh(self, duration_ns: int) -> None:
        """Look whether a measurement bears the last doubt out, or most of them contradict it."""
        if duration_ns < self._halfway_ns:
            self._doubts = 0
            self._doubted = False
        elif self._median_ns() >= self._halfway_ns:
            self._doubted = False

    def _median_ns(self) -> int:
        return sorted(self._samples)[(len(self._samples) - 1) // 2]

    def _of_samples(self) -> int:
        """Return the estimate that follows from the samples; in doubt, their maximum: it may be borne out."""
        ranked = sorted(self._samples)
        rank = 1 if self._doubted else min(self._rank, (len(ranked) + 1) // 2)
        upper_ns = ranked[-rank]
        factor, divisor = EVEN
        most_ns = ranked[-1]
        return most_ns if divisor * most_ns <= factor * upper_ns else upper_ns

    def doubt(self, now_ns: int) -> int:
        """Return the estimate for a request that it turns away.

        Outliers among the samples can make an action look too long for every deadline; then it is never
        run again, and no measurement ever corrects the estimate. So once nothing was measured for a while,
        samples above the median are forgotten: that drops outliers, and changes little where a device has
        really become slow.

        An outlier is doubted after as long as it took itself, so that it costs no more than twice its own
        time. Each doubt that no measurement bears out makes the next one wait twice as long, up to
        `STALE_NS`, so that a device that has really become slow is seldom tried in vain. An estimate that is
        no outlier is doubted after `STALE_NS`: it is old only because the action is rarely asked for.
        """
        if self.doubtful(now_ns):
            self._forget(now_ns)
        return self._estimate_ns

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        if now_ns < self._review_ns:
            return False
        self._review_ns = self._since_ns + self._wait_ns()
        return now_ns >= self._review_ns

    def _wait_ns(self) -> int:
        """Return after how long without a measurement the samples above the median are doubted."""
        estimate_ns = self._estimate_ns
        if len(self._samples) >= FEWEST and estimate_ns > OUTLYING * self._median_ns():
            return min(STALE_NS, max(SOONEST_NS, estimate_ns) << self._doubts)
        return STALE_NS

    def _forget(self, now_ns: int) -> None:
        """Forget the samples above the median."""
        estimate_ns, median_ns, wait_ns = self._estimate_ns, self._median_ns(), self._wait_ns()
        self._since_ns = now_ns
        self._review_ns = now_ns + SOONEST_NS
        # Where most of them are equally long, the median is no less than what is in doubt.
        most_ns = min(median_ns, estimate_ns - 1)
        kept = [each for each in self._samples if each <= most_ns]
        if not kept:
            return
        if wait_ns < STALE_NS:
            self._doubts += 1
        self._samples = deque(kept, maxlen=SAMPLES)
        self._doubted = True
        self._estimate_ns = self._of_samples()
        self._halfway_ns = (self._estimate_ns + estimate_ns) // 2


class InferTimes:
    """Estimates of one executable on one kind of device, for every batch size.

    ``ns[i]`` belongs to ``sizes[i]``; readers keep a reference to the list, which is updated in place.
    """

    __slots__ = (
        "_rolling",
        "_transfers",
        "index_of",
        "note",
        "ns",
        "opening",
        "sizes",
        "spreads",
        "transfer_ns",
    )

    def __init__(self, sizes: tuple[int, ...], seeds_ns: list[int], rank: int = RANK) -> None:
        self.sizes = sizes
        self.index_of = indices_by_rows(sizes)
        """``index_for`` as a table by rows."""
        self.ns = seeds_ns
        self.transfer_ns = [0] * len(sizes)
        """How long a batch's inputs keep the way to the worker busy, beyond the delay of any dispatch."""
        self.note: object = None
        """The policy's own, dropped where a doubt changes an estimate."""
        self._rolling = [Rolling(seed, rank=rank) for seed in seeds_ns]
        self._transfers: dict[int, Rolling] = {}
        """Those that were ever measured to be more than nothing."""
        self.opening: Rolling | None = None
        """How long an OPEN of the executable takes, once that was measured."""
        self.spreads = Spreads(len(sizes))
        """How durations are distributed; no estimate follows from it."""

    def state(self, kind: str, executable: str) -> InferEstimate:
        """Return all that is known, as that of an executable on a kind of device."""
        durations = tuple([rolling.state() for rolling in self._rolling])
        transfers = {index: rolling.state() for index, rolling in self._transfers.items()}
        opening = None if self.opening is None else self.opening.state()
        spreads = self.spreads
        told = spreads.counts(), spreads.total, spreads.erratic
        return InferEstimate(kind, executable, self.sizes, durations, transfers, opening, *told)

    def restore(self, state: InferEstimate) -> None:
        """Know what another one of the same sizes knew."""
        for index, duration in enumerate(state.durations):
            self.ns[index] = self._rolling[index].restore(duration)
        self._transfers = {}
        for index in range(len(self.sizes)):
            self.transfer_ns[index] = 0
        for index, transfer in state.transfers.items():
            rolling = self._transfers[index] = Rolling(0, rank=1)
            self.transfer_ns[index] = rolling.restore(transfer)
        self.opening = None if state.opening is None else _restored(state.opening)
        self.spreads.restore(state.spreads, state.measured, state.erratic)

    def add(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take the measured duration of a batch of size ``sizes[index]`` in."""
        self.ns[index] = self._rolling[index].add(now_ns, duration_ns)
        self.spreads.add(index, duration_ns)

    def give_up(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take in that a batch was waited for in vain."""
        self.ns[index] = self._rolling[index].give_up(now_ns, duration_ns)
        for _ in range(HIGHEST_RANK):
            self.spreads.add(index, duration_ns)

    def add_transfer(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take in how long the inputs of a batch of size ``sizes[index]`` kept the way busy."""
        rolling = self._transfers.get(index)
        if rolling is None:
            if not duration_ns:
                return
            # This many batches ran until now whose inputs took nothing.
            nothing = max(1, self._rolling[index].count - 1)
            rolling = self._transfers[index] = Rolling(0, seeds=nothing, rank=1)
        self.transfer_ns[index] = rolling.add(now_ns, duration_ns)

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        for rolling in self._rolling:
            if rolling.doubtful(now_ns):
                return True
        for rolling in self._transfers.values():  # noqa: SIM110 - a generator would cost more than the search
            if rolling.doubtful(now_ns):
                return True
        return False

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        for index, rolling in enumerate(self._rolling):
            before_ns = self.ns[index]
            self.ns[index] = rolling.doubt(now_ns)
            if self.ns[index] != before_ns:
                self.note = None
        for index, rolling in self._transfers.items():
            self.transfer_ns[index] = rolling.doubt(now_ns)

    def index_for(self, rows: int) -> int:
        """Return the index of the smallest size that holds ``rows``; raise ValueError if none does."""
        if rows >= len(self.index_of):
            raise ValueError(f"{rows} rows do not fit the largest batch size {self.sizes[-1]}")
        return self.index_of[rows]

    def for_rows(self, rows: int) -> int:
        """Return the estimate of the smallest batch that holds a number of rows."""
        return self.ns[self.index_for(rows)]


class LoadTime:
    """Estimate of copying one number of bytes to one kind of device."""

    __slots__ = ("_rolling", "ns")

    def __init__(self, seed_ns: int, rank: int = RANK) -> None:
        self.ns = seed_ns
        self._rolling = Rolling(seed_ns, rank=rank)

    def state(self, kind: str, weights_bytes: int) -> LoadEstimate:
        """Return all that is known, as that of a number of bytes on a kind of device."""
        return LoadEstimate(kind, weights_bytes, self._rolling.state())

    def restore(self, state: LoadEstimate) -> None:
        """Know what another one knew."""
        self.ns = self._rolling.restore(state.duration)

    def add(self, now_ns: int, duration_ns: int) -> None:
        """Take one measured duration in."""
        self.ns = self._rolling.add(now_ns, duration_ns)

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        return self._rolling.doubtful(now_ns)

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        self.ns = self._rolling.doubt(now_ns)


class Estimates:
    """All estimates of a cluster, as long as some model has a use for them."""

    def __init__(self, rank: int = RANK) -> None:
        """Begin with none."""
        self.rank = rank
        """The rank of the estimate among ten durations that spread; of estimates that begin from now on."""
        self._kinds: dict[str, None] = {}
        self._infer_holders: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._load_holders: Counter[int] = Counter()
        self._infer: dict[tuple[str, str, tuple[int, ...]], InferTimes] = {}
        self._load: dict[tuple[str, int], LoadTime] = {}
        self._load_ns_per_byte: dict[str, float] = {}
        self._openings: dict[str, Rolling] = {}

    def hold(self, spec: ModelSpec) -> None:
        """Keep a model's estimates, and those of its buckets, until `release`."""
        for executable in spec.executables:
            self._infer_holders[executable, spec.batch_sizes] += 1
        self._load_holders[spec.weights_bytes] += 1

    def release(self, spec: ModelSpec) -> None:
        """Drop the estimates of a model that was held, but for those that another one shares with it."""
        for name in spec.executables:
            executable = name, spec.batch_sizes
            self._infer_holders[executable] -= 1
            if not self._infer_holders[executable]:
                del self._infer_holders[executable]
                for kind in self._kinds:
                    self._infer.pop((kind, *executable), None)
        self._load_holders[spec.weights_bytes] -= 1
        if not self._load_holders[spec.weights_bytes]:
            del self._load_holders[spec.weights_bytes]
            for kind in self._kinds:
                self._load.pop((kind, spec.weights_bytes), None)

    def infer_times(self, kind: str, spec: ModelSpec) -> InferTimes:
        """Return the shared estimates of the model's executable on a kind of device."""
        self._kinds[kind] = None
        key = (kind, spec.executable, spec.batch_sizes)
        times = self._infer.get(key)
        if times is None:
            seeds_ns = infer_seeds(profile_of(kind, spec), spec.batch_sizes)
            times = InferTimes(spec.batch_sizes, seeds_ns, self.rank)
            self._infer[key] = times
        return times

    def load_time(self, kind: str, spec: ModelSpec) -> LoadTime:
        """Return the shared estimate for weights of this size on a kind of device."""
        self._kinds[kind] = None
        key = (kind, spec.weights_bytes)
        time = self._load.get(key)
        if time is None:
            profile = spec.profiles.get(kind)
            per_byte = self._load_ns_per_byte.get(kind, UNKNOWN_LOAD_NS_PER_BYTE)
            seed = profile.load_ns if profile else round(spec.weights_bytes * per_byte)
            time = self._load[key] = LoadTime(seed, self.rank)
        return time

    def shares_infer(self, kind: str, spec: ModelSpec, times: InferTimes) -> bool:
        """Return whether these are the estimates that a model of the spec would get."""
        return self._infer.get((kind, spec.executable, spec.batch_sizes)) is times

    def shares_load(self, kind: str, spec: ModelSpec, time: LoadTime) -> bool:
        """Return whether this is the estimate that a model of the spec would get."""
        return self._load.get((kind, spec.weights_bytes)) is time

    def states(self) -> Iterator[LoadRates | InferEstimate | LoadEstimate]:
        """Yield all that is known, each estimate as it is when it is asked for."""
        infer, load = list(self._infer.items()), list(self._load.items())
        openings = {kind: rolling.state() for kind, rolling in self._openings.items()}
        yield LoadRates(dict(self._load_ns_per_byte), openings)
        for key, times in infer:
            if self._infer.get(key) is times:
                yield times.state(key[0], key[1])
        for load_key, time in load:
            if self._load.get(load_key) is time:
                yield time.state(load_key[0], load_key[1])

    def restore(self, state: LoadRates | InferEstimate | LoadEstimate) -> None:
        """Know what others knew."""
        if isinstance(state, LoadRates):
            self._load_ns_per_byte = dict(state.ns_per_byte)
            self._openings = {kind: _restored(opening) for kind, opening in state.openings.items()}
            self._prune()
            return
        self._kinds[state.device_kind] = None
        if isinstance(state, InferEstimate):
            key = (state.device_kind, state.executable, state.batch_sizes)
            times = self._infer.get(key)
            if times is None:
                times = self._infer[key] = InferTimes(key[2], [0] * len(key[2]), self.rank)
            times.restore(state)
        else:
            load_key = (state.device_kind, state.weights_bytes)
            time = self._load.get(load_key)
            if time is None:
                time = self._load[load_key] = LoadTime(0, self.rank)
            time.restore(state)

    def _prune(self) -> None:
        """Drop what no model holds."""
        infer, load = self._infer_holders, self._load_holders
        self._infer = {key: times for key, times in self._infer.items() if key[1:] in infer}
        self._load = {key: time for key, time in self._load.items() if key[1] in load}

    def forget_kind(self, kind: str) -> None:
        """Drop all estimates of a kind of device."""
        self._infer = {key: times for key, times in self._infer.items() if key[0] != kind}
        self._load = {key: time for key, time in self._load.items() if key[0] != kind}
        self._load_ns_per_byte.pop(kind, None)
        self._openings.pop(kind, None)
        self._kinds.pop(kind, None)

    def review(self, kind: str, times: InferTimes) -> None:
        """Find, now and then, whether the models of some estimates are erratic, or no longer."""
        if times.spreads.due:
            same = [other for key, other in self._infer.items() if key[0] == kind and other is not times]
            times.spreads.review([other.spreads for other in same])

    def loaded(self, kind: str, spec: ModelSpec, duration_ns: int) -> None:
        """Learn from a LOAD's measured duration what to expect of other sizes."""
        if spec.weights_bytes:
            self._load_ns_per_byte[kind] = duration_ns / spec.weights_bytes

    def open_ns(self, kind: str, times: InferTimes) -> int:
        """Return how long an OPEN on a kind of device is expected to take: the longest of the last ten of the
        executable, or of any if that was never opened."""
        rolling = times.opening or self._openings.get(kind)
        return UNKNOWN_OPEN_NS if rolling is None else rolling.estimate_ns

    def opened(self, now_ns: int, kind: str, times: InferTimes, duration_ns: int) -> None:
        """Learn from an OPEN's measured duration."""
        if times.opening is None:
            times.opening = Rolling(duration_ns, rank=1)
        else:
            times.opening.add(now_ns, duration_ns)
        any_ = self._openings.get(kind)
        if any_ is None:
            any_ = self._openings[kind] = Rolling(UNKNOWN_OPEN_NS, rank=1)
        any_.add(now_ns, duration_ns)


def _restored(state: DurationState) -> Rolling:
    rolling = Rolling(0, rank=1)
    rolling.restore(state)
    return rolling
