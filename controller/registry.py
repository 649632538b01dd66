"""The models that are served, how they change, and the checks that stand between them and the scheduler.

Every number of a model is bounded, so that sums and products of them stay within what messages and clocks
can hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Outbox
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.controller.standing import Readiness
from mainspring.messages.codes import Reason
from mainspring.messages.events import ModelAdded, ModelRemoved
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import DTYPES, PAGE_BYTES, ModelSpec, TensorSpec, is_dtype
from mainspring.messages.operating import SetGraph
from mainspring.messages.peers import DefaultSlo, Graph, ModelDown, ModelUp, Served
from mainspring.messages.served import ServedModel
from mainspring.messages.targets import built_for, check_targets, each_build, targets_of

MAX_NAME_CHARACTERS = 128
MAX_PAGES = 1 << 24
"""Pages that one worker, and so one model, may have: 256 TiB."""
MAX_BATCH_SIZE = 65_536
MAX_DURATION_NS = 3_600 * 10**9
"""The longest LOAD or INFER that a profile may name: an hour."""
MAX_ROW_BYTES = 1 << 40
"""Bytes of a row of one tensor."""
MAX_VERSION = (1 << 63) - 1
MAX_VERSIONS = 1024
"""Versions of one model that may be served at the same time."""
MAX_QUEUE_SIZE = (1 << 32) - 1
"""The largest that a configuration can say."""
MAX_CONFIG_CHARACTERS = 1 << 20
MAX_LABELS_CHARACTERS = 4 << 20
"""Characters of the labels of all outputs of a model together."""

Refusal = tuple[Reason, str]
"""The reason why a change is refused."""


class DrainingModels:
    """Models that are removed once no gateway has a request for them in flight.

    For each model it has the numbers of the gateways that have yet to say `Drained`. A gateway sends
    `Drained` behind its requests, so all of them have arrived before it; to a controller that restarted, a
    gateway submits its requests again before it repeats `Drained`.
    """

    def __init__(self) -> None:
        self._awaited: dict[str, set[int]] = {}
        self.moving: set[str] = set()
        """Models that another shard is to have."""

    def __contains__(self, name: str) -> bool:
        return name in self._awaited

    def __len__(self) -> int:
        return len(self._awaited)

    def names(self) -> list[str]:
        """Return the models, in the order in which their draining began."""
        return list(self._awaited)

    def begin(self, name: str, gateways: Iterable[int]) -> bool:
        """Wait for these gateways; return True if there are none, so that the model can be removed."""
        awaited = self._awaited[name] = set(gateways)
        return not awaited and self.end(name)

    def joined(self, gateway: int) -> list[str]:
        """Wait for one more gateway; return the models that it has to drain."""
        for awaited in self._awaited.values():
            awaited.add(gateway)
        return list(self._awaited)

    def drained(self, name: str, gateway: int) -> bool:
        """Wait for this gateway no longer; return True if it was the last, so that the model can go."""
        awaited = self._awaited.get(name)
        if awaited is None:
            return False
        awaited.discard(gateway)
        return not awaited and self.end(name)

    def left(self, gateway: int) -> list[str]:
        """Forget a gateway whose session ended; return the models that can be removed now."""
        return [name for name in list(self._awaited) if self.drained(name, gateway)]

    def end(self, name: str) -> bool:
        """Forget the model, because it is removed or because it stays after all; return True."""
        self._awaited.pop(name, None)
        self.moving.discard(name)
        return True


class ModelRegistry:
    """The models by name; each change goes to the scheduler and to every gateway."""

    def __init__(
        self,
        max_models: int,
        scheduler: LoggedScheduler,
        sessions: SessionTable,
        outbox: Outbox,
        left_out: dict[str, str] | None = None,
        silence_ns: int = 1_000_000_000,
        shares: Mapping[str, dict[str, float]] = MappingProxyType({}),
    ) -> None:
        """``silence_ns``: as `Readiness`; ``shares``: as `memory.Memory.shares`, of
        graphs for which no query has come since the start."""
        self.models: dict[str, ModelSpec] = {}
        """Every served model by name."""
        self.served: dict[str, ServedModel] = {}
        """The models of a repository, by what clients call them."""
        self.left_out = left_out or {}
        """Models of the store that are not served as their manifest can't be read, each with the reason."""
        self.readiness = Readiness(scheduler, sessions, outbox, self.left_out, silence_ns)
        self._shares = shares
        self._max_models = max_models
        self._draining = DrainingModels()
        self._scheduler = scheduler
        self._sessions = sessions
        self._outbox = outbox

    def add(self, now_ns: int, spec: ModelSpec) -> Refusal | None:
        """Serve a model from now on; return why not, or None. A model may be added twice."""
        known = self.models.get(spec.name)
        if known is not None:
            made = targets_of(known)
            if known.artifact == built_for(spec, (known.target,)).artifact and targets_of(spec) == made:
                self._keep(known)
                return None
            others = f"artifacts for {', '.join(made)}"
            if targets_of(spec) == made:
                same = known.weights_hash == built_for(spec, (known.target,)).weights_hash
                others = "another executable, or other batch sizes" if same else "other weights"
            detail = f"model {spec.name!r} is served with {others}; remove it first, or choose another name"
            return Reason.MODEL_EXISTS, detail
        fault = spec_fault(spec)
        if fault is not None:
            return Reason.BAD_MESSAGE, f"model {spec.name[:MAX_NAME_CHARACTERS]!r} can't be served: {fault}"
        if self.graph_named(spec.public_name):
            detail = f"a graph is called {spec.public_name!r}: remove it, or choose another name"
            return Reason.MODEL_EXISTS, detail
        if len(self.models) >= self._max_models:
            detail = (
                f"{self._max_models} models are served, which is the bound (max_models); remove one first"
            )
            return Reason.OVERLOADED, detail
        self.models[spec.name] = spec
        self.left_out.pop(spec.name, None)
        self._scheduler.handle(now_ns, ModelAdded(spec))
        self.readiness.look_at(now_ns, (spec.name,))
        self._outbox.send_gateways(ModelUp(spec))
        return None

    def replace(self, now_ns: int, spec: ModelSpec) -> None:
        """Serve other files under the name of a model that no worker has prepared."""
        self.models[spec.name] = spec
        self._scheduler.handle(now_ns, ModelAdded(spec))
        self.readiness.look_at(now_ns, (spec.name,))
        self._outbox.send_gateways(ModelUp(spec))

    def remove(self, now_ns: int, name: str) -> Refusal | None:
        """Stop serving a model; return why not, or None."""
        if self.models.pop(name, None) is None:
            why = f"there is no model {name[:MAX_NAME_CHARACTERS]!r} to remove"
            if name in self.served:
                why = f"model {name!r} is a repository's: unload it, or take it out of the repository"
            return Reason.UNKNOWN_MODEL, why
        self._draining.end(name)
        self._scheduler.handle(now_ns, ModelRemoved(name))
        self._outbox.send_gateways(ModelDown(name))
        return None

    def drain(self, now_ns: int, name: str, moves: bool = False) -> Refusal | None:
        """Remove a model once no gateway has a request for it in flight; return why not, or None.

        ``moves``: another shard is to have it, and gateways take requests for it to this one until it has.
        """
        if name not in self.models or name in self._draining:
            return None if name in self._draining else self.remove(now_ns, name)
        if self._draining.begin(name, [gateway.number for gateway in self._sessions.gateways.values()]):
            return self.remove(now_ns, name)
        if moves:
            self._draining.moving.add(name)
        self._outbox.send_gateways(ModelDown(name, drain=True, moves=moves))
        return None

    def serve(self, now_ns: int, model: ServedModel) -> Refusal | None:
        """Direct requests for a model of the repository to these versions; return why not, or None.

        A model without versions is no longer served.
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
        self.readiness.look_at(now_ns, model.versions.values())
        self._outbox.send_gateways(Served(model))
        return None

    def is_known(self, name: str) -> bool:
        """Say whether clients can ask for a model of this name."""
        spec = self.models.get(name)
        return name in self.served or (spec is not None and not spec.served_as)

    def send_default_slo(self, name: str, slo_ns: int | None) -> None:
        """Have gateways give a model's requests that bring no SLO this one; None: the configured one."""
        self._outbox.send_gateways(DefaultSlo(name, slo_ns))

    def graph_named(self, name: str) -> bool:
        """Say whether clients can ask for a graph of this name."""
        asked = self._scheduler.asked(("graph", name))
        return asked is not None and isinstance(asked.command, SetGraph) and asked.command.graph is not None

    def send_graph(self, name: str, graph: GraphSpec | None) -> None:
        """Have gateways take requests for a graph of this name from now on, or no more."""
        self._outbox.send_gateways(Graph(name, graph))

    def welcome(self, gateway: GatewaySession) -> None:
        """Send all models to a new gateway."""
        self.readiness.welcome(gateway)
        for spec in self.models.values():
            self._outbox.send(gateway, ModelUp(spec))
        for served in self.served.values():
            self._outbox.send(gateway, Served(served))
        for name, slo_ns in self._scheduler.core.default_slos_ns().items():
            self._outbox.send(gateway, DefaultSlo(name, slo_ns))
        cluster = self._scheduler.cluster
        for name, graph in cluster.graphs().items():
            known = cluster.graph_shares if name in cluster.graph_shares else self._shares
            self._outbox.send(gateway, Graph(name, graph, known.get(name, {})))
        for name in self._draining.joined(gateway.number):
            moves = name in self._draining.moving
            self._outbox.send(gateway, ModelDown(name, drain=True, moves=moves))

    def drained(self, now_ns: int, gateway: GatewaySession, name: str) -> None:
        """Note that a gateway has no request in flight for a model that is being drained."""
        if self._draining.drained(name, gateway.number):
            self.remove(now_ns, name)

    def gateway_left(self, now_ns: int, gateway: GatewaySession) -> None:
        """Wait no longer for a gateway whose session ended."""
        for name in self._draining.left(gateway.number):
            self.remove(now_ns, name)

    def _keep(self, spec: ModelSpec) -> None:
        """Keep serving a model that is being drained."""
        if spec.name in self._draining:
            self._draining.end(spec.name)
            self._outbox.send_gateways(ModelUp(spec))


