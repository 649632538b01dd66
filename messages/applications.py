"""Applications as their owners write them: members, a policy that learns which of them to trust, feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mainspring.messages.queries import MOST_CHARACTERS, MOST_SLO_MS
from mainspring.messages.tables import ConfigError, build

MOST_APPLICATION_MEMBERS = 64
LINEAR = "linear"
"""Name of the policy whose members are features, not predictions."""


Option = bool | float | str | tuple[float, ...]


class ApplicationSpec(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Models that answer a request together, chosen and weighed by what feedback says of them."""

    name: str
    members: tuple[str, ...] = ()
    """Models, families or graphs: ``cnn`` or ``cnn:2``. `linear` has one, or a table."""
    output: str = ""
    """The output of every member that is combined."""
    policy: str = "exp4"
    """Name of the policy, or ``package.module:Class``."""
    options: dict[str, Option] = {}
    """The policy's options."""
    kind: Literal["scores", "label", "value"] = "scores"
    """``scores``: a number of each class; ``label``; ``value``: a number."""
    loss: str = ""
    """``zero_one``, ``score``, ``absolute``, or ``package.module:function``; empty: the kind's usual one."""
    tolerance: float = 0.0
    """Values that differ by at most this agree."""
    span: float | None = None
    """The range of values: an error is divided by it."""
    slo_ms: float | None = None
    """Deadline of requests that bring none."""
    context: bool = False
    """A state for each user or session, which requests name."""
    confidence: float | None = None
    """Least share of members that agree with an answer; below it, the answer is ``default``."""
    default: float | str | None = None
    """The answer of a row whose confidence is too low."""
    least: int = 1
    """Fewest members that an answer is made of."""


class MemberReport(msgspec.Struct, frozen=True):
    """A member of an application as one gateway knows it."""

    member: str
    weight: float = 0.0
    """Its share of the weights without a context, 0 to 1; 0 of one that is left out."""
    loss: float | None = None
    """The mean of its losses, 0 to 1; None while no feedback was about it."""
    judged: int = 0
    """Rows that these are of."""
    asked: int = 0
    """Requests for which it was selected."""
    missing: int = 0
    """Number of those that were answered without it."""
    fault: str = ""
    """Reason why it is left out; empty if it is not."""


class ApplicationReport(msgspec.Struct, frozen=True):
    """An application, and what one gateway has learnt and counted of it."""

    spec: ApplicationSpec
    members: tuple[MemberReport, ...]
    fault: str = ""
    """Reason why requests for it are refused now; empty if they are not."""
    requests: int = 0
    rows: int = 0
    """Rows that were answered."""
    defaults: int = 0
    """Number of rows that have the default."""
    missing: int = 0
    """Predictions that an average stood in for."""
    confidence: float | None = None
    """The mean of all rows' confidences; None before the first."""
    loss: float | None = None
    """The mean loss of its answers."""
    judged: int = 0
    regret: float = 0.0
    """Sum of its answers' losses, less that of the best member's, as if this one had answered all."""
    joined: int = 0
    """Rows of feedback that was learnt from."""
    late: int = 0
    duplicate: int = 0
    unknown: int = 0
    policy_failed: int = 0
    """Calls of the policy that raised."""
    contexts: int = 0
    """Contexts with a state in memory."""
    waiting: int = 0
    """Answers that are kept for feedback."""
    version: int = 0
    """The table and weights of policy `linear` that serve; 0 of other policies."""


def code_in(spec: ApplicationSpec) -> str:
    """Return what of an application makes gateways run code, or read a file of theirs; empty if nothing."""
    for key, value in (("policy", spec.policy), ("loss", spec.loss)):
        if ":" in value:
            return f"{key} {value!r}"
    table = spec.options.get("table") if spec.policy == LINEAR else None
    return f"table {table!r}" if table else ""


def member_name(member: str) -> str:
    """Return a member's name without its version: a new version keeps what was learnt."""
    name, colon, version = member.rpartition(":")
    return name if colon and version.isdigit() else member


def _linear_fault(spec: ApplicationSpec, where: str) -> str | None:
    """Return what is wrong with the members of `linear`; None if nothing is."""
    if bool(spec.options.get("table")) == bool(spec.members):
        return f"{where} with policy 'linear' needs the option table, or one member that computes features"
    if not spec.context:
        return f"{where} with policy 'linear' has weights of each user: set context to true"
    if len(spec.members) > 1:
        return f"{where} with policy 'linear' has {len(spec.members)} members, and may have one"
    if spec.confidence is not None:
        return f"{where} has confidence, which policy 'linear' has not: its answers have an uncertainty"
    return None


def application_fault(spec: ApplicationSpec) -> str | None:
    """Return what is wrong with an application whatever its members are; None if nothing is."""
    where, count = f"application {spec.name!r}", len(spec.members)
    if not 0 < len(spec.name) <= MOST_CHARACTERS or not spec.name.isprintable():
        return f"{where}: a name has 1 to {MOST_CHARACTERS} printable characters"
    linear = spec.policy == LINEAR
    if linear and (fault := _linear_fault(spec, where)):
        return fault
    if not (linear or count) or count > MOST_APPLICATION_MEMBERS:
        return f"{where} has {count} members, and has to have 1 to {MOST_APPLICATION_MEMBERS}"
    if len({member_name(each) for each in spec.members}) < count:
        return f"{where} names a member twice"
    if not spec.output and count:
        return f"{where} needs the key 'output': the output of its members that is combined"
    if spec.slo_ms is not None and not 0 < spec.slo_ms <= MOST_SLO_MS:
        return f"slo_ms of {where} is {spec.slo_ms:g}; it has to be above 0, and at most an hour"
    if not 1 <= spec.least <= max(1, count):
        return f"least of {where} is {spec.least}; it has to be 1 to {count}, the number of its members"
    if not 0 <= spec.tolerance < math.inf:
        return f"tolerance of {where} is {spec.tolerance:g}; it has to be a number from 0 on"
    return _default_fault(spec, where)


def _default_fault(spec: ApplicationSpec, where: str) -> str | None:
    if (spec.confidence is None) != (spec.default is None):
        given, lacks = ("confidence", "default") if spec.default is None else ("default", "confidence")
        return f"{where} has {given} without {lacks}: below a confidence, the answer is the default"
    if spec.confidence is None:
        return None
    if not 0 < spec.confidence <= 1:
        return f"confidence of {where} is {spec.confidence:g}; it has to be above 0 and at most 1"
    if spec.kind != "label" and (
        isinstance(spec.default, str) or (spec.kind == "scores" and spec.default != int(spec.default or 0))
    ):
        what = "the number of a class, or another whole number" if spec.kind == "scores" else "a number"
        return f"default of {where} is {spec.default!r}; with kind {spec.kind!r} it has to be {what}"
    return None


def read_application(table: Mapping[str, Any], source: str) -> ApplicationSpec:
    """Return the application that a file's table describes; ``source`` names the file in errors.

    Raises `ConfigError`, which names the key and what would be right.
    """
    for key in ("name",) if table.get("policy") == LINEAR else ("name", "members", "output"):
        if key not in table:
            raise ConfigError(f"{source} needs the key {key!r}")
    spec = build(ApplicationSpec, table, source, {})
    if fault := application_fault(spec):
        raise ConfigError(f"{source}: {fault}")
    return spec
