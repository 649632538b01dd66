"""Metric families of what applications answered and learnt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mainspring.gateway.metrics.series import family, labels
from mainspring.messages.applications import ApplicationReport, MemberReport


def applications(found: Sequence[ApplicationReport]) -> Iterator[str]:
    """Yield all families; nothing where there are no applications."""
    shown = [(labels(application=each.spec.name), each) for each in found]
    for name, kind, meaning, of in _COUNTS:
        yield from family(
            f"mainspring_application_{name}", kind, meaning, [(own, of(each)) for own, each in shown]
        )
    yield from family(
        "mainspring_application_feedback_rows_total",
        "counter",
        "Rows of feedback by what became of them: only joined ones are learnt from.",
        [
            (f'{own},outcome="{outcome}"', getattr(each, outcome))
            for own, each in shown
            for outcome in ("joined", "late", "duplicate", "unknown")
        ],
    )
    members = [
        (f"{own},{labels(member=member.member)}", member) for own, each in shown for member in each.members
    ]
    for name, kind, meaning, of_member in _MEMBERS:
        yield from family(
            f"mainspring_application_member_{name}",
            kind,
            meaning,
            [(own, of_member(each)) for own, each in members],
        )


_COUNTS: tuple[tuple[str, str, str, Callable[[ApplicationReport], float]], ...] = (
    ("requests_total", "counter", "Requests that members were selected for.", lambda each: each.requests),
    ("rows_total", "counter", "Rows that were answered.", lambda each: each.rows),
    ("defaults_total", "counter", "Of these, rows with the default.", lambda each: each.defaults),
    (
        "confidence_total",
        "counter",
        "Sum of the rows' confidences: by the rows, their mean.",
        lambda each: (each.confidence or 0.0) * each.rows,
    ),
    (
        "missing_total",
        "counter",
        "Predictions that their member's average stood in for.",
        lambda each: each.missing,
    ),
    (
        "loss_total",
        "counter",
        "Sum of the losses of answers, 0 to 1 for each row.",
        lambda each: (each.loss or 0.0) * each.judged,
    ),
    ("judged_rows_total", "counter", "Rows that these are of.", lambda each: each.judged),
    (
        "regret",
        "gauge",
        "The same sum, less what the best member would have lost on as many rows.",
        lambda each: each.regret,
    ),
    ("policy_failures_total", "counter", "Calls of the policy that raised.", lambda each: each.policy_failed),
    ("contexts", "gauge", "Contexts with a state in memory.", lambda each: each.contexts),
    ("waiting_answers", "gauge", "Answers that are kept for feedback.", lambda each: each.waiting),
)
_MEMBERS: tuple[tuple[str, str, str, Callable[[MemberReport], float]], ...] = (
    ("weight", "gauge", "The member's share of the weights, without a context.", lambda each: each.weight),
    ("requests_total", "counter", "Requests that it was selected for.", lambda each: each.asked),
    ("missing_total", "counter", "Of these, answered without it.", lambda each: each.missing),
    ("loss_total", "counter", "Sum of its losses.", lambda each: (each.loss or 0.0) * each.judged),
    ("judged_rows_total", "counter", "Rows that these are of.", lambda each: each.judged),
)