def spec_fault(spec: ModelSpec) -> str | None:
    """Return what is wrong with a model from a client, a worker or a file, or None."""
    sizes = spec.batch_sizes
    if not 0 < len(spec.name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(spec.name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        return f"its batch sizes are {sizes}; they must be positive and ascending, such as (1, 2, 4, 8, 16)"
    if sizes[-1] > MAX_BATCH_SIZE:
        return f"its largest batch size is {sizes[-1]}; it may be at most {MAX_BATCH_SIZE}"
    return (
        _memory_fault(spec)
        or _profile_fault(spec)
        or _targets_fault(spec)
        or _tensors_fault("inputs", spec.inputs)
        or _tensors_fault("outputs", spec.outputs)
    )


def served_fault(model: ServedModel) -> str | None:
    """Return what is wrong with a model of the repository, or None."""
    if not 0 < len(model.name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(model.name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if len(model.versions) > MAX_VERSIONS:
        return f"it has {len(model.versions)} versions; it may have at most {MAX_VERSIONS}"
    wrong = [version for version in model.versions if not 0 < version <= MAX_VERSION]
    if wrong:
        return f"it has a version {wrong[0]}; versions are numbers from 1 up"
    if model.slo_ns is not None and not 0 < model.slo_ns <= MAX_DURATION_NS:
        return f"its SLO is {model.slo_ns:,} ns; it must be above 0 and at most {MAX_DURATION_NS:,}"
    wrong_ns = [each for each in model.priority_slos_ns.values() if not 0 <= each <= MAX_DURATION_NS]
    if wrong_ns:
        return f"the SLO of a priority is {wrong_ns[0]:,} ns; it must be from 0 to {MAX_DURATION_NS:,}"
    if not 0 <= model.max_queue_size <= MAX_QUEUE_SIZE:
        return f"its max_queue_size is {model.max_queue_size}; it must be from 0 to {MAX_QUEUE_SIZE:,}"
    labels = sum(len(label) for named in model.labels.values() for label in named)
    if labels > MAX_LABELS_CHARACTERS:
        return f"its labels have {labels:,} characters; they may have {MAX_LABELS_CHARACTERS:,}"
    if len(model.config) > MAX_CONFIG_CHARACTERS:
        return (
            f"its configuration has {len(model.config):,} characters; it may have {MAX_CONFIG_CHARACTERS:,}"
        )
    return None


def _targets_fault(spec: ModelSpec) -> str | None:
    """Return what is wrong with the artifacts of a model for other targets than its own, or None."""
    made = targets_of(spec)
    if spec.others and (len({*made}) < len(made) or "" in made):
        return f"its artifacts are for {made}; each must be for another target"
    try:
        check_targets([each for each in made if each])
    except ValueError as error:
        return str(error)
    for each in each_build(spec)[1:]:
        if fault := _memory_fault(each) or _profile_fault(each):
            return f"of its artifact for {each.target}, {fault}"
    return None


def _memory_fault(spec: ModelSpec) -> str | None:
    if any(extent < 1 for extent in spec.extents):
        return f"its extents are {spec.extents}; each must have at least one page"
    if spec.pages > MAX_PAGES:
        return f"its extents have {spec.pages} pages; they may have at most {MAX_PAGES}"
    if not 0 <= spec.weights_bytes <= spec.pages * PAGE_BYTES:
        return f"its weights have {spec.weights_bytes} bytes, its extents hold {spec.pages * PAGE_BYTES}"
    return None


def _profile_fault(spec: ModelSpec) -> str | None:
    for kind, profile in spec.profiles.items():
        missing = [size for size in spec.batch_sizes if profile.infer_ns.get(size, 0) < 1]
        if missing or profile.load_ns < 0:
            return f"its profile for {kind!r} lacks a positive duration for batch sizes {missing} or for LOAD"
        longest_ns = max(profile.load_ns, *profile.infer_ns.values())
        if longest_ns > MAX_DURATION_NS:
            return (
                f"its profile for {kind!r} has a duration of {longest_ns / 1e9:,.0f} s; "
                f"it may be at most {MAX_DURATION_NS // 10**9:,} s"
            )
    return None


def _tensors_fault(kind: str, tensors: Sequence[TensorSpec]) -> str | None:
    twice = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
    if twice:
        return f"its {kind} have the name {twice[0]!r} more than once; each needs a name of its own"
    for tensor in tensors:
        if not is_dtype(tensor.dtype):
            return (
                f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; it must be one of {', '.join(DTYPES)}, "
                "or slots of bytes such as S64"
            )
        if any(axis < 0 for axis in tensor.shape):
            return f"tensor {tensor.name!r} has shape {tensor.shape}; each axis must be at least 0"
        if not 0 <= tensor.rows_axis <= len(tensor.shape):
            return (
                f"tensor {tensor.name!r} has its rows as axis {tensor.rows_axis}; with {len(tensor.shape)} "
                "others it is from 0 to that"
            )
        if tensor.row_bytes > MAX_ROW_BYTES:
            return (
                f"a row of tensor {tensor.name!r} has {tensor.row_bytes:,} bytes; "
                f"it may have at most {MAX_ROW_BYTES:,}"
            )
    return None
