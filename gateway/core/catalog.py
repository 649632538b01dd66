"""The models and workers that the controller told this gateway of. Pure.

What clients call a model is resolved here, for every front end alike: to the model of that name, or, for a
model of a repository, to one of its versions. The table of a repository's model is replaced as a whole, so
a request is for the old versions or for the new ones, and stays with what it was taken for.

A controller that welcomes the gateway again tells it everything again. Until it has, what was known before
stays: a client does not hear "unknown model" because the controller was away for a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mainspring.gateway.config import TRITON, GatewayConfig
from mainspring.gateway.core.validation import (
    BadRequest,
    Signature,
    nearest,
    shorten,
    signature_of,
)
from mainspring.gateway.graphs.served import NO_SHARES, Graphs
from mainspring.messages.clients import (
    BestItems,
    Done,
    ErrorReply,
    ForgetContext,
    InferRequest,
    TopK,
)
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.learning import Observe, Observed
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown, TensorHeader
from mainspring.messages.served import ServedModel
from mainspring.selection.ledger import Feedback

_NOT_TOLD = (
    "the gateway has just started, and its controller has not told all of its models yet: {name!r} may be "
    "one of them; send the request again in a moment"
)
LOOK_NS: Final = 50_000_000
"""Time between two looks at the requests in flight for models that are drained."""
_CONFIRM_NS = 1_000_000_000
"""Time after a controller has told all that it knew at its welcome: what it has not confirmed then is gone.

