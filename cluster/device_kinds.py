"""The kinds of devices in the cluster, since every model has estimates for each of them.

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

from typing import TYPE_CHECKING, Final

from mainspring.cluster.served_models import ServedModels, Walk

if TYPE_CHECKING:
    from mainspring.cluster.estimates import Estimates, InferTimes, LoadTime
    from mainspring.cluster.models import Model
    from mainspring.messages.model import ModelSpec

SETTLED_AT_ONCE: Final = 64
"""Number of models that the scheduler updates in a call."""


class Change:
    """A kind has come, or gone."""

    __slots__ = ("came", "kind", "ns_per_byte")

    def __init__(self, kind: str, came: bool, ns_per_byte: float) -> None:
        self.kind = kind
        self.came = came
        self.ns_per_byte = ns_per_byte
        """`Estimates.ns_per_byte` as it was then."""


class DeviceKinds:
    """The changes of a cluster's kinds of devices that not all models know of."""

    __slots__ = ("_changes", "_estimates", "_line", "_settled", "_target", "_walk", "at_once", "version")

    def __init__(self, line: ServedModels, estimates: Estimates) -> None:
        """``line`` has the cluster's models, each of which is added here; ``estimates`` are the cluster's."""
        self.at_once = 0
        """Number of models and buckets that `settle_some` updates; 0: all are updated at each change."""
        self.version = 0
        """Number of changes so far."""
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
