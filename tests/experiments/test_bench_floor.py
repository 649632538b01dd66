"""The bare program beside the scheduler: that it does what it is said to do, for every request."""

from __future__ import annotations

from typing import Any

from mainspring.experiments.bench.scheduler_bare import BARE, floor_us
from mainspring.messages.actions import Result


def test_the_bare_program_takes_every_request_in_and_out() -> None:
    space: dict[str, Any] = {"__name__": "bare"}
    exec(compile(BARE, "bare", "exec"), space)
    bare: Any = space["Bare"]
    made = []

    class Watched(bare):  # type: ignore[misc]
        def __init__(self, models: list[str]) -> None:
            super().__init__(models)
            self.ended_count = 0
            made.append(self)

        def ended(self, now_ns: int, result: Result) -> None:
            super().ended(now_ns, result)
            self.ended_count += 1

    assert floor_us(Watched, 1_200, 2) > 0
    assert len(made) == 2
    for each in made:
        left = [request for queue in each.queues.values() for request in queue.items]
        assert each.running == {}
        assert len(each.requests) == len(left)
        assert 700 < each.ended_count <= 800, "two INFERs for three requests"
