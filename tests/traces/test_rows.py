"""Rows of requests by distribution: what is drawn, the same each time, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import EventLogWriter
from mainspring.traces.arrival import Arrival, WorkloadError
from mainspring.traces.generators import Poisson
from mainspring.traces.rows import Rows, RowsSpec, with_rows

HEAVY = RowsSpec(kind="lognormal", mu=5.1, sigma=0.2, most=500, tail=((0.02, 1, 99), (0.1, 250, 499)))


def drawn(spec: RowsSpec, count: int = 40_000) -> np.ndarray[Any, Any]:
    return Rows(spec, ["m"]).draw(np.random.default_rng(1), count)


def test_a_heavy_tail_has_its_shares() -> None:
    rows = drawn(HEAVY)
    assert (rows < 90).mean() == pytest.approx(0.02 * 89 / 99, abs=0.003)
    assert (rows >= 320).mean() == pytest.approx(0.1 * 180 / 250, abs=0.006)
    assert np.median(np.log(rows)) == pytest.approx(5.1, abs=0.05)
    assert rows.max() <= 500 == Rows(HEAVY, ["m"]).largest


def test_gaussian_rows_are_rounded_and_cut() -> None:
    rows = drawn(RowsSpec(kind="gaussian", mean=10, deviation=8, least=2, most=20))
    assert (rows.min(), rows.max()) == (2, 20)
    inside = rows[(rows > 2) & (rows < 20)]
    assert inside.mean() == pytest.approx(10.5, abs=0.5)


def test_a_histogram_is_drawn_by_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("count,rows\n1,8\n3,2\n0,99\n")
    spec = RowsSpec(kind="histogram", file=str(path))
    rows = drawn(spec)
    assert set(rows.tolist()) == {2, 8}
    assert (rows == 2).mean() == pytest.approx(0.75, abs=0.01)
    assert Rows(spec, ["m"]).largest == 8
    raised = msgspec.structs.replace(spec, least=16)
    assert set(drawn(raised).tolist()) == {16}
    assert Rows(raised, ["m"]).largest == 16


def test_a_log_has_rows_of_its_own(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path)
    for number, (model, rows) in enumerate([("m", 4), ("m", 4), ("m", 7), ("other", 9)]):
        log.append(number, RequestArrived(number, model, rows, None))
    log.close()
    found = drawn(RowsSpec(kind="log", log=str(tmp_path)))
    assert set(found.tolist()) == {4, 7}
    assert (found == 4).mean() == pytest.approx(2 / 3, abs=0.01)
    with pytest.raises(WorkloadError, match="no request to any of these models"):
        Rows(RowsSpec(kind="log", log=str(tmp_path)), ["nobody"])


def test_arrivals_are_as_without_and_the_same_each_time() -> None:
    workload = Poisson({"m": 50.0})
    shaped = with_rows(workload, Rows(HEAVY, ["m"]))

    def first(playable: Any, count: int = 2_500) -> list[Arrival]:
        source = playable.source(np.random.default_rng(5))
        return [source.take() for _ in range(count)]

    plain, one, again = first(workload), first(shaped), first(shaped)
    assert one == again
    assert [each.time_ns for each in one] == [each.time_ns for each in plain]
    assert len({each.rows for each in one}) > 100


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "lognormal", "mu": 5}, "lognormal rows need sigma, most"),
        ({"kind": "gaussian", "mean": 5, "deviation": -1, "most": 9}, "deviation of rows is -1"),
        ({"kind": "histogram"}, "histogram rows need file"),
        ({"kind": "histogram", "file": "x", "mu": 1}, "mu would change nothing of histogram rows"),
        ({"kind": "gaussian", "mean": 5, "deviation": 1, "most": 9, "least": 10}, "least first, not 10 to 9"),
        ({"kind": "gaussian", "mean": 5, "deviation": 1, "most": 9, "tail": [[0.1, 1, 10]]}, "to most (9)"),
        ({"kind": "gaussian", "mean": 5, "deviation": 1, "most": 9, "tail": [[1.1, 1, 9]]}, "0 to 1"),
        (
            {"kind": "gaussian", "mean": 5, "deviation": 1, "most": 9, "tail": [[0.6, 1, 9], [0.5, 1, 2]]},
            "more than 1 together",
        ),
        ({"kind": "gaussian", "mean": 5, "sd": 1, "most": 9}, "unknown field `sd`"),
    ],
)
def test_what_can_not_be_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape(says)):
        msgspec.convert(table, RowsSpec)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size,count\n1,2\n", "has the columns rows, count, not size, count"),
        ("rows,count\n1,x\n", ":2: rows is a whole number"),
        ("rows,count\n0,1\n", ":2: rows is a whole number"),
        ("rows,count\n5\n", ":2: rows is a whole number"),
        ("rows,count\n5,0\n", "no count is above 0"),
    ],
)
def test_histograms_that_can_not_be_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=re.escape(says)):
        Rows(RowsSpec(kind="histogram", file=str(path)), ["m"])
