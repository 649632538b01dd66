"""The reader of single invocations: order, dealing, and damaged files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.traces import azure
from mainspring.traces.arrival import SECOND_NS, Arrival, Kind
from mainspring.traces.azure import read_azure2021
from mainspring.traces.recipe import kind_of_file
from mainspring.traces.tracefile import TraceError
from mainspring.traces.workload import Workload

HEADER = "app,func,end_timestamp,duration"


def play(workload: Workload, seed: int = 0) -> list[Arrival]:
    return list(workload.arrivals(np.random.default_rng(seed)))


def written(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_arrivals_are_end_minus_duration_in_order_from_zero(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["a,f,101.5,0.5", "a,g,160,60", "b,f,103,1.25"])
    arrivals = play(read_azure2021(path, ["m"]))
    assert [a.time_ns for a in arrivals] == [0, SECOND_NS, 1_750_000_000]


def test_functions_keep_their_model_and_are_dealt_round(tmp_path: Path) -> None:
    rows = [f"app{i % 3},f{i % 4},{i + 1},0.5" for i in range(120)]
    path = written(tmp_path / "t.csv", rows)
    workload = read_azure2021(path, ["m0", "m1", "m2"])
    arrivals = play(workload)
    assert Counter(a.model for a in arrivals) == {"m0": 40, "m1": 40, "m2": 40}, "12 functions, 4 each"
    assert len({(i % 3, i % 4, a.model) for i, a in enumerate(arrivals)}) == 12
    assert arrivals == play(workload)
    assert len(play(workload.scaled(2))) == 240


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1000)), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_order_within_the_buffer_comes_out_in_order(
    tmp_path_factory: pytest.TempPathFactory, ends: list[tuple[int, int]]
) -> None:
    path = written(
        tmp_path_factory.mktemp("t") / "t.csv",
        [f"a,f{i},{end / 1000},{d / 1000}" for i, (end, d) in enumerate(ends)],
    )
    arrivals = play(read_azure2021(path, ["m"]))
    starts = sorted(end - d for end, d in ends)
    assert [round(a.time_ns / 1e6) for a in arrivals] == [start - starts[0] for start in starts]
    assert [a.time_ns for a in arrivals] == sorted(a.time_ns for a in arrivals)


def test_disorder_beyond_the_buffer_is_an_error_and_not_a_wrong_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"a,f,{i + 100},0" for i in range(20)] + ["a,f,50,0"]
    path = written(tmp_path / "t.csv", rows)
    monkeypatch.setattr(azure, "REORDER_ROWS", 5)
    workload = read_azure2021(path, ["m"])
    with pytest.raises(TraceError, match=r"t\.csv:22: arrived before.*sort the file"):
        play(workload)
    monkeypatch.setattr(azure, "REORDER_ROWS", 50)
    assert len(play(read_azure2021(path, ["m"]))) == 21


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r":1: not the Azure 2021 schema.*nothing"),
        ("app,func,duration\n", r":1: not the Azure 2021 schema.*lacks end_timestamp"),
        (f"{HEADER}\n", "has a header but no invocation"),
        (f"{HEADER}\na,f,1\n", ":2: has 3 columns, but the header has 4"),
        (f"{HEADER}\na,f,noon,1\n", r":2: end_timestamp \(column 3\) is 'noon'"),
        (f"{HEADER}\na,f,5,-1\n", r":2: duration \(column 4\) is '-1'.*from 0 up"),
        (f"{HEADER}\na,f,nan,1\n", r":2: end_timestamp \(column 3\) is 'nan'"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_column(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"bad\.csv:? ?{complaint}"):
        read_azure2021(path, ["m"])


@pytest.mark.parametrize(
    "text",
    [
        "duration,end_timestamp,func,app\n1,5,f,a\n2,7.5,g,a\n",
        "func,end_timestamp,duration\nf,5,1\ng,7.5,2\n",
        "id,App,Func,End_Timestamp,Duration,memory\n0,a,f,5.0,1,128\n1,a,g,7.5,2,\n",
    ],
)
def test_a_derived_file_is_read_by_the_names_of_its_columns(tmp_path: Path, text: str) -> None:
    path = tmp_path / "derived.csv"
    path.write_text(text)
    arrivals = list(read_azure2021(path, ["m"]).arrivals(np.random.default_rng(0)))
    assert [each.time_ns for each in arrivals] == [0, 1_500_000_000]
    assert kind_of_file(path) is Kind.AZURE2021
