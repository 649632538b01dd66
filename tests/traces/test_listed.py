"""Arrivals listed in a CSV file: what is read, and what errors say."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from mainspring.traces import listed, tracefile
from mainspring.traces.arrival import SECOND_NS, Arrival, Kind
from mainspring.traces.listed import read_listed
from mainspring.traces.recipe import Recipe, build, kind_of_file
from mainspring.traces.tracefile import TraceError

MODELS = ("a", "b")
FULL = """time_s,model,rows,slo_ms
0.5,b,2,
0.5,a,,none
1.25,a,,40
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "arrivals.csv"
    path.write_text(text)
    return path


def played(recipe: Recipe) -> list[Arrival]:
    source = build(recipe, MODELS).source(np.random.default_rng(1))
    arrivals = []
    while source.next_ns() is not None:
        arrivals.append(source.take())
    return arrivals


def test_rows_say_when_which_model_and_where_they_differ_rows_and_slo(tmp_path: Path) -> None:
    recipe = Recipe(kind=Kind.CSV, trace=write(tmp_path, FULL), slo_ns=70, rows=3, duration_ns=2 * SECOND_NS)
    expected = [
        Arrival(500_000_000, "b", 2, 70),
        Arrival(500_000_000, "a", 3, None),
        Arrival(1_250_000_000, "a", 3, 40_000_000),
    ]
    assert played(recipe) == expected


def test_columns_come_in_any_order_and_files_may_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_bytes(gzip.compress(b"Model, time_s\nb,0.1\n\na,0.2\n"))
    assert kind_of_file(path) is Kind.CSV
    arrivals = played(Recipe(kind=Kind.CSV, trace=path, slo_ns=None))
    assert [(each.time_ns, each.model, each.slo_ns) for each in arrivals] == [
        (100_000_000, "b", None),
        (200_000_000, "a", None),
    ]


def test_a_derived_file_may_have_other_columns_and_whole_numbers_as_floats(tmp_path: Path) -> None:
    lines = "user,rows,time_s,model,latency\n'me, or you',2.0,0.1,a,\n,,0.2,b,7\n".replace("'", '"')
    arrivals = played(Recipe(kind=Kind.CSV, trace=write(tmp_path, lines), slo_ns=None))
    assert [(each.model, each.rows) for each in arrivals] == [("a", 2), ("b", 1)]


def test_models_slos_in_turn_stand_where_a_row_has_none(tmp_path: Path) -> None:
    recipe = Recipe(kind=Kind.CSV, trace=write(tmp_path, FULL), slos_ns=(10, 20), duration_ns=2 * SECOND_NS)
    assert [each.slo_ns for each in played(recipe)] == [20, None, 40_000_000]


def test_a_part_is_played_faster_and_more_of_it(tmp_path: Path) -> None:
    lines = "".join(f"{number / 100},a\n" for number in range(1000))
    path = write(tmp_path, "time_s,model\n" + lines)
    fast = Recipe(
        kind=Kind.CSV, trace=path, start_ns=5 * SECOND_NS, time_scale=0.5, duration_ns=2 * SECOND_NS
    )
    assert len(played(fast)) == 400
    assert played(fast)[1].time_ns == pytest.approx(5_000_000, abs=2)
    assert len(played(Recipe(kind=Kind.CSV, trace=path, scale=0.5, duration_ns=10 * SECOND_NS))) == (
        pytest.approx(500, rel=0.15)
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("time_s,", "when,"), r"arrivals\.csv:1: the header lacks time_s: it must have time_s, model"),
        (("slo_ms", "slo"), r":1: has a column 'slo'; did you mean 'slo_ms'?"),
        (("rows", "model"), r":1: has a column twice"),
        (("0.5,b,2,", "0.5,b,2"), r":2: has 3 columns, but the header has 4"),
        (("1.25,a", "0.25,a"), r":4: time_s is 0\.25, before that of the row above; sort the rows"),
        (("1.25,a", "soon,a"), r":4: time_s \(column 1\) is 'soon', but it must be a number from 0"),
        (("1.25,a", "nan,a"), r":4: time_s \(column 1\) is 'nan'"),
        (("1.25,a", "1764155795000,a"), r":4: time_s .* to 3\.16"),
        (("1.25,a", "1.25,aa"), r":4: model \(column 2\) is 'aa', but .*; did you mean 'a'"),
        (("b,2", "b,0"), r":2: rows \(column 3\) is '0', but it must be a whole number from 1"),
        (("b,2", "b,2.5"), r":2: rows \(column 3\) is '2.5', but it must be a whole number from 1"),
        (("none", "-4"), r":3: slo_ms \(column 4\) is '-4', but it must be a number greater than 0"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_column(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    assert FULL.count(change[0]) == 1
    with pytest.raises(TraceError, match=says):
        read_listed(write(tmp_path, FULL.replace(*change)), MODELS)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match=r"has no request: give a row for each"):
        read_listed(write(tmp_path, "time_s,model\n"), MODELS)
    monkeypatch.setattr(listed, "MAX_ARRIVALS", 2)
    with pytest.raises(TraceError, match=r":4: has more than 2 requests; split the file"):
        read_listed(write(tmp_path, FULL), MODELS)
    monkeypatch.setattr(tracefile, "MAX_LINE_CHARACTERS", 40)
    with pytest.raises(TraceError, match=r":2: the line is longer than 40 characters"):
        read_listed(write(tmp_path, "time_s,model\n" + 41 * "1"), MODELS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time_s,model,slo_ms\n0,a,2000\n1,b,2000\n", ", SLO 2000 ms"),
        ("time_s,model,slo_ms\n0,a,2000\n1,b,50\n2,a,\n", ", SLOs 50, 100, 2000 ms"),
        ("time_s,model,slo_ms\n0,a,2000\n1,b,none\n", ", SLO 2000 ms, or none"),
        ("time_s,model,slo_ms\n0,a,none\n", ", no SLO"),
        ("time_s,model\n0,a\n", ", SLO 100 ms"),
        ("time_s,model,slo_ms\n" + "".join(f"{n},a,{n + 1}\n" for n in range(9)), ", SLOs from 1 to 9 ms"),
    ],
)
def test_a_title_says_the_deadlines_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    assert Recipe(kind=Kind.CSV, trace=write(tmp_path, text)).title(2).endswith(said)
