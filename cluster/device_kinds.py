"""The kinds of devices in the cluster, and the estimates that models have for each of them.

The first worker of a kind, and the last one's leave, concern all models, and these may be tens of thousands.
So the change alone is noted when it happens. A model catches up once its estimates are read, and the others
do part by part: each goes through the changes that it has missed, in their order. What it finds is as if all
models had been entered at each change:

* A kind that went and came back is the last one again.
* An estimate that models share begins with what the first of them says that was served when the kind came,
  whichever of them is read first.
* Where it begins with what the kind's LOADs have taken, that is what was known when the kind came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mainspring.cluster.estimates import InferTimes, LoadTime, Raised, restored
from mainspring.cluster.models import KnownKinds, Model
from mainspring.cluster.rolling import RANK, Rolling
from mainspring.cluster.seeds import infer_seeds, own_profile, profile_of
from mainspring.cluster.served_models import ServedModels, Walk
from mainspring.messages.estimates import InferEstimate, LoadEstimate, LoadRates
from mainspring.messages.model import ModelSpec
from mainspring.messages.targets import each_build, kinds_build

SETTLED_AT_ONCE: Final = 64
"""Number of models that the scheduler updates in a call."""


UNKNOWN_LOAD_NS_PER_BYTE = 0.25
"""Copy cost assumed of a device that has never loaded anything: 4 GB/s."""
UNKNOWN_OPEN_NS: Final = 500_000_000
"""Duration assumed of an OPEN on a device that has never opened anything; one of the first ten samples."""


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
            self._openings = {kind: restored(opening) for kind, opening in state.openings.items()}
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

    def remember(self, states: Iterable[LoadRates | InferEstimate | LoadEstimate]) -> None:
        """Know what a former controller knew, of models that are held."""
        for state in states:
            match state:
                case InferEstimate(executable=executable, batch_sizes=sizes):
                    held = (executable, sizes) in self._infer_holders
                case LoadEstimate(weights_bytes=size):
                    held = size in self._load_holders
                case LoadRates():
                    held = not self._load_ns_per_byte and not self._openings
            if held:
                self.restore(state)

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

    def loaded(self, kind: str, weights_bytes: int, duration_ns: int) -> None:
        """Learn from a LOAD's measured duration what to expect of other sizes."""
        if weights_bytes:
            self._load_ns_per_byte[kind] = duration_ns / weights_bytes

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


class Change:
    """A kind has come, or gone."""

    __slots__ = ("came", "kind", "ns_per_byte")

    def __init__(self, kind: str, came: bool, ns_per_byte: float) -> None:
        self.kind = kind
        self.came = came
        self.ns_per_byte = ns_per_byte
        """`Estimates.ns_per_byte` as it was then."""


