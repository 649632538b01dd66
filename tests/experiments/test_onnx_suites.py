"""A sample of the onnx package's suites through the compiler, and the runner's own robustness."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mainspring.experiments.onnx_suites import (
    CRASHED,
    DIFFERS,
    MATCHES,
    OTHER,
    Outcome,
    run_cases,
    summarise,
    try_case,
)
from mainspring.experiments.suite_cases import Case, node_cases, node_modules

SLOW_MODULES = ("averagepool", "lppool", "maxpool")
"""Their cases take seconds to generate."""


@pytest.mark.parametrize("part", [0, 1])
def test_a_sample_of_the_node_suite_matches_or_is_refused(tmp_path: Path, part: int) -> None:
    modules = [name for name in node_modules() if not name.endswith(SLOW_MODULES)]
    cases = node_cases(modules[part::16])[part::4]
    outcomes = [try_case(case, tmp_path) for case in cases]
    wrong = [outcome for outcome in outcomes if outcome.status in (DIFFERS, CRASHED)]
    assert not wrong
    assert sum(outcome.status == MATCHES for outcome in outcomes) > len(outcomes) // 5
    assert not [outcome.detail for outcome in outcomes if outcome.reason == OTHER]


def fake(name: str) -> Case:
    return Case("node", name, b"", (), 0.0, 0.0)


def act_by_name(case: Case, folder: Path) -> Outcome:
    """Do what the case is called."""
    if case.name == "abort":
        os.abort()
    if case.name == "hang":
        time.sleep(60)
    if case.name == "raise":
        raise RuntimeError("out of the compiler")
    return Outcome(case.suite, case.name, MATCHES)


def test_a_case_that_dies_hangs_or_raises_is_counted_and_the_others_go_on() -> None:
    names = ["fine", "abort", "raise", "hang", "fine"]
    cases = [(lambda name=name: fake(name)) for name in names]
    outcomes = list(run_cases(cases, act_by_name, longest_s=3.0))
    assert [outcome.status for outcome in outcomes] == [MATCHES, CRASHED, CRASHED, CRASHED, MATCHES]
    assert "-6" in outcomes[1].detail
    assert "out of the compiler" in outcomes[2].detail
    assert "no answer in 3 s" in outcomes[3].detail
    text = "\n".join(summarise(outcomes))
    assert "crashed: node/hang" in text
