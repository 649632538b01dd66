"""The models that are served, and the requests of administrators to change or see the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from mainspring.controller.counters import Dropped
from mainspring.controller.feed import LoggedScheduler
from mainspring.controller.journal import Journal
from mainspring.controller.post import Post
from mainspring.controller.retiring import Retiring
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.controller.specs import MAX_NAME_CHARACTERS, served_fault, spec_fault
from mainspring.messages.codes import Reason
from mainspring.messages.events import ModelAdded, ModelRemoved
from mainspring.messages.model import ModelSpec, ServedModel
from mainspring.messages.peers import (
    AdminReply,
    AdminRequest,
    ClusterStatus,
    DefaultSlo,
    ModelDown,
    ModelUp,
    Served,
    WorkerStatus,
)

STATUS_AGE_NS = 50_000_000
"""A status is made at most once in this time, however many ask: making one passes over every model."""
STATUS_COST_AGE = 20
"""Nor is one made before the last has grown this many times as old as making it took: whoever watches a
large cluster gets at most a twentieth of the controller's time."""


class Catalogue:
    """The models by name; changes are fed to the scheduler and told to every gateway."""

    def __init__(
        self,
        max_models: int,
        scheduler: LoggedScheduler,
        sessions: SessionTable,
        post: Post,
        dropped: Dropped,
        journal: Journal | None = None,
        left_out: dict[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``journal`` keeps changes for the next start, ``left_out`` are models that could not be read, each
        with why; ``clock`` only measures how long it takes to make a status.
        """
        self.models: dict[str, ModelSpec] = {}
        """Every served model by name."""
        self.served: dict[str, ServedModel] = {}
        """The models of a repository, by what clients call them."""
        self.slos_ns: dict[str, int] = {}
        """Default SLOs that operators set, by what clients call the models; they outlive the models."""
        self.journal = journal or Journal()
        self.left_out = left_out or {}
        """Models of the store that are not served because their manifest can't be read, each with why."""
        self.draining = False
        """Whether the controller is leaving, so that changes are refused."""
        self._max_models = max_models
        self._retiring = Retiring()
        self._scheduler = scheduler
        self._sessions = sessions
        self._post = post
        self._dropped = dropped
        self._clock = clock
        self._status: ClusterStatus | None = None
        self._status_until_ns = 0

    def answer(self, now_ns: int, gateway: GatewaySession, request: AdminRequest) -> None:
        """Do what an administrator asks and answer."""
        wishes = (request.add, request.remove, request.serve)
        asked = sum(wish is not None for wish in wishes) + request.status + request.metrics
        reply = AdminReply(request.token)
        if asked != 1:
            detail = f"{asked} of add, remove, serve, status and metrics were asked for; ask for exactly one"
            reply = AdminReply(request.token, Reason.BAD_MESSAGE, detail)
        elif request.status:
            reply = AdminReply(request.token, status=self.status(now_ns))
        elif request.metrics:
            reply = AdminReply(request.token, metrics=self._scheduler.metrics(now_ns, len(self.models)))
        else:
            refusal = self._change(now_ns, request)
            if refusal is not None:
                reply = AdminReply(request.token, *refusal)
        self._post.to(gateway, reply)

    def add(self, now_ns: int, spec: ModelSpec) -> tuple[Reason, str] | None:
        """Serve a model from now on; return why not, or None. Adding what is served already is done."""
        known = self.models.get(spec.name)
        if known is not None:
            if (known.weights_hash, known.executable) == (spec.weights_hash, spec.executable):
                self._keep(known)
                return None
            detail = (
                f"model {spec.name!r} is served with other weights; remove it first, or choose another name"
            )
            return Reason.MODEL_EXISTS, detail
        fault = spec_fault(spec)
        if fault is not None:
            return Reason.BAD_MESSAGE, f"model {spec.name[:MAX_NAME_CHARACTERS]!r} can't be served: {fault}"
        if len(self.models) >= self._max_models:
            detail = (
                f"{self._max_models} models are served, which is the bound (max_models); remove one first"
            )
            return Reason.OVERLOADED, detail
        self.models[spec.name] = spec
        self.left_out.pop(spec.name, None)
        self._scheduler.handle(now_ns, ModelAdded(spec))
        self._post.to_gateways(ModelUp(spec))
        return None

    def replace(self, now_ns: int, spec: ModelSpec) -> None:
        """Serve other files under the name of a model that no worker has prepared."""
        self.models[spec.name] = spec
        self.journal.replaced(spec)
        self._scheduler.handle(now_ns, ModelAdded(spec))
        self._post.to_gateways(ModelUp(spec))

    def remove(self, now_ns: int, name: str) -> tuple[Reason, str] | None:
        """Serve a model no more; return why not, or None."""
        if self.models.pop(name, None) is None:
            why = f"there is no model {name[:MAX_NAME_CHARACTERS]!r} to remove"
            if name in self.served:
                why = f"model {name!r} is a repository's: unload it, or take it out of the repository"
            return Reason.UNKNOWN_MODEL, why
        self._retiring.end(name)
        self._scheduler.handle(now_ns, ModelRemoved(name))
        self._post.to_gateways(ModelDown(name))
        return None

    def retire(self, now_ns: int, name: str) -> tuple[Reason, str] | None:
        """Remove a model once no gateway has a request for it in flight; return why not, or None."""
        if name not in self.models or name in self._retiring:
            return None if name in self._retiring else self.remove(now_ns, name)
        if self._retiring.begin(name, [gateway.number for gateway in self._sessions.gateways.values()]):
            return self.remove(now_ns, name)
        self._post.to_gateways(ModelDown(name, drain=True))
        return None

    def serve(self, model: ServedModel) -> tuple[Reason, str] | None:
        """Have requests for a repository's model go to these versions from now on; return why not, or None.

        No versions: it is served no more.
        """
        fault = served_fault(model)
        if fault is not None:
            return Reason.BAD_MESSAGE, f"model {model.name[:MAX_NAME_CHARACTERS]!r} can't be served: {fault}"
        unknown = [name for name in model.versions.values() if name not in self.models]
        if unknown:
            detail = f"there is no model {unknown[0][:MAX_NAME_CHARACTERS]!r} to serve; add it first"
            return Reason.UNKNOWN_MODEL, detail
        if not model.versions:
            self.served.pop(model.name, None)
        elif model.name not in self.served and len(self.served) >= self._max_models:
            return Reason.OVERLOADED, f"{self._max_models} models are served, which is the bound (max_models)"
        else:
            self.served[model.name] = model
        self._post.to_gateways(Served(model))
        return None

    def is_known(self, name: str) -> bool:
        """Say whether clients can ask for a model of this name."""
        spec = self.models.get(name)
        return name in self.served or (spec is not None and not spec.served_as)

    def set_default_slo(self, name: str, slo_ns: int | None) -> None:
        """Have requests for a model that bring no SLO have this one; None for what is configured."""
        if slo_ns is None:
            self.slos_ns.pop(name, None)
        else:
            self.slos_ns[name] = slo_ns
        self._post.to_gateways(DefaultSlo(name, slo_ns))

    def welcome(self, gateway: GatewaySession) -> None:
        """Tell a new gateway of all models."""
        for spec in self.models.values():
            self._post.to(gateway, ModelUp(spec))
        for served in self.served.values():
            self._post.to(gateway, Served(served))
        for name, slo_ns in self.slos_ns.items():
            self._post.to(gateway, DefaultSlo(name, slo_ns))
        for name in self._retiring.joined(gateway.number):
            self._post.to(gateway, ModelDown(name, drain=True))

    def drained(self, now_ns: int, gateway: GatewaySession, name: str) -> None:
        """Take note that a gateway holds no request for a model that is to go."""
        if self._retiring.drained(name, gateway.number):
            self.remove(now_ns, name)

    def gateway_left(self, now_ns: int, gateway: GatewaySession) -> None:
        """Wait for this gateway no longer."""
        for name in self._retiring.left(gateway.number):
            self.remove(now_ns, name)

    def status(self, now_ns: int) -> ClusterStatus:
        """Return the cluster as it is now, or was a moment ago; see `STATUS_AGE_NS`, `STATUS_COST_AGE`."""
        if self._status is None or now_ns > self._status_until_ns:
            began_ns = self._clock()
            status = self._scheduler.status()
            self._status = msgspec.structs.replace(
                status,
                workers=tuple(self._with_session(worker) for worker in status.workers),
                dropped_messages={
                    **self._dropped.snapshot(),
                    **status.dropped_messages,
                    **self._dropped_by_workers(),
                },
                left_out=dict(self.left_out),
            )
            cost_ns = self._clock() - began_ns
            self._status_until_ns = now_ns + max(STATUS_AGE_NS, STATUS_COST_AGE * cost_ns)
        return self._status

    def _change(self, now_ns: int, request: AdminRequest) -> tuple[Reason, str] | None:
        self._status = None
        if self.draining:
            return Reason.SHUTTING_DOWN, "the controller is stopping"
        if request.serve is not None:
            return self.serve(request.serve)
        if request.add is not None:
            refusal = self.add(now_ns, request.add)
            if refusal is None and not request.add.served_as:
                self.journal.added(request.add)
            return refusal
        assert request.remove is not None
        spec = self.models.get(request.remove)
        refusal = (self.retire if request.drain else self.remove)(now_ns, request.remove)
        if refusal is None and spec is not None and not spec.served_as:
            # What a repository has served, it has served again by itself.
            self.journal.removed(spec.name)
        return refusal

    def _keep(self, spec: ModelSpec) -> None:
        """Have a model that was to go stay after all."""
        if spec.name in self._retiring:
            self._retiring.end(spec.name)
            self._post.to_gateways(ModelUp(spec))

    def _dropped_by_workers(self) -> dict[str, int]:
        """Return what each connected worker could not use, with its name before the reason."""
        return {
            f"{worker.name}: {why[:MAX_NAME_CHARACTERS]}": count
            for worker in self._sessions.workers.values()
            for why, count in worker.dropped.items()
        }

    def _with_session(self, worker: WorkerStatus) -> WorkerStatus:
        session = self._sessions.workers.get(worker.worker)
        if session is None:
            return worker
        notes = (*worker.notes, *session.hello.notes)
        return msgspec.structs.replace(worker, clock_offset_ns=session.clock.offset_ns, notes=notes)