class DeviceKinds(KnownKinds):
    """The changes of a cluster's kinds of devices that not all models know of."""

    __slots__ = ("_changes", "_estimates", "_line", "_settled", "_target", "_walk", "at_once")

    def __init__(self, line: ServedModels, estimates: Estimates) -> None:
        """``line`` has the cluster's models, each of which is added here; ``estimates`` are the cluster's."""
        super().__init__()
        self.at_once = 0
        """Number of models and buckets that `settle_some` updates; 0: all are updated at each change."""
        self._line = line
        self._estimates = estimates
        self._changes: list[Change] = []
        """The last of them: all that some model may have missed."""
        self._settled = 0
        """Number of changes before those that are kept."""
        self._target = 0
        """Number of changes so far when models began to catch up."""
        self._walk: Walk | None = None
        """Position of the models that catch up."""

    @property
    def behind(self) -> bool:
        """Return whether any model may have missed a change."""
        return bool(self._changes)

    def came(self, kind: str) -> None:
        """Note the first worker of a kind."""
        self._note(Change(kind, True, self._estimates.ns_per_byte(kind)))

    def went(self, kind: str) -> None:
        """Note that the last worker of a kind has gone."""
        self._note(Change(kind, False, 0.0))

    def _note(self, change: Change) -> None:
        self._changes.append(change)
        self.version += 1
        if not self.at_once:
            self.settle()

    def serve(self, model: Model) -> None:
        """Have a model that nothing is known of yet learn of each change from now on."""
        for each in (model, *model.buckets.values()):
            each.device_kinds, each.seen = self, self.version
        self._line.come(model)

    def release(self, model: Model) -> None:
        """Have a model that is served no more stay as it is now."""
        self.catch_up(model)
        for each in (model, *model.buckets.values()):
            each.device_kinds = None
        self._line.go()

    def catch_up(self, model: Model) -> None:
        """Have a model, and what it is a bucket of or has as buckets, know of all changes."""
        base = model.base
        missed = self._changes[base.seen - self._settled :]
        for each in (base, *base.buckets.values()):
            each.seen = self.version
        for change in missed:
            if change.came:
                self.know(base, change.kind, change.ns_per_byte)
            else:
                forget_kind(base, change.kind)

    def know(self, model: Model, kind: str, ns_per_byte: float) -> None:
        """Have estimates of a model on a kind of device, of which ``ns_per_byte`` is known."""
        estimates = self._estimates
        for each in (model, *model.buckets.values()):
            times = estimates.known_infer(kind, each.spec)
            each.infer_times[kind] = self._begin_infer(model, kind, each.spec) if times is None else times
            time = estimates.known_load(kind, each.spec)
            each.load_times[kind] = (
                self._begin_load(model, kind, each.spec, ns_per_byte) if time is None else time
            )

    def _begin_infer(self, model: Model, kind: str, spec: ModelSpec) -> InferTimes:
        """Begin the estimates of a model's spec, or bucket's, as the first that has them does."""
        first = self._estimates.first_of_executable(kind, spec, model) if self._changes else None
        return self._estimates.infer_times(kind, spec if first is None else first.spec)

    def _begin_load(self, model: Model, kind: str, spec: ModelSpec, ns_per_byte: float) -> LoadTime:
        """Begin the estimate of LOADs likewise."""
        first = self._estimates.first_of_size(kind, spec, model) if self._changes else None
        if first is not None:
            spec, ns_per_byte = first.spec, self._known_then(kind, first)
        return self._estimates.load_time(kind, spec, ns_per_byte)

    def _known_then(self, kind: str, model: Model) -> float:
        """Return what was known of a kind's LOADs when it came, of the first time that a model has missed."""
        for change in self._changes[model.seen - self._settled :]:
            if change.came and change.kind == kind:
                return change.ns_per_byte
        return self._estimates.ns_per_byte(kind)

    def settle_some(self) -> None:
        """Have some models catch up."""
        if self._walk is None:
            self._walk, self._target = self._line.walk(), self.version
        looked_at, most = 0, self.at_once or len(self._line) + 1
        while looked_at < most:
            model = self._walk.next()
            if model is None:
                self._walk.close()
                del self._changes[: self._target - self._settled]
                self._walk, self._settled = None, self._target
                return
            looked_at += 1 + len(model.buckets)
            if model.seen < self._target:
                self.catch_up(model)

    def settle(self) -> None:
        """Have all models catch up."""
        while self._changes:
            self.settle_some()

    def validate(self) -> None:
        """Check that nothing is forgotten that a model has missed; raise AssertionError otherwise."""
        served = [model for model in self._line.models if model.device_kinds is not None]
        assert len(served) == len(self._line), f"{len(served)} of {len(self._line)} models are in line"
        for model in served:
            assert self._settled <= model.seen <= self.version, f"{model.name} knows of {model.seen} changes"
        assert self.version == self._settled + len(self._changes), f"{self.version} changes"


def forget_kind(model: Model, kind: str) -> None:
    """Have no estimates of a model on a kind of device any more."""
    for each in (model, *model.buckets.values()):
        each.infer_times.pop(kind, None)
        each.load_times.pop(kind, None)
