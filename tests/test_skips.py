"""What a run says of tests that were skipped; a reason off the list fails it where that is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.skips import ALLOWED, remedy, report

RUN = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"><skipped message="this machine has no IPv6"/></testcase>
<testcase classname="tests.a" name="two"><skipped type="pytest.skip" message="{}"/></testcase>
<testcase classname="tests.a" name="three"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="tests.a" name="four"/>
</testsuite></testsuites>"""
OFF_THE_LIST = "no hosts of a test's own: nft is not installed"


@pytest.mark.parametrize(
    ("reason", "strict", "code"),
    [("no id came again", True, 0), (OFF_THE_LIST, True, 1), (OFF_THE_LIST, False, 0)],
)
def test_a_reason_off_the_list_fails_a_strict_run_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str, strict: bool, code: int
) -> None:
    (tmp_path / "unit.xml").write_text(RUN.format(reason))
    assert report([tmp_path / "unit.xml"], strict=strict) == code
    said = capsys.readouterr().out
    assert "2 tests were skipped" in said
    assert "this machine has no IPv6\n      to run: a machine with IPv6" in said
    assert (f"tests.a.two: {OFF_THE_LIST}" in said) == bool(code)


def test_what_ci_installs_is_not_on_the_list() -> None:
    for reason in (
        OFF_THE_LIST,
        "there is no chromium here: apt install chromium",
        "NOT CHECKED against a real Prometheus: there is none here; apt-get install prometheus",
        "strace is not installed",
        "mypy, a C compiler or Python.h is missing",
        "could not import 'tvm': No module named 'tvm'",
    ):
        assert remedy(reason) is None, reason


def test_every_pattern_is_of_a_reason_that_a_test_gives() -> None:
    text = "\n".join(
        path.read_text() for path in Path(__file__).parent.rglob("*.py") if "skips" not in path.name
    )
    made_by_pytest = ("could not import", "make test-codegen", "NVRTC", "is not on this machine$")
    for pattern in ALLOWED:
        parts = [part.strip("^$") for part in re.split(r"\|(?![^(]*\))", pattern)]
        assert any(part.startswith(made_by_pytest) or re.search(part, text) for part in parts), pattern
