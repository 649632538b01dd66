"""Tables of applications: they fit 80 columns whatever is in them."""

from __future__ import annotations

import pytest

from mainspring.cli.views.applications_view import detail, overview
from mainspring.messages.applications import ApplicationReport, ApplicationSpec, MemberReport

LONG = "a-name-that-its-owner-made-long-" * 3
REPORT = ApplicationReport(
    ApplicationSpec(name=LONG, members=(LONG, "svm:2"), output=LONG, context=True, policy=f"{LONG}:Policy"),
    (MemberReport(LONG, 0.75, 0.125, 1_000_000, 2_000_000, 300), MemberReport("svm:2", fault="it is gone")),
    fault="a member " * 20,
    requests=4_000_000,
    rows=40_000_000,
    regret=-12.5,
    confidence=0.5,
    loss=0.25,
    policy_failed=3,
)


def test_they_fit_80_columns_and_have_every_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    overview([REPORT])
    detail(REPORT)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for each in (
        "75.0%",
        "0.125",
        "50%",
        "regret -12.5",
        "the policy raised 3 times",
        "left out: it is gone",
    ):
        assert each in text
