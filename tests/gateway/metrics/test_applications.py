"""Applications' families, read back by prometheus-client's parser."""

from __future__ import annotations

from mainspring.gateway.metrics.applications import applications
from mainspring.messages.applications import ApplicationReport, ApplicationSpec, MemberReport
from tests.gateway.metrics.test_series import parsed

REPORT = ApplicationReport(
    ApplicationSpec(name='a"b', members=("svm", "cnn:2"), output="y"),
    (MemberReport("svm", 0.75, 0.25, 8, 10, 1), MemberReport("cnn:2", 0.25, None)),
    requests=10,
    rows=20,
    defaults=3,
    missing=1,
    confidence=0.5,
    loss=0.125,
    judged=8,
    regret=-1.0,
    joined=8,
    late=2,
    duplicate=1,
    policy_failed=4,
)
APP = (("application", 'a"b'),)


def test_weights_losses_and_feedback_are_told() -> None:
    found = parsed("".join(applications([REPORT])))
    weights = found["mainspring_application_member_weight"]
    assert weights == {(*APP, ("member", "svm")): 0.75, (*APP, ("member", "cnn:2")): 0.25}
    assert found["mainspring_application_member_loss_total"][(*APP, ("member", "svm"))] == 2
    assert found["mainspring_application_confidence_total"] == {APP: 10}
    assert found["mainspring_application_loss_total"] == {APP: 1}
    assert found["mainspring_application_regret"] == {APP: -1}
    assert found["mainspring_application_policy_failures_total"] == {APP: 4}
    feedback = found["mainspring_application_feedback_rows_total"]
    assert {dict(own)["outcome"]: count for own, count in feedback.items()} == {
        "joined": 8, "late": 2, "duplicate": 1, "unknown": 0
    }  # fmt: skip
    assert parsed("".join(applications([]))) == {}
