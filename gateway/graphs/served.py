"""The graphs that clients may ask for by name, as models of their own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from mainspring.gateway.core.requests import Pending
from mainspring.gateway.core.validation import BadRequest, Signature, shorten
from mainspring.gateway.graphs import learnt
from mainspring.gateway.graphs.applications import Applications, MembersGone
from mainspring.gateway.graphs.checking import Graph, GraphError, check_graph
from mainspring.gateway.graphs.families import Members, as_graph, members_of
from mainspring.gateway.graphs.lengths import Expected
from mainspring.gateway.graphs.run import GraphFlow
from mainspring.gateway.graphs.texts import TOKENS, TextForm, behind_tokenizer, text_form
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.choices import did_you_mean
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, graph_fault
from mainspring.messages.model import ModelSpec, OpenDim, Symbol, TensorSpec, Term
from mainspring.selection.application import Application

NO_SHARES: Mapping[str, float] = MappingProxyType({})
Resolve = Callable[[str, int | None], Signature]
"""As `validation.Resolve`, of models alone."""


class ServedGraph(NamedTuple):
    """A graph that makes sense with the models as they are now."""

    graph: Graph
    models: tuple[Signature, ...]
    """The signature of each step's model."""
    expected: Expected
    members: tuple[Members | None, ...]
    """Of each step that names a family, its members."""
    form: TextForm | None = None
    """Of a graph that serves texts, what it takes and gives."""
    application: Application | None = None
    """What was learnt of its members, of an application."""
    generator: np.random.Generator | None = None
    """What an application's policy draws from."""

    @property
    def may_lack(self) -> bool:
        """Say whether it answers without some step where that can't be in time."""
        spec = self.graph.spec
        return spec.combine is not None or not all(step.required for step in spec.steps)

    def flow(self, request: Pending) -> GraphFlow:
        """Return the flow of a request for it that has just come."""
        made = self.graph, self.models, self.members, self.expected
        if self.application is not None and self.generator is not None:
            return learnt.LearntFlow(made, self.application, self.generator, request)
        return GraphFlow(*made, request)


