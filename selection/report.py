"""An application as operators see it: weights, losses, regret, counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.messages.applications import ApplicationReport, ApplicationSpec, MemberReport, member_name
from mainspring.selection.application import Application


def report(
    spec: ApplicationSpec, application: Application | None, fault: str = "", gone: Mapping[str, str] = {}
) -> ApplicationReport:
    """Return what was learnt and counted of an application; None if it was never served.

    ``spec`` is its owner's; ``fault`` why requests are refused now; ``gone`` why members are left out.
    """
    if application is None:
        return ApplicationReport(spec, tuple([MemberReport(each) for each in spec.members]), fault)
    shares = _shares(application)
    members = tuple([_member(each, application, shares, gone.get(each, "")) for each in spec.members])
    rows, sure = application.confidence
    judged, lost = application.losses.get("", (0, 0.0))
    best = [each.loss for each in members if each.loss is not None]
    counts = application.counts
    return ApplicationReport(
        spec,
        members,
        fault,
        requests=counts["requests"],
        rows=rows,
        defaults=counts["defaults"],
        missing=counts["missing"],
        confidence=sure / rows if rows else None,
        loss=lost / judged if judged else None,
        judged=judged,
        regret=lost - judged * min(best) if best else 0.0,
        joined=counts["joined"],
        late=counts["late"],
        duplicate=counts["duplicate"],
        unknown=counts["unknown"],
        policy_failed=counts["policy_failed"],
        contexts=len(application.contexts),
        waiting=len(application.ledger),
        version=application.version,
    )


def _member(member: str, application: Application, shares: Mapping[str, float], fault: str) -> MemberReport:
    name = member_name(member)
    judged, lost = application.losses.get(name, (0, 0.0))
    return MemberReport(
        member,
        weight=shares.get(name, 0.0),
        loss=lost / judged if judged else None,
        judged=judged,
        asked=application.asked[name],
        missing=application.lacked[name],
        fault=fault,
    )


def _shares(application: Application) -> Mapping[str, float]:
    state = application.policy.completed(application.contexts.shared)
    try:
        return application.policy.shares(state)
    except Exception:
        # Code of the operator's, which may raise anything.
        return {}
