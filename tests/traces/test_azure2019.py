"""The reader of invocations per minute: the real files, small ones, and damaged ones."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mainspring.traces.arrival import SECOND_NS, Arrival, Kind
from mainspring.traces.azure import MINUTE_NS, read_azure2019
from mainspring.traces.recipe import kind_of_file
from mainspring.traces.tracefile import TraceError
from mainspring.traces.workload import Workload

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
HEADER = "HashOwner,HashApp,HashFunction,Trigger"


def play(workload: Workload, seed: int = 0) -> list[Arrival]:
    return list(workload.arrivals(np.random.default_rng(seed)))


def written(path: Path, rows: list[str], minutes: str = "7,8,9") -> Path:
    path.write_text("\n".join([f"{HEADER},{minutes}", *rows]) + "\n")
    return path


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_counts_fall_into_their_minutes(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["o,a,f1,http,3,0,5", "o,a,f2,timer,0,2,0"])
    arrivals = play(read_azure2019(path, ["m"], rng()))
    assert Counter(a.time_ns // MINUTE_NS for a in arrivals) == {0: 3, 1: 2, 2: 5}
    assert [a.time_ns for a in arrivals] == sorted(a.time_ns for a in arrivals)
    assert len({a.time_ns for a in arrivals}) == 10


def test_functions_are_dealt_evenly_and_by_seed(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", [f"o,a,f{i},http,1" for i in range(43)], minutes="1")
    models = [f"m{i}" for i in range(10)]
    workload = read_azure2019(path, models, rng())
    counts = workload.counts[0].tolist()
    assert sorted(counts) == [4] * 7 + [5] * 3, "four or five functions for each model (Clockwork, 6.5)"
    assert workload.functions == 43
    assert counts == read_azure2019(path, models, rng()).counts[0].tolist()
    assert counts != read_azure2019(path, models, np.random.default_rng(1)).counts[0].tolist()


def test_cutting_leaves_whole_minutes_out_and_keeps_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["o,a,f,http,10,100,1000"])
    arrivals = play(read_azure2019(path, ["m"], rng()).cut(MINUTE_NS + 30 * SECOND_NS, 3 * MINUTE_NS))
    counts = Counter(a.time_ns // (30 * SECOND_NS) for a in arrivals)
    assert counts[0] == pytest.approx(50, abs=20)
    assert counts[1] + counts[2] == 1000
    assert not play(read_azure2019(path, ["m"], rng()).cut(10 * MINUTE_NS, 11 * MINUTE_NS))


def test_scaling_scales_counts_exactly_where_it_can(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["o,a,f,http,1000,0,20000"])
    workload = read_azure2019(path, ["m"], rng())
    assert len(play(workload.scaled(3))) == 63_000
    assert len(play(workload.scaled(0.25))) == pytest.approx(5250, rel=0.05)
    assert len(play(workload.scaled(0.5).scaled(3))) == pytest.approx(31_500, rel=0.05)


def test_a_minute_with_very_many_is_drawn_in_parts_and_in_order(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["o,a,f,http,100000", "o,a,g,http,70000"], minutes="1")
    arrivals = play(read_azure2019(path, ["m", "n"], rng()))
    times = np.array([a.time_ns for a in arrivals])
    assert sorted(Counter(a.model for a in arrivals).values()) == [70_000, 100_000]
    assert (np.diff(times) >= 0).all()
    assert np.histogram(times, 6, (0, MINUTE_NS))[0] == pytest.approx(170_000 / 6, rel=0.03)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ":1: not invocations per minute.*nothing"),
        ("HashOwner,HashApp,HashFunction,Average,Count\nx,y,z,1,2\n", ":1: not invocations per minute"),
        (f"{HEADER}\na,b,c,d\n", ":1: .*a column for each minute, named by its number"),
        (f"{HEADER},1,2,1\n", ":1: minute 1 is there twice, in columns 5 and 7"),
        (f"{HEADER},1,2000000000\n", ":1: its minutes go from 1 to 2000000000"),
        ("1,2,3\n4,5,6\n", ":1: not invocations per minute"),
        (f"{HEADER},1,2\n", "has a header but no function"),
        (f"{HEADER},1,2\no,a,f,http,1,2\no,a,f,http,1\n", ":3: has 5 columns, but the header has 6"),
        (f"{HEADER},1,2\no,a,f,http,1,x\n", r":2: minute 2 \(column 6\) is 'x'"),
        (f"{HEADER},1,2\no,a,f,http,-1,0\n", r":2: minute 1 \(column 5\) is '-1'"),
        (f"{HEADER},1,2\no,a,f,http,1.5,0\n", r":2: minute 1 \(column 5\) is '1.5'"),
        (f"{HEADER},1,2\no,a,f,http,99999999999999999999,0\n", r":2: minute 1 \(column 5\)"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_column(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"bad\.csv.*{complaint}|bad\.csv{complaint}"):
        read_azure2019(path, ["m"], rng())


@pytest.mark.parametrize(
    "text",
    [
        "HashOwner,HashApp,HashFunction,1,2,3\no,a,f,3,0,5\no,a,g,0,2,0\n",
        "HashFunction,1,2,3\nf,3,0,5\ng,0,2,0\n",
        "Trigger,3,HashFunction,2,1,HashApp,HashOwner\nhttp,5,f,0,3,a,o\nhttp,0,g,2,0,a,o\n",
        ",HashOwner,HashApp,HashFunction,Trigger,Region,1,2,3,Total\n0,o,a,f,http,eu,3,0,5,8\n1,o,a,g,http,eu,0,2,0,2\n",
        f"{HEADER},1,2,3\no,a,f,http,3.0,0.0,5.0\no,a,g,http,,2.0,\n",
        f"{HEADER},1,2,3\no,a,f,http,3, ,5e0\no,a,g,http,nan,2,NaN\n",
        f"{HEADER},1.0,2.0,3.0\no,a,f,http,3,0,5\no,a,g,http,0,2,0\n",
        f"\ufeff{HEADER.upper()},1,2,3\no,a,f,http,3,0,5\no,a,g,http,0,2,0\n",
    ],
)
def test_a_derived_file_is_read_by_the_names_of_its_columns(tmp_path: Path, text: str) -> None:
    path = tmp_path / "derived.csv"
    path.write_text(text)
    workload = read_azure2019(path, ["m"], rng())
    assert workload.counts[:, 0].tolist() == [3, 2, 5]
    assert (workload.first_minute, workload.functions) == (1, 2)
    assert kind_of_file(path) is Kind.AZURE2019


def test_a_minute_that_is_left_out_has_no_invocations(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["o,a,f,http,1,2,3"], minutes="7,9,12")
    workload = read_azure2019(path, ["m"], rng())
    assert workload.counts[:, 0].tolist() == [1, 0, 2, 0, 0, 3]
    assert workload.first_minute == 7


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read: No such file"):
        read_azure2019(tmp_path / "none.csv", ["m"], rng())
    whole = gzip.compress((f"{HEADER},1\n" + "o,a,f,http,1\n" * 5000).encode())
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"cut\.csv\.gz: damaged after line"):
        read_azure2019(cut, ["m"], rng())
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80" * 10)
    with pytest.raises(TraceError, match=r"binary\.csv: damaged"):
        read_azure2019(binary, ["m"], rng())


@pytest.mark.parametrize(
    ("name", "functions", "minutes", "first", "total", "top_share"),
    [
        ("azure2019_d01_random400_invocations.csv.gz", 400, 1440, 1, 18_452_673, 0.86),
        ("azure2019_invitro500_min480-959_invocations.csv.gz", 500, 480, 480, 3_037_902, 0.84),
        ("azure2019_freyr1000_60min_invocations.csv.gz", 1000, 60, 1, 85_470, 0.11),
    ],
)
def test_the_real_files(
    name: str, functions: int, minutes: int, first: int, total: int, top_share: float
) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    each = read_azure2019(path, [f"m{i}" for i in range(functions)], rng())
    assert (each.functions, each.first_minute, each.counts.shape) == (functions, first, (minutes, functions))
    assert each.counts.sum() == total
    per_function = np.sort(each.counts.sum(0))[::-1]
    assert per_function[: functions // 100].sum() / total == pytest.approx(top_share, abs=0.01)
    arrivals = play(each.cut(0, 2 * MINUTE_NS))
    assert len(arrivals) == each.counts[:2].sum()