class Graphs:
    """The graphs by name. What each is with the present models is found out when it is asked for."""

    def __init__(
        self,
        resolve: Resolve,
        most_rows: int,
        most_rows_of: Mapping[str, int] = MappingProxyType({}),
        seed: int = 0,
    ) -> None:
        """``most_rows`` is the bound of a request's rows; ``most_rows_of`` has that of single graphs.

        ``seed`` as of `Applications`.
        """
        self.applications = Applications(seed)
        self.specs: dict[str, GraphSpec] = {}
        self.shards: dict[str, int] = {}
        """The shard of each model that is not in shard 0, by the scheduler's name; graphs are entered beside
        them, in the shard of their models."""
        self._resolve = resolve
        self._most_rows, self._most_rows_of = max(1, most_rows), most_rows_of
        self._known: dict[str, Signature | BadRequest] = {}
        """The signature of each that was asked for since models changed, or why it has none."""
        self._expected: dict[str, Expected] = {}
        """What was learnt of each, whose shares outlive a change of models."""
        self._told: dict[str, Mapping[str, float]] = {}
        """What others had learnt of each before, by step."""

    def put(self, name: str, spec: GraphSpec | None, shares: Mapping[str, float] = NO_SHARES) -> None:
        """Take requests for a graph from now on; None: no more.

        ``shares``: what others have learnt of it (`peers.Graph`), unless this gateway has, too.
        """
        before = self.specs.pop(name, None)
        same = before == spec
        self._told.pop(name, None)
        if before is not None and before.application and (spec is None or spec.application is None):
            self.applications.drop(name)
        if spec is not None:
            self.specs[name], self._told[name] = spec, shares
        # Others may have steps of a family.
        self._known.clear()
        for each in (name, f"{name}{TOKENS}"):
            self.shards.pop(each, None)
            if not same:
                self._expected.pop(each, None)

    def models_changed(self) -> None:
        """Look again at what each graph is."""
        self._known.clear()

    def signature(self, name: str) -> Signature:
        """Return a graph as a model; raise `BadRequest` with the reason if requests can't be served now."""
        known = self._known.get(name)
        if known is None:
            try:
                known, shard = self._checked(self._spec(name))
                self._expected[name] = known.graph.expected
                self.shards.pop(name, None)
                if shard:
                    self.shards[name] = shard
            except GraphError as error:
                reason = Reason.MODEL_REMOVED if isinstance(error, MembersGone) else Reason.MODEL_NOT_READY
                known = BadRequest(reason, f"graph {name!r} can't be served: {error}")
            self._known[name] = known
        if isinstance(known, BadRequest):
            raise BadRequest(known.reason, known.detail)
        return known

    def fault(self, name: str) -> str:
        """Return why requests for a graph are refused now; empty if they are not."""
        try:
            self.signature(name)
        except BadRequest as error:
            return error.detail
        return ""

    def check(self, spec: GraphSpec) -> None:
        """Raise `GraphError` for the first fault of a graph that is to be added; nothing changes."""
        self._checked(spec)
        there = self.specs.get(spec.name)
        if there is not None and bool(there.application) != bool(spec.application):
            kind = "an application" if there.application else "a graph"
            raise GraphError(f"{kind} has this name: choose another one, or remove it first")
        try:
            self._resolve(spec.name, None)
        except BadRequest:
            return
        raise GraphError("a model has this name: choose another one")

    def _checked(self, spec: GraphSpec) -> tuple[Signature, int]:
        """Return a graph as a model, and the shard of its models; raise `GraphError` for the first fault."""
        given = spec
        if fault := graph_fault(spec):
            raise GraphError(fault)
        found: dict[str, Signature] = {}
        families: dict[str, Members] = {}
        if spec.members:
            families[spec.name], found[spec.name] = self._family(spec)
            spec = as_graph(spec, found[spec.name].spec)
        application: Application | None = None
        if spec.application is not None:
            application = self._application(spec, found, families)
            if application.members:
                spec = learnt.as_graph(application.spec, {name: each.spec for name, each in found.items()})
        for step in spec.steps:
            self._resolve_step(f"step {step.name!r}", step.model, found, families)
        if application is not None and not application.members:
            graph = learnt.of_table(application.spec)
        else:
            graph = check_graph(spec, {name: each.spec for name, each in found.items()})
        models = tuple([found[step.spec.model] for step in graph.steps])
        members = tuple([families.get(step.spec.model) for step in graph.steps])
        names = {each.spec.name: each.spec.public_name for each in models}
        for several in families.values():
            names |= dict(zip(several.names, several.written, strict=True))
        shards = {self.shards.get(name, 0): public for name, public in names.items()}
        if len(shards) > 1:
            where = " and ".join(f"{name!r} in shard {shard}" for shard, name in sorted(shards.items()))
            raise GraphError(f"its models are in several shards, {where}: move them to one")
        expected = Expected(models)
        if spec.name in self._expected and self.specs.get(spec.name) is given:
            expected.shares = self._expected[spec.name].shares
        else:
            told = self._told.get(spec.name.removesuffix(TOKENS), NO_SHARES)
            steps = [step.spec.name for step in graph.steps]
            expected.shares = {steps.index(step): share for step, share in told.items() if step in steps}
        form = text_form(graph) if spec.serves else None
        if application is not None and application.members:
            graph = learnt.answering(application.spec, graph)
        most_rows = self._most_rows_of.get(spec.name.removesuffix(TOKENS), self._most_rows)
        generator = self.applications.generator
        served = ServedGraph(graph, models, expected, members, form, application, generator)
        return _signature(served, most_rows), next(iter(shards), 0)

    def _resolve_step(
        self, where: str, model: str, found: dict[str, Signature], families: dict[str, Members]
    ) -> None:
        """Enter the signature of a step's model, and of a family its members; raise `GraphError`."""
        if model in found:
            return
        try:
            family = self.specs.get(model)
            if family is not None and family.members:
                families[model], found[model] = self._family(family)
            else:
                found[model] = self._resolve(*_version_of(model))
        except BadRequest as error:
            raise GraphError(f"{where}: {error.detail}") from None
        except GraphError as error:
            raise GraphError(f"{where}: family {model!r}: {error}") from None

    def _application(
        self, spec: GraphSpec, found: dict[str, Signature], families: dict[str, Members]
    ) -> Application:
        """Return an application, and enter the signatures of its members; raise `GraphError`.

        One that is to be added needs them all. One that is served goes on without those that were removed.
        """
        assert spec.application is not None
        serving = self.specs.get(spec.name) is spec
        for member in spec.application.members:
            if not serving or not self._gone(member):
                self._resolve_step(f"member {member!r}", member, found, families)
        if not serving:
            return self.applications.made(spec.application, found)
        return self.applications.take(spec.application, found)

    def _gone(self, member: str) -> bool:
        """Say whether there is no such model or family, nor waits to be one."""
        if member in self.specs:
            return False
        try:
            self._resolve(*_version_of(member))
        except BadRequest as error:
            return error.reason is Reason.UNKNOWN_MODEL
        return False

    def report(self, name: str) -> ApplicationReport:
        """Return what was learnt and counted of an application; raise `BadRequest` if there is none."""
        known = [each for each, spec in self.specs.items() if spec.application is not None]
        if name not in known:
            near = did_you_mean(name, known)
            raise BadRequest(Reason.UNKNOWN_MODEL, f"there is no application {shorten(name)}{near}")
        return next(self.reports(lambda each: each == name))

    def reports(self, sees: Callable[[str], bool] = lambda _name: True) -> Iterator[ApplicationReport]:
        """Yield what was learnt and counted of each application whose name passes ``sees``, by name."""
        for name, spec in sorted(self.specs.items()):
            if spec.application is not None and sees(name):
                yield self.applications.report(spec.application, self.fault(name), self._gone)

    def _family(self, family: GraphSpec) -> tuple[Members, Signature]:
        """Return a family's members and their common signature; raise `GraphError`."""
        try:
            return members_of(family, [self._resolve(*_version_of(name)) for name in family.members])
        except BadRequest as error:
            raise GraphError(error.detail) from None

    def needs(self, model: str) -> str:
        """Return why a model can't be removed under a graph; empty if none has a step of it."""
        used = self.using(model)
        if not used:
            return ""
        has = (
            "a member"
            if self.specs[used[0]].members or self.specs[used[0]].application
            else "a step of model"
        )
        return f"graph {used[0]!r} has {has} {model!r}: remove it first"

    def models_of(self, name: str) -> list[str]:
        """Return the models of a graph's steps, by the names that clients call them; none of another."""
        spec = self.specs.get(name)
        return [] if spec is None else list(dict.fromkeys(self._models(spec)))

    def _models(self, spec: GraphSpec) -> Iterator[str]:
        """Yield the models that a graph names, for a family its members."""
        yield from [_version_of(name)[0] for name in spec.members]
        members = () if spec.application is None else spec.application.members
        for model in (*members, *[step.model for step in spec.steps]):
            family = self.specs.get(model)
            if family is not None and family.members:
                yield from self._models(family)
            else:
                yield _version_of(model)[0]

    def __contains__(self, name: str) -> bool:
        """Say whether requests may name this: a graph, or one that takes texts behind its tokenizer."""
        base = name.removesuffix(TOKENS)
        return name in self.specs or (base in self.specs and self.specs[base].serves is not None)

    def _spec(self, name: str) -> GraphSpec:
        return (
            self.specs[name]
            if name in self.specs
            else behind_tokenizer(self.specs[name.removesuffix(TOKENS)])
        )

    def using(self, model: str) -> list[str]:
        """Return the graphs with a step of a model, by the name that clients call it."""
        return [name for name, spec in self.specs.items() if model in self._models(spec)]


