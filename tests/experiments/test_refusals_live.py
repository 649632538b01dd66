"""Early refusals beside late ones, as callers see them."""

from __future__ import annotations

import pytest

from mainspring.experiments.policies.refusals_live import (
    WARM_UP_S,
    Seen,
    Way,
    played_virtually,
    seen_of,
    table,
    ways,
)
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.traces.records import Records

MS = 1_000_000


def test_records_say_who_was_answered_refused_and_when() -> None:
    records = Records()
    warm = round(WARM_UP_S * 1e9)
    timing = Timing(0, 0, 0, None, 1, False, "w")
    records.error(records.sent(0, 0, "m", 1, 100 * MS), 1, Reason.OVERLOADED)
    for took_ms, reason in ((50, None), (150, None), (40, Reason.OVERLOADED), (120, Reason.DEADLINE_PASSED)):
        key = records.sent(warm, warm, "m", 1, 100 * MS)
        if reason is None:
            records.outputs(key, warm + took_ms * MS, timing)
        else:
            records.error(key, warm + took_ms * MS, reason)
    seen = seen_of(Way(refuse="early", load=1.0, retry_ms=0.0), records, live=True)
    assert (seen.requests, seen.in_time, seen.late, seen.refused) == (4, 0.25, 0.25, 0.5), "not the warm-up's"
    assert (seen.early, seen.after) == (0.5, 1)
    assert seen.reasons == {"overloaded": 1, "deadline_passed": 1}
    assert seen.times == pytest.approx([0.6, 0.8, 1.0])


def test_last_goes_before_early_at_each_load_and_pause() -> None:
    played = list(ways("1,1.5", "0,50"))
    assert [(each.load, each.retry_ms, each.refuse) for each in played[:4]] == [
        (1.0, 0.0, "last"),
        (1.0, 0.0, "early"),
        (1.0, 50.0, "last"),
        (1.0, 50.0, "early"),
    ]
    assert len(played) == 8


def test_early_refusals_come_before_late_ones_and_cost_few_answers() -> None:
    found: dict[tuple[str, float], Seen] = {}
    for way in ways("1.5", "0,50"):
        found[way.refuse, way.retry_ms] = played_virtually(way, 2.0)
    late, early = found["last", 0.0], found["early", 0.0]
    assert late.early == 0.0
    assert early.early > 0.3
    assert min(early.times) < 0.8, "a quarter of the refusals"
    assert min(late.times) > 0.9, "a quarter of the refusals"
    assert late.in_time - early.in_time < 0.05
    again = found["early", 50.0]
    assert again.requests == early.requests, "who comes back is the same request"
    assert again.times != early.times
    assert table(list(found.values())).row_count == 4
