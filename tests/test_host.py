from __future__ import annotations

from pathlib import Path

from tests import host

STAT = "cpu  10 20 30 40 50 0 60 {steal} 0 0\ncpu0 1 2 3 4 5 0 6 7 0 0\n"
PRESSURE = "some avg10=1.00 avg60=2.00 avg300=3.00 total={total}\nfull avg10=0.00 total=7\n"


def test_what_was_taken_between_two_moments_is_said(tmp_path: Path) -> None:
    stat, pressure = tmp_path / "stat", tmp_path / "cpu"
    found = []
    for steal, total in ((700, 1_000_000), (900, 1_250_000)):
        stat.write_text(STAT.format(steal=steal))
        pressure.write_text(PRESSURE.format(total=total))
        found.append(host.taken(stat, pressure)._replace(clock_s=steal / 100))
    assert found[1].since(found[0]) == ("2.00 s: stolen by the host 2.00 s, tasks waited for a core 0.25 s")


def test_a_system_that_does_not_count_is_said_not_to(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 3\n")
    found = host.taken(tmp_path / "stat", tmp_path / "none")
    assert found.since(found) == "0.00 s: stolen by the host unknown, tasks waited for a core unknown"