def _version_of(text: str) -> tuple[str, int | None]:
    """Return the model and the version that a step names."""
    name, colon, version = text.rpartition(":")
    return (name, int(version)) if colon and version.isdecimal() else (text, None)


def _signature(served: ServedGraph, most_rows: int) -> Signature:
    """Return a graph as a model that clients may ask for."""
    graph = served.graph
    rows = 1 if graph.single else most_rows
    symbols: list[Symbol] = []
    limits = _limits(served)
    spec = ModelSpec(
        name=graph.spec.name,
        weights_hash="",
        executable=f"graph {graph.spec.name}",
        batch_sizes=(rows,),
        weights_bytes=0,
        extents=(),
        inputs=tuple([_input(tensor, symbols, limits) for tensor in graph.inputs]),
        outputs=tuple([_output(tensor) for tensor, _ in graph.outputs]),
        profiles={},
        unshared="a step of the graph has rows of its own" if graph.single else "",
    )
    signature = Signature(msgspec.structs.replace(spec, symbols=tuple(symbols)), rows)
    signature.graph = served
    best = [each.scores[0] for each in served.members if each is not None]
    signature.best_score = min(best, default=None)
    return signature


def _limits(served: ServedGraph) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Return the least and largest size of each axis of each input of the graph, as its first taker has."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    names = served.graph.spec.inputs
    for step in served.graph.steps:
        for tensor, source in zip(step.model.inputs, step.takes, strict=True):
            if source.step >= 0 or names[source.tensor] in found:
                continue
            known = step.model.symbols
            least = {dim.axis: 0 if dim.symbol is None else known[dim.symbol].least for dim in tensor.open}
            found[names[source.tensor]] = tuple(
                [(least.get(axis, size), size) for axis, size in enumerate(tensor.shape)]
            )
    return found


def _input(
    tensor: TensorSpec, symbols: list[Symbol], limits: Mapping[str, tuple[tuple[int, int], ...]]
) -> TensorSpec:
    """Return an input whose open dimensions are symbols of the graph, which a step's model looks at again."""
    dims = []
    for dim in tensor.open:
        least, most = limits[tensor.name][dim.axis]
        dims.append(OpenDim(dim.axis, (Term(len(symbols)),)))
        symbols.append(Symbol(f"{tensor.name}[{dim.axis + 1}]", (most,), least))
    return TensorSpec(tensor.name, tensor.dtype, tensor.shape, tuple(dims))


def _output(tensor: TensorSpec) -> TensorSpec:
    """Return an output; sizes that follow from a request are such that vary."""
    varies = tuple(sorted({*tensor.varies, *[dim.axis for dim in tensor.open]}))
    return TensorSpec(tensor.name, tensor.dtype, tensor.shape, varies=varies)
