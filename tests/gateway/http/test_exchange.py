"""What a reply's head says of times."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.http.exchange import server_timing
from mainspring.messages.clients import Timing

PARTS = ("receive", "queue", "input", "load", "wait", "execute", "output")
DURATIONS = st.integers(0, 2_000_000) | st.integers(0, 1 << 50)


@given(st.tuples(*[DURATIONS] * len(PARTS)), DURATIONS)
def test_server_timing_says_each_part_to_the_microsecond(parts_ns: tuple[int, ...], render_ns: int) -> None:
    spent = dict(zip(PARTS, parts_ns, strict=True))
    timing = Timing(
        **{f"{name}_ns": spent_ns for name, spent_ns in spent.items()},  # type: ignore[arg-type]
        total_ns=sum(parts_ns),
        left_ns=None,
        batch_size=1,
        cold_start=False,
        worker="",
    )
    line = server_timing(timing, render_ns)
    assert line.startswith(b"server-timing: ")
    assert line.endswith(b"\r\n")
    said = dict(re.findall(r"(\w+);dur=(\d+\.\d{3})(?:, |\r)", line.decode()))
    expected = {**spent, "exec": spent["execute"], "render": render_ns, "total": sum(parts_ns) + render_ns}
    del expected["execute"]
    assert said.keys() == expected.keys()
    for name, spent_ns in expected.items():
        assert abs(round(float(said[name]) * 1e6) - spent_ns) <= 500 + (spent_ns >> 40), name
