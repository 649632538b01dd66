"""Families of models as graphs of one step, whose model the controller chooses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainspring.gateway.core.validation import Signature
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.graphs import FAMILY_STEP, GraphSpec, StepSpec
from mainspring.messages.model import ModelSpec, TensorSpec


class Members(NamedTuple):
    """The models that may answer for a step, the best first."""

    names: tuple[str, ...]
    """The scheduler's."""
    written: tuple[str, ...]
    """As the family's owner calls them."""
    scores: tuple[float, ...]


def members_of(family: GraphSpec, found: Sequence[Signature]) -> tuple[Members, Signature]:
    """Return a family's members, and the signature that they have in common: the first's, with batches that
    each of them takes.

    ``found`` are the members' own, in the order of the file. Raises `GraphError` where they differ.
    """
    for name, each in zip(family.members[1:], found[1:], strict=True):
        if wrong := difference(found[0].spec, each.spec):
            raise GraphError(f"members {family.members[0]!r} and {name!r} differ: {wrong}")
    order = sorted(range(len(found)), key=lambda index: -family.score[index])
    members = Members(
        tuple([found[index].spec.name for index in order]),
        tuple([family.members[index] for index in order]),
        tuple([family.score[index] for index in order]),
    )
    best, most = found[order[0]].spec, min([each.max_rows for each in found])
    sizes = (*[size for size in best.batch_sizes if size < most], most)
    return members, Signature(msgspec.structs.replace(best, batch_sizes=sizes))


def as_graph(family: GraphSpec, model: ModelSpec) -> GraphSpec:
    """Return the graph of one step that a family is, by the signature that its members have in common."""
    inputs = tuple([each.name for each in model.inputs])
    step = StepSpec(name=FAMILY_STEP, model=family.name, inputs={name: name for name in inputs})
    outputs: dict[str, str | tuple[str, ...]] = {
        each.name: f"{FAMILY_STEP}.{each.name}" for each in model.outputs
    }
    return GraphSpec(name=family.name, inputs=inputs, steps=(step,), outputs=outputs, slo_ms=family.slo_ms)


def difference(one: ModelSpec, other: ModelSpec) -> str:
    """Return what of two models' interfaces differs; empty if nothing does."""
    if one.sequencing is not None or other.sequencing is not None:
        return "requests of one of them come in sequences"
    if one.whole != other.whole:
        return "one of them has rows and the other none"
    for what, ours, theirs in (("input", one.inputs, other.inputs), ("output", one.outputs, other.outputs)):
        names, others = [each.name for each in ours], [each.name for each in theirs]
        if names != others:
            return f"the {what}s are {', '.join(names)} and {', '.join(others)}"
        for mine, its in zip(ours, theirs, strict=True):
            if mine != its:
                return f"{what} {mine.name!r} is {_shown(mine)} and {_shown(its)}"
    limits = [[(each.least, each.limit) for each in spec.symbols] for spec in (one, other)]
    return "" if limits[0] == limits[1] else f"open dimensions may be {limits[0]} and {limits[1]}"


def _shown(tensor: TensorSpec) -> str:
    rows = f", rows along axis {tensor.rows_axis}" if tensor.rows_axis else ""
    return f"{tensor.dtype}[{', '.join(tensor.dims)}]{rows}"