A restarted controller learns models from its workers after it has welcomed the gateway.
"""


class Catalog:
    """Signatures by model name, a repository's models by what clients call them, data addresses by worker."""

    def __init__(
        self,
        *,
        triton: bool = False,
        most_rows: int = 0,
        most_rows_of: Mapping[str, int] = MappingProxyType({}),
        seed: int = 0,
    ) -> None:
        """``triton``: say of an unknown model what a Triton server says. ``most_rows``: as `Signature`;
        ``most_rows_of``: of single models and graphs, by what clients call them; ``seed`` as of `Graphs`."""
        self.triton = triton
        self.most_rows, self.most_rows_of = most_rows, most_rows_of
        self.signatures: dict[str, Signature] = {}
        """The signature of each model, by the scheduler's name; clients know those of a repository by
        another."""
        self.served: dict[str, ServedModel] = {}
        """A repository's models by what clients call them."""
        self.graphs = Graphs(self._model, most_rows, most_rows_of, seed)
        """The graphs of models that clients may ask for."""
        self.workers: dict[str, str] = {}
        self._old_models: dict[str, None] = {}
        self._old_served: dict[str, None] = {}
        self._slos_ns: dict[str, int] = {}
        """SLOs that operators set, in nanoseconds, by the name that clients call the model by."""
        self._options: dict[str, ServedModel] = {}
        """The options that a repository's models are served with, by the name that clients call them by."""
        self._old_workers: dict[str, None] = {}
        self._old_slos: dict[str, None] = {}
        self._old_graphs: dict[str, None] = {}
        self._begins = False
        """True while a controller that has welcomed the gateway has not told all that it knew then."""
        self._confirm_by_ns: int | None = None
        self.complete = True
        """True if a model that is not here is not served: once a first controller has told all."""
        self.awaits: Callable[[str], str] = lambda _name: ""
        """Why a model that is to be served is not yet; empty if it is, or is not to be."""

    # --- what clients ask for ---

    def resolve(self, name: str, version: int | None = None) -> Signature:
        """Return what a request for this model or graph, and version, is for; None is the highest version.

        A graph, and a model that is of no repository, has the version 1 alone. Raises `BadRequest`.
        """
        if not self.graphs.specs or name not in self.graphs:
            return self._model(name, version)
        if version is not None and version != 1:
            raise self._unknown(name, version, _no_version(name, version, (1,)))
        return self.graphs.signature(name)

    def _model(self, name: str, version: int | None = None) -> Signature:
        """Return what a request for this model is for; as `resolve`."""
        served = self.served.get(name)
        if served is not None:
            wanted = max(served.versions) if version is None else version
            signature = self.signatures.get(served.versions.get(wanted, ""))
            if signature is not None:
                return signature
        elif (signature := self.signatures.get(name)) is not None and not signature.spec.served_as:
            if version is None or version == signature.spec.version:
                return signature
            raise self._unknown(name, version, _no_version(name, version, (signature.spec.version,)))
        versions = self._versions(name)
        if not versions and not self.complete:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, _NOT_TOLD.format(name=name))
        if not versions and (why := self.awaits(name)):
            raise BadRequest(Reason.MODEL_NOT_READY, f"model {shorten(name)} is not ready: {why}")
        if not versions:
            raise self._unknown(name, None, unknown_model(name, dict.fromkeys(self.names())))
        if version is None:
            version = max(versions)
        if version not in versions:
            raise self._unknown(name, version, _no_version(name, version, tuple(sorted(versions))))
        return versions[version]

    def names(self) -> list[str]:
        """Return what clients may ask for, sorted."""
        own = {name for name, signature in self.signatures.items() if not signature.spec.served_as}
        return sorted(own.union(self.served, self.graphs.specs))

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions that are served, ascending; empty if the model is not."""
        if name in self.served:
            return tuple(sorted(self._versions(name)))
        if name in self.graphs.specs:
            return () if self.graphs.fault(name) else (1,)
        signature = self.signatures.get(name)
        return (signature.spec.version,) if signature is not None and not signature.spec.served_as else ()

    def options(self, name: str) -> ServedModel:
        """Return how a repository's model is served; for any other, the defaults without versions.

        An operator's default SLO stands in the place of the configured one.
        """
        found = self._options.get(name) or self.served.get(name)
        if found is None and (graph := self.graphs.specs.get(name)) is not None and graph.slo_ms is not None:
            return ServedModel(name, {}, round(graph.slo_ms * 1e6))
        return found or ServedModel(name, {})

    def prioritised(self, request: InferRequest) -> InferRequest:
        """Return the request with the priority that its model's configuration gives it, if it does."""
        served = self.served.get(request.model)
        if served is None or not served.priority_levels or request.priority < 0:
            return request
        priority = served.priority_of(request.priority)
        return (
            request if priority == request.priority else msgspec.structs.replace(request, priority=priority)
        )

    def completed(self, request: InferRequest, frames: Sequence[Any]) -> tuple[InferRequest, Sequence[Any]]:
        """Return the request with the defaults of inputs that it leaves out, and their frames.

        Raises `BadRequest` as `resolve`.
        """
        signature = self.resolve(request.model, request.version)
        return completed(request, frames, signature) if signature.defaults else (request, frames)

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the default version of each model under the name that clients use, by name."""
        found = []
        for name in self.names():
            versions = self.versions(name)
            if versions:
                spec = self.resolve(name).spec
                found.append(spec if spec.name == name else _renamed(spec, name))
        return tuple(found)

    def _unknown(self, name: str, version: int | None, said: str) -> BadRequest:
        if self.triton:
            number = "" if version is None else f" version {version}"
            said = f"Request for unknown model: '{name[:200]}'{number} is not found: {said}"
        return BadRequest(Reason.UNKNOWN_MODEL, said)

    def _versions(self, name: str) -> dict[int, Signature]:
        """Return what is known of the versions of a repository's model."""
        served = self.served.get(name)
        found = served.versions.items() if served is not None else ()
        return {version: self.signatures[each] for version, each in found if each in self.signatures}

    # --- what the controller tells ---

    def begin_session(self) -> None:
        """Wait for a controller to confirm what is known."""
        self._old_models = dict.fromkeys(self.signatures)
        self._old_served = dict.fromkeys(self.served)
        self._old_workers = dict.fromkeys(self.workers)
        self._old_slos = dict.fromkeys(self._slos_ns)
        self._old_graphs = dict.fromkeys(self.graphs.specs)
        self._begins, self._confirm_by_ns = True, None

    @property
    def confirmed(self) -> bool:
        """Return whether the controller has told all that it knew at its last welcome."""
        return self.complete and not self._begins

    def told_all(self, now_ns: int) -> None:
        """Note that the controller has told all that it knew at its welcome; it may say so again."""
        if self._begins:
            self._begins, self._confirm_by_ns = False, now_ns + _CONFIRM_NS
        self.complete = True

    def model_up(self, spec: ModelSpec) -> None:
        """Take requests for the model; raise ValueError if its spec makes no sense."""
        try:
            self.signatures[spec.name] = signature_of(
                spec, self.most_rows_of.get(spec.public_name, self.most_rows)
            )
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"model {spec.name!r} has a spec that makes no sense: {error}") from error
        self._old_models.pop(spec.name, None)
        self.graphs.models_changed()

    def model_down(self, name: str) -> None:
        """Take no more requests for the model."""
        self.signatures.pop(name, None)
        self._old_models.pop(name, None)
        self.graphs.models_changed()

    def serve(self, model: ServedModel) -> None:
        """Take requests for a repository's model to these versions from now on; none, if there are none."""
        if model.versions:
            self.served[model.name] = model
        else:
            self.served.pop(model.name, None)
        self._old_served.pop(model.name, None)
        self._combine(model.name)
        self.graphs.models_changed()

    def set_graph(self, name: str, graph: GraphSpec | None, shares: Mapping[str, float] = NO_SHARES) -> None:
        """Take requests for a graph of models from now on; None: no more. ``shares`` as of `peers.Graph`."""
        self.graphs.put(name, graph, shares)
        self._old_graphs.pop(name, None)

    def set_default_slo(self, name: str, slo_ns: int | None) -> None:
        """Give requests for a model that bring no SLO this one; None for the configured one."""
        if slo_ns is None:
            self._slos_ns.pop(name, None)
        else:
            self._slos_ns[name] = slo_ns
        self._old_slos.pop(name, None)
        self._combine(name)

    def worker_up(self, worker: str, address: str) -> None:
        """Send inputs for the worker to this address."""
        self.workers[worker] = address
        self._old_workers.pop(worker, None)

    def worker_down(self, worker: str) -> None:
        """Send the worker nothing more."""
        self.workers.pop(worker, None)
        self._old_workers.pop(worker, None)

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next."""
        return self._confirm_by_ns

    def tick(self, now_ns: int) -> list[str]:
        """Forget what the controller did not confirm; return the workers among it."""
        if self._confirm_by_ns is None or now_ns < self._confirm_by_ns:
            return []
        self._confirm_by_ns = None
        for name in self._old_models:
            del self.signatures[name]
        for name in self._old_served:
            del self.served[name]
            self._combine(name)
        for name in list(self._old_slos):
            self.set_default_slo(name, None)
        for name in list(self._old_graphs):
            self.set_graph(name, None)
        self.graphs.models_changed()
        gone = list(self._old_workers)
        for worker in gone:
            del self.workers[worker]
        self._old_models, self._old_served, self._old_workers = {}, {}, {}
        return gone

    def _combine(self, name: str) -> None:
        """Note how a model is served whose default SLO an operator set: every request asks."""
        slo_ns = self._slos_ns.get(name)
        if slo_ns is None:
            self._options.pop(name, None)
        else:
            configured = self.served.get(name) or ServedModel(name, {})
            self._options[name] = msgspec.structs.replace(configured, slo_ns=slo_ns, priority_slos_ns={})

    def observe(self, now_ns: int, message: Observe) -> Observed | ErrorReply:
        """Return what became of feedback for an application's answer, or what is wrong with it."""
        try:
            self.resolve(message.application, None)
            told = Counter(self.graphs.applications.observe(now_ns, message))
        except BadRequest as error:
            return ErrorReply(message.key, error.reason, error.detail)
        return Observed(message.key, *[told[each] for each in Feedback])

    def top_k(self, now_ns: int, message: TopK, then: Callable[[BestItems | ErrorReply], None]) -> None:
        """Hand on the best items of an application, or what is wrong with asking for them."""
        try:
            self.resolve(message.application, None)
            self.graphs.applications.top_k(now_ns, message, then)
        except BadRequest as error:
            then(ErrorReply(message.key, error.reason, error.detail))

    @property
    def counts(self) -> dict[str, int]:
        """Return what applications counted, by the names of `mainspring status`."""
        return self.graphs.applications.counts()

    def forget(self, message: ForgetContext) -> Done | ErrorReply:
        """Erase what an application has learnt of a context, or say what is wrong."""
        try:
            self.resolve(message.application, None)
            self.graphs.applications.forget(message.application, message.context)
        except BadRequest as error:
            return ErrorReply(message.key, error.reason, error.detail)
        return Done(message.key)


