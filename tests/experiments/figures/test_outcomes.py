from __future__ import annotations

import numpy as np
import pytest

from mainspring.experiments.figures.outcomes import Outcomes, share
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.traces.records import Records

MS = 1_000_000
EDGES = np.array([0.0, 1.0, 2.0, 3.0])


@pytest.fixture
def seen() -> Outcomes:
    """In the first second one in time, one late and one rejected; in the second one without a deadline."""
    records = Records()
    for at_ms, slo_ms in ((100, 50), (200, 50), (300, 50), (1_500, None)):
        records.sent(at_ms * MS, at_ms * MS, "m", 1, None if slo_ms is None else slo_ms * MS)

    def timing(batch_size: int, cold: bool) -> Timing:
        return Timing(1, 1, 1, 1, batch_size, cold, "worker-0")

    records.outputs(0, 140 * MS, timing(4, True))
    records.outputs(1, 260 * MS, timing(2, False))
    records.error(2, 310 * MS, Reason.DEADLINE_PASSED)
    records.outputs(3, 1_900 * MS, timing(1, False))
    return Outcomes(records)


def test_what_the_client_got_late_is_not_in_time(seen: Outcomes) -> None:
    assert seen.in_time.tolist() == [True, False, False, True]
    assert seen.late.tolist() == [False, True, False, False]
    assert seen.rejected.tolist() == [False, False, True, False]
    assert seen.best_effort.tolist() == [False, False, False, True]


def test_counts_by_interval(seen: Outcomes) -> None:
    everything = np.ones(4, bool)
    assert seen.rate(everything, EDGES) == [3.0, 1.0, 0.0]
    assert seen.shares(seen.in_time, everything, EDGES) == [pytest.approx(1 / 3), 1.0, None]
    assert seen.percentiles(seen.answered, 100, EDGES) == [60.0, 400.0, None]
    assert seen.means(seen.batch_size, seen.answered, EDGES) == [3.0, 1.0, None]
    assert seen.between(0.2, 1.5).tolist() == [False, True, True, False]
    assert share(seen.cold, seen.answered) == pytest.approx(1 / 3)
