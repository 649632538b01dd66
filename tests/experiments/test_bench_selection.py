"""The benchmark of applications that learn, shortened: what it reports, whatever the machine has to do."""

from __future__ import annotations

from mainspring.experiments.bench.selection import policies, served


def test_policies_alone_are_timed() -> None:
    figures = {each.name: each for each in policies(50)}
    assert [*figures] == [
        "exp4: select and combine of 8", "exp4: observe of 8",
        "exp3: select and combine of 8", "exp3: observe of 8",
    ]  # fmt: skip
    assert all(each.value > 0 for each in figures.values())


def test_a_gateway_is_charged_for_each_kind_of_request_and_for_feedback() -> None:
    figures = {each.name: each for each in served(40, 1)}
    plain, eight = (figures[f"gateway's processor time, {what}"] for what in ("plain", "eight members"))
    assert eight.value > plain.value > 0
    assert figures["one member / plain"].target == 1.15
    assert figures["observations, 32 in a message"].value > figures["observations, 1 in a message"].value