def catalog_of(config: GatewayConfig, seed: int = 0) -> Catalog:
    """Return an empty catalog with a gateway's settings; ``seed`` as of `Graphs`."""
    found = Catalog(
        triton=config.compatibility == TRITON,
        most_rows=config.max_rows_per_request,
        most_rows_of=config.model_max_rows,
        seed=seed,
    )
    found.graphs.applications.state_bytes = config.application_state_bytes
    return found


def unknown_model(name: str, known: Mapping[str, object]) -> str:
    """Return the sentence for a model that is not served, with the nearest names that are."""
    if not known:
        return f"model {shorten(name)} is not served; no model is"
    near = nearest(name, known)
    if near:
        return f"model {shorten(name)} is not served; did you mean {' or '.join(map(shorten, near))}?"
    others = "1 other is" if len(known) == 1 else f"{len(known)} others are"
    return f"model {shorten(name)} is not served; {others}"


def _no_version(name: str, version: int, served: tuple[int, ...]) -> str:
    numbers = ", ".join(map(str, served[-8:]))
    more = f"{len(served) - 8} older ones and " if len(served) > 8 else ""
    plural = "s" * (len(served) > 1)
    return f"model {shorten(name)} has no version {version}; it is served in version{plural} {more}{numbers}"


def _renamed(spec: ModelSpec, name: str) -> ModelSpec:
    return msgspec.structs.replace(spec, name=name)


