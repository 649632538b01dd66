"""The benchmark of one worker in a small form: what it measures is consistent, however fast the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mainspring.experiments.bench.worker import FILTER, Plan, measure

TINY = "digits"
PLAN = Plan(
    executed=(TINY,),
    loaded=(TINY,),
    beside=FILTER,
    windowed=FILTER,
    filter_pixels=128,
    windows=4,
    seconds=3.0,
    rounds=2,
    realtime=False,
)


def test_the_whole_benchmark_runs_in_small(tmp_path: Path) -> None:
    rows = measure(PLAN, tmp_path)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert all(np.isfinite(row.value) for row in rows)
    targets = {row.name: row.target for row in rows if row.target is not None}
    assert targets == {
        "EXEC digits: back to back / bare loop": 0.97,
        "INPUT/OUTPUT: hidden behind EXEC": 0.8,
        "LOAD digits: bandwidth / memcpy's": 0.85,
        "both: EXEC slows / bare loops slow": 1.05,
        "both: LOAD slows / bare loops slow": 1.05,
        "begin error, quiet: p99": 50,
        "begin error, beside LOADs: p99": 50,
        "begun before earliest or after latest": 0,
    }
