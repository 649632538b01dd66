"""Graphs of models as their owners write them: steps, what each takes, and what a graph answers with."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mainspring.messages.applications import LINEAR, ApplicationSpec, application_fault, read_application
from mainspring.messages.queries import MOST_CHARACTERS, MOST_SLO_MS, MOST_STEPS
from mainspring.messages.tables import ConfigError, build

MOST_BYTES = 1 << 20
"""Characters of a graph's file."""
MOST_MEMBERS = 16
"""Members of a family."""
FAMILY_STEP = "member"
"""Name of the one step of a family."""
MOST_OWN_ROWS = 10_000
"""Most rows that a step may have of its own for one request."""

Combine = Literal["mean", "majority", "first", "concat"]


class StepSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One model of a graph, with what it takes and when it runs."""

    name: str
    model: str
    """Name of the model, or of one of its versions: ``detector:2``."""
    inputs: dict[str, str]
    """Source of each of the model's inputs: an input of the graph, or ``step.output``."""
    when: str = ""
    """Condition on each row; a row for which it is false takes no part. Empty: every row does."""
    rows: Literal["request", "own"] = "request"
    """``own``: the first axis of what it takes holds its rows, for requests of one row."""
    length: str = ""
    """Source of a whole number for each row: how much of the open dimension of what it takes counts. Rows of
    like length run together, cut to the longest of them."""
    required: bool = True
    """False: if it can't be in time the query goes on without it."""
    default: dict[str, float | str] = {}
    """Value of every element of an output, where a step that is not required was missing."""
    weight: float = 1.0
    """Weight of a member of an ensemble: members of more weight count for more."""


class GraphSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Models that answer a request together, under one deadline; or a family, one of which answers it; or an
    application, which learns which of them to ask."""

    name: str
    inputs: tuple[str, ...] = ()
    """The tensors of a request; of a family those of its members."""
    steps: tuple[StepSpec, ...] = ()
    outputs: dict[str, str | tuple[str, ...]] = {}
    """Source of each output: ``step.output``, or several, of which the first that was computed is taken."""
    slo_ms: float | None = None
    """Deadline of requests that bring none."""
    combine: Combine | None = None
    """Way in which the outputs of an ensemble's members become one answer; None of other graphs."""
    least: int = 1
    """Fewest members that an answer of an ensemble is made of."""
    serves: Literal["embeddings", "rerank"] | None = None
    """The form in which it takes texts over HTTP, beside the usual one."""
    members: tuple[str, ...] = ()
    """The models of a family, as `StepSpec.model` names them."""
    score: tuple[float, ...] = ()
    """The worth of an answer of each of them, as their owner sees it."""
    application: ApplicationSpec | None = None
    """An application's members and policy; such a graph has no more than a name and this."""

    def sources(self, output: str) -> tuple[str, ...]:
        """Return the sources of an output, the first choice first."""
        given = self.outputs[output]
        return (given,) if isinstance(given, str) else given


def graph_fault(spec: GraphSpec) -> str | None:
    """Return what is wrong with a graph whatever its models are, such as a name; None if nothing is."""
    if spec.application is not None:
        return application_fault(spec.application)
    if spec.members or spec.score:
        return _family_fault(spec)
    if not spec.steps:
        return f"graph {spec.name!r} has no steps"
    if len(spec.steps) > MOST_STEPS:
        return f"graph {spec.name!r} has {len(spec.steps)} steps, and may have {MOST_STEPS}"
    if not spec.outputs:
        return f"graph {spec.name!r} has no outputs"
    if spec.slo_ms is not None and not 0 < spec.slo_ms <= MOST_SLO_MS:
        return f"slo_ms of graph {spec.name!r} is {spec.slo_ms:g}; it has to be above 0, and at most an hour"
    steps = [each.name for each in spec.steps]
    taken: set[str] = set()
    for what, name in [
        ("graph", spec.name),
        *(("input", each) for each in spec.inputs),
        *(("step", each) for each in steps),
        *(("output", each) for each in spec.outputs),
    ]:
        if not 0 < len(name) <= MOST_CHARACTERS or not name.isprintable():
            return (
                f"{what} {name[:MOST_CHARACTERS]!r}: a name has 1 to {MOST_CHARACTERS} printable characters"
            )
        if what == "step" and not name.isidentifier():
            return f"step {name!r}: a step's name has letters, digits and _, and begins with no digit"
        if what == "input" and name.partition(".")[0] in steps and "." in name:
            return f"input {name!r} can't be told from an output of step {name.partition('.')[0]!r}"
        if what in ("input", "step") and name in taken:
            return f"{what} {name!r}: another input or step has this name"
        if what in ("input", "step"):
            taken.add(name)
    return None


def _family_fault(spec: GraphSpec) -> str | None:
    """Return what is wrong with a family whatever its members are; None if nothing is."""
    where, count = f"family {spec.name!r}", len(spec.members)
    if not 0 < len(spec.name) <= MOST_CHARACTERS or not spec.name.isprintable():
        return f"{where}: a name has 1 to {MOST_CHARACTERS} printable characters"
    if spec.inputs or spec.steps or spec.outputs or spec.combine or spec.serves:
        return f"{where} has members, so it has no inputs, steps or outputs of its own: they are its members'"
    if not 1 <= count <= MOST_MEMBERS or count != len(spec.score):
        return f"{where} has {count} members and {len(spec.score)} scores; give 1 to {MOST_MEMBERS} of both"
    if len({*spec.members}) < count:
        return f"{where} names a member twice"
    if not all(0 < each < math.inf for each in spec.score):
        return f"{where}: a score is a number above 0"
    if spec.slo_ms is not None and not 0 < spec.slo_ms <= MOST_SLO_MS:
        return f"slo_ms of {where} is {spec.slo_ms:g}; it has to be above 0, and at most an hour"
    return None


def read_graph(text: str, source: str) -> GraphSpec:
    """Return the graph that a file's text describes; ``source`` names the file in errors.

    Raises `ConfigError`, which names the key and what would be right.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{source} has over {MOST_BYTES:,} characters, and a graph has at most 64 steps")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    if ("members" in table and "output" in table) or table.get("policy") == LINEAR:
        application = read_application(table, source)
        return GraphSpec(name=application.name, slo_ms=application.slo_ms, application=application)
    if "members" in table or "score" in table:
        return build(GraphSpec, table, source, {})
    steps = table.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{source} needs steps: one table [[steps]] for each model, or members of a family")
    elsewhere = dict.fromkeys(StepSpec.__struct_fields__, "[steps]")
    table["steps"] = [_step(step, f"{source}, step {number}") for number, step in enumerate(steps, 1)]
    graph = build(GraphSpec, _sources(table), source, elsewhere)
    missing = [key for key in ("name", "inputs", "outputs") if key not in table]
    if missing:
        raise ConfigError(f"{source} needs the key {missing[0]!r}")
    return graph


def _step(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check a step's table by itself, so that errors name it; return it as it is."""
    name = table.get("name")
    if isinstance(name, str):
        where = f"{where} ({name!r})"
    build(StepSpec, table, where, {})
    return dict(table)


def _sources(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with alternatives of outputs as tuples."""
    outputs = table.get("outputs")
    if isinstance(outputs, dict):
        given = {name: tuple(each) if isinstance(each, list) else each for name, each in outputs.items()}
        return {**table, "outputs": given}
    return table