class DrainingModels:
    """Models that the controller wants to remove once no request for them is in flight here.

    New requests don't name them any more. Whether old ones are left is looked up in all requests, every
    `LOOK_NS` and only while there is such a model: nothing is counted while there is none.
    """

    def __init__(self, holds: Callable[[str], bool]) -> None:
        """``holds``: whether a request for a model is in flight."""
        self._holds = holds
        self._names: dict[str, None] = {}
        self._look_ns = 0

    def model_down(self, now_ns: int, message: ModelDown) -> None:
        """Note a model that is removed, at once or once it is drained."""
        if message.drain:
            if not self._names:
                self._look_ns = now_ns
            self._names[message.name] = None
        else:
            self.keep(message.name)

    def keep(self, name: str) -> None:
        """Stop waiting for a model, which stays after all or is gone already."""
        self._names.pop(name, None)

    def controller_lost(self) -> None:
        """Forget all models: a controller that still wants to remove one says so again."""
        self._names.clear()

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next."""
        return self._look_ns if self._names else None

    def tick(self, now_ns: int) -> list[str]:
        """Return the models that have just been drained, each once."""
        if not self._names or now_ns < self._look_ns:
            return []
        self._look_ns = now_ns + LOOK_NS
        drained = [name for name in self._names if not self._holds(name)]
        for name in drained:
            del self._names[name]
        return drained


def completed(
    request: InferRequest, frames: Sequence[Any], signature: Signature
) -> tuple[InferRequest, Sequence[Any]]:
    """Return the request with the defaults of what it leaves out, and their frames.

    A model with defaults has no axis for rows.
    """
    given = {header.name for header in request.inputs}
    missing = [tensor for name, tensor in signature.defaults.items() if name not in given]
    if not missing:
        return request, frames
    headers = [TensorHeader(each.name, each.dtype, each.shape) for each in missing]
    added = [each.default or b"" for each in missing]
    return msgspec.structs.replace(request, inputs=(*request.inputs, *headers)), [*frames, *added]
