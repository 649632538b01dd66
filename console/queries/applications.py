"""Query ``applications``: what applications learnt, of all gateways together."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.console.payloads import ApplicationMember, ApplicationPicture, Applications
from mainspring.console.view.learning import MOST_SECONDS, mean_weight
from mainspring.console.view.view import View
from mainspring.messages.applications import ApplicationReport, MemberReport


def applications(view: View) -> Applications:
    """Return the applications by name, and how many more there are that gateways did not tell of."""
    found: dict[str, list[tuple[str, ApplicationReport]]] = {}
    for gateway, told in sorted(view.learning.gateways.items()):
        for each in told.applications:
            found.setdefault(each.spec.name, []).append((gateway, each))
    more = max((told.more for told in view.learning.gateways.values()), default=0)
    return Applications([_picture(view, found[name]) for name in sorted(found)], more)


def _picture(view: View, told: Sequence[tuple[str, ApplicationReport]]) -> ApplicationPicture:
    """Return one application as its gateways told of it."""
    reports = [report for _, report in told]
    spec = max(reports, key=lambda each: each.requests).spec
    weights = view.learning.weights(spec.name, view.now_ns)
    members = [
        _member(name, reports, weights.get(name, [None] * MOST_SECONDS))
        for name in dict.fromkeys(each.member for report in reports for each in report.members)
    ]
    judged = sum(each.judged for each in reports)
    lost = _sum([(each.loss, each.judged) for each in reports])
    best = min((each.loss for each in members if each.loss is not None), default=None)
    rows = sum(each.rows for each in reports)
    return ApplicationPicture(
        name=spec.name,
        policy=spec.policy,
        kind=spec.kind,
        context=spec.context,
        gateways=[gateway for gateway, _ in told],
        fault=next((each.fault for each in reports if each.fault), ""),
        requests=sum(each.requests for each in reports),
        rows=rows,
        defaults=sum(each.defaults for each in reports) if spec.confidence is not None else None,
        missing=sum(each.missing for each in reports),
        confidence=_sum([(each.confidence, each.rows) for each in reports]) / rows if rows else None,
        loss=lost / judged if judged else None,
        judged=judged,
        regret=None if best is None else lost - judged * best,
        joined=sum(each.joined for each in reports),
        late=sum(each.late for each in reports),
        duplicate=sum(each.duplicate for each in reports),
        unknown=sum(each.unknown for each in reports),
        policy_failed=sum(each.policy_failed for each in reports),
        contexts=max(each.contexts for each in reports),
        waiting=sum(each.waiting for each in reports),
        versions=sorted({each.version for each in reports} - {0}),
        members=members,
        first_ns=view.now_ns - view.now_ns % 10**9 - (MOST_SECONDS - 1) * 10**9,
    )


def _member(
    name: str, reports: Sequence[ApplicationReport], weights: list[float | None]
) -> ApplicationMember:
    own: list[MemberReport] = [each for report in reports for each in report.members if each.member == name]
    judged = sum(each.judged for each in own)
    return ApplicationMember(
        name=name,
        weight=mean_weight(own),
        loss=_sum([(each.loss, each.judged) for each in own]) / judged if judged else None,
        judged=judged,
        asked=sum(each.asked for each in own),
        missing=sum(each.missing for each in own),
        fault=next((each.fault for each in own if each.fault), ""),
        weights=weights,
    )


def _sum(parts: Sequence[tuple[float | None, int]]) -> float:
    """Return the sum behind means, each with how many numbers it is of."""
    return sum((mean or 0.0) * count for mean, count in parts)
