"""Estimates of how long actions take, by the last 10 measured durations, seeded from profiles.

Clockwork, section 5.3 ("measurements of past 10 actions duration, stratified by action type, model and
batch size"). INFER is kept for each (device kind, executable, batch size), so that a new copy of a known
model starts with a good estimate; LOAD for each (device kind, weights bytes).

An estimate is their maximum, as Clockwork's is, while they are about equally long, which on a GPU they are.
Where they spread it is the third-largest of ten: beside others' work a CPU has outliers of several times the
median, no measurement foretells the next, and a maximum that holds for ten more executions turns away many
more requests than it saves (docs/measurements.md, "Estimates where durations spread"). An execution that
stood still is no sample at all (`cluster.rolling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from mainspring.cluster.rolling import RANK, Rolling
from mainspring.cluster.seeds import indices_by_rows, infer_seeds, own_profile, profile_of
from mainspring.cluster.spread import Spreads
from mainspring.messages.model import ModelSpec
from mainspring.messages.snapshot import DurationState, InferEstimate, LoadEstimate, LoadRates
from mainspring.messages.targets import each_build, kinds_build

if TYPE_CHECKING:
    from mainspring.cluster.models import Model

UNKNOWN_LOAD_NS_PER_BYTE = 0.25
"""Copy cost assumed of a device that has never loaded anything: 4 GB/s."""
UNKNOWN_OPEN_NS: Final = 500_000_000
"""Duration assumed of an OPEN on a device that has never opened anything; one of the first ten samples."""
CEILING_SHIFT: Final = 3
"""A ceiling is an eighth above the estimate that set it: durations on one device mostly differ by less."""


class Raised:
    """A count of how often any of some estimates rose beyond its ceiling (`InferTimes.ceilings_ns`)."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class InferTimes:
    """Estimates of one executable on one kind of device, for every batch size.

    ``ns[i]`` belongs to ``sizes[i]``; readers keep a reference to the list, which is updated in place.
    """

    __slots__ = (
        "_raised",
        "_rolling",
        "_transfers",
        "ceilings_ns",
        "index_of",
        "note",
        "ns",
        "opening",
        "sizes",
        "spreads",
        "transfer_ns",
    )

    def __init__(
        self,
        sizes: tuple[int, ...],
        seeds_ns: list[int],
        rank: int = RANK,
        raised: Raised | None = None,
        known: bool = True,
    ) -> None:
        """``raised`` counts for several estimates together; these have one of their own without it.

        ``known`` says whether the seeds were measured on such a device, or are assumed.
        """
        self.sizes = sizes
        self.index_of = indices_by_rows(sizes)
        """``index_for`` as a table by rows."""
        self.ns = [seed_ns if seed_ns > 0 else 1 for seed_ns in seeds_ns]
        self.ceilings_ns = [ns + (ns >> CEILING_SHIFT) for ns in self.ns]
        """No estimate is above its own: what is derived from these holds until `Raised.count` changes."""
        self._raised = raised or Raised()
        self.transfer_ns = [0] * len(sizes)
        """Time for which a batch's inputs occupy the connection to the worker, beyond the delay of any
        dispatch."""
        self.note: object = None
        """The policy's own, dropped where a doubt changes an estimate."""
        self._rolling = [Rolling(seed_ns, rank=rank, known=known) for seed_ns in self.ns]
        self._transfers: dict[int, Rolling] = {}
        """Transfer times that were measured to be more than nothing, by index of the batch size."""
        self.opening: Rolling | None = None
        """Estimate of an OPEN of the executable, once one was measured."""
        self.spreads = Spreads(len(sizes))
        """Distribution of the durations; no estimate follows from it."""

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
            self._set(index, self._rolling[index].restore(duration))
        self._transfers = {}
        for index in range(len(self.sizes)):
            self.transfer_ns[index] = 0
        for index, transfer in state.transfers.items():
            rolling = self._transfers[index] = Rolling(0, rank=1)
            self.transfer_ns[index] = rolling.restore(transfer)
        self.opening = None if state.opening is None else _restored(state.opening)
        self.spreads.restore(state.spreads, state.measured, state.erratic)

    def add(self, now_ns: int, index: int, duration_ns: int) -> bool:
        """Take the measured duration of a batch of size ``sizes[index]`` in; return whether it is an outlier.

        Nothing takes no time, whatever a worker says: policies divide by what they expect.
        """
        duration_ns = max(duration_ns, 1)
        rolling = self._rolling[index]
        outlying = rolling.stands_out(duration_ns)
        self._set(index, rolling.add(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)
        return outlying

    def give_up(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Record that a batch was awaited in vain."""
        self._set(index, self._rolling[index].give_up(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)

    def add_transfer(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take in how long the inputs of a batch of size ``sizes[index]`` kept the way busy."""
        rolling = self._transfers.get(index)
        if rolling is None:
            if not duration_ns:
                return
            # This many batches ran until now whose inputs took nothing.
            nothing = max(1, self._rolling[index].count - 1)
            rolling = self._transfers[index] = Rolling(0, seeds=nothing, rank=1, known=nothing > 1)
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
            self._set(index, rolling.doubt(now_ns))
            if self.ns[index] != before_ns:
                self.note = None
        for index, rolling in self._transfers.items():
            self.transfer_ns[index] = rolling.doubt(now_ns)

    def _set(self, index: int, estimate_ns: int) -> None:
        """Have an estimate, below a ceiling that falls once it is twice as high."""
        self.ns[index] = estimate_ns
        ceiling_ns = self.ceilings_ns[index]
        if estimate_ns > ceiling_ns:
            self._raised.count += 1
        elif 2 * estimate_ns > ceiling_ns:
            return
        self.ceilings_ns[index] = estimate_ns + (estimate_ns >> CEILING_SHIFT)

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

    def __init__(self, seed_ns: int, rank: int = RANK, known: bool = True) -> None:
        """``known`` says whether the seed was measured on such a device, or is assumed."""
        self.ns = seed_ns
        self._rolling = Rolling(seed_ns, rank=rank, known=known)

    def state(self, kind: str, weights_bytes: int) -> LoadEstimate:
        """Return all that is known, as that of a number of bytes on a kind of device."""
        return LoadEstimate(kind, weights_bytes, self._rolling.state())

    def restore(self, state: LoadEstimate) -> None:
        """Know what another one knew."""
        self.ns = self._rolling.restore(state.duration)

    def add(self, now_ns: int, duration_ns: int) -> bool:
        """Take one measured duration in; return whether it is an outlier."""
        outlying = self._rolling.stands_out(duration_ns)
        self.ns = self._rolling.add(now_ns, duration_ns)
        return outlying

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
        self.raised = Raised()
        """Number of times that an estimate of an INFER rose beyond its ceiling."""
        self._kinds: dict[str, None] = {}
        self._infer_holders: dict[tuple[str, tuple[int, ...]], dict[Model, None]] = {}
        """Models that share estimates, in the order in which they came, by executable and batch sizes."""
        self._load_holders: dict[int, dict[Model, None]] = {}
        """Models that share estimates of LOAD, by the bytes of their weights."""
        self._infer: dict[tuple[str, str, tuple[int, ...]], InferTimes] = {}
        self._load: dict[tuple[str, int], LoadTime] = {}
        self._load_ns_per_byte: dict[str, float] = {}
        self._openings: dict[str, Rolling] = {}

    def hold(self, model: Model) -> None:
        """Keep a model's estimates, and those of its buckets, until `release`."""
        spec = model.spec
        for name in spec.executables:
            self._infer_holders.setdefault((name, spec.batch_sizes), {})[model] = None
        for build in each_build(spec):
            self._load_holders.setdefault(build.weights_bytes, {})[model] = None

    def release(self, model: Model) -> None:
        """Drop the estimates of a model that was held, but for those that another one shares with it."""
        spec = model.spec
        for name in dict.fromkeys(spec.executables):
            executable = name, spec.batch_sizes
            holders = self._infer_holders[executable]
            del holders[model]
            if not holders:
                del self._infer_holders[executable]
                for kind in self._kinds:
                    self._infer.pop((kind, *executable), None)
        for size in dict.fromkeys([build.weights_bytes for build in each_build(spec)]):
            holders = self._load_holders[size]
            del holders[model]
            if not holders:
                del self._load_holders[size]
                for kind in self._kinds:
                    self._load.pop((kind, size), None)

    def hold_in_order(self, models: Iterable[Model]) -> None:
        """Have the models that are held, which these are, stand in another order."""
        self._infer_holders.clear()
        self._load_holders.clear()
        for model in models:
            self.hold(model)

    def first_of_executable(self, kind: str, spec: ModelSpec, model: Model) -> Model | None:
        """Return the first model, or bucket of one, that has the estimates of INFERs of a spec on a kind of
        workers; None if all that are held came after ``model``, or it is the first."""
        executable = kinds_build(kind, spec).executable
        for holder in self._infer_holders.get((executable, spec.batch_sizes), {}):
            if holder is model:
                return None
            for each in (holder, *holder.buckets.values()):
                if kinds_build(kind, each.spec).executable == executable:
                    return each
        return None

    def first_of_size(self, kind: str, spec: ModelSpec, model: Model) -> Model | None:
        """Return likewise the first that has the estimate of LOADs."""
        size = kinds_build(kind, spec).weights_bytes
        for holder in self._load_holders.get(size, {}):
            if holder is model:
                return None
            if kinds_build(kind, holder.spec).weights_bytes == size:
                return holder
        return None

    def infer_times(self, kind: str, spec: ModelSpec) -> InferTimes:
        """Return the shared estimates of the executable that a kind of workers runs of a model."""
        self._kinds[kind] = None
        key = (kind, kinds_build(kind, spec).executable, spec.batch_sizes)
        times = self._infer.get(key)
        if times is None:
            seeds_ns = infer_seeds(profile_of(kind, spec), spec.batch_sizes)
            known = own_profile(kind, kinds_build(kind, spec).profiles) is not None
            times = InferTimes(spec.batch_sizes, seeds_ns, self.rank, self.raised, known)
            self._infer[key] = times
        return times

    def ns_per_byte(self, kind: str) -> float:
        """Return what the last LOAD on a kind of device took for each byte, or what is assumed before one."""
        return self._load_ns_per_byte.get(kind, UNKNOWN_LOAD_NS_PER_BYTE)

    def load_time(self, kind: str, spec: ModelSpec, ns_per_byte: float | None = None) -> LoadTime:
        """Return the shared estimate for weights of this size on a kind of device.

        If it begins now, and there is no profile, it does with ``ns_per_byte``; None: `ns_per_byte` as it is.
        """
        self._kinds[kind] = None
        build = kinds_build(kind, spec)
        key = (kind, build.weights_bytes)
        time = self._load.get(key)
        if time is None:
            profile = own_profile(kind, build.profiles)
            per_byte = self.ns_per_byte(kind) if ns_per_byte is None else ns_per_byte
            seed = profile.load_ns if profile else round(build.weights_bytes * per_byte)
            time = self._load[key] = LoadTime(seed, self.rank, profile is not None)
        return time

    def known_infer(self, kind: str, spec: ModelSpec) -> InferTimes | None:
        """Return what `infer_times` does, and None where that has not begun."""
        return self._infer.get((kind, kinds_build(kind, spec).executable, spec.batch_sizes))

    def known_load(self, kind: str, spec: ModelSpec) -> LoadTime | None:
        """Return what `load_time` does, and None where that has not begun."""
        return self._load.get((kind, kinds_build(kind, spec).weights_bytes))

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
                times = self._infer[key] = InferTimes(key[2], [0] * len(key[2]), self.rank, self.raised)
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
        size = kinds_build(kind, spec).weights_bytes
        if size:
            self._load_ns_per_byte[kind] = duration_ns / size

    def erratic(self) -> set[str]:
        """Return the executables whose durations are erratic on some kind of device."""
        return {key[1] for key, times in self._infer.items() if times.spreads.erratic}

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
            any_ = self._openings[kind] = Rolling(UNKNOWN_OPEN_NS, rank=1, known=False)
        any_.add(now_ns, duration_ns)


def _restored(state: DurationState) -> Rolling:
    rolling = Rolling(0, rank=1)
    rolling.restore(state)
    return rolling
