"""Work by rank: sums that are those of a plain list, whatever moves."""

import random

from mainspring.scheduler.overload import SLOTS, WorkAhead
from tests.fuzz import seeded

MS = 1_000_000


@seeded(20)
def test_the_work_before_a_model_is_that_of_those_that_rank_before_it(seed: int) -> None:
    draw = random.Random(seed)
    work_ahead, plain, now_ns = WorkAhead(), dict[int, tuple[int, int]](), 0
    slack_ns = draw.choice([5, 100, 2000]) * MS
    offset_ns = draw.randrange(-5000, 5000) * MS
    work_ahead.fit(0, slack_ns)
    for _ in range(600):
        now_ns += draw.randrange(slack_ns // 400)
        number = draw.randrange(30)
        if number in plain and draw.random() < 0.3:
            del plain[number]
            work_ahead.enter(now_ns, number, 0, 0)
        else:
            plain[number] = now_ns + offset_ns + draw.randrange(slack_ns), draw.randrange(1, 50 * MS)
            work_ahead.enter(now_ns, number, *plain[number])
        work_ahead.validate()
        for each, (rank_ns, _) in plain.items():
            slot = rank_ns // work_ahead.width_ns
            before = sum(work for rank, work in plain.values() if rank // work_ahead.width_ns < slot)
            assert work_ahead.before(now_ns, each) == before
        # What waits for long is entered again with each change of its queue.
        for each in [each for each, (rank_ns, _) in plain.items() if rank_ns < now_ns + offset_ns - slack_ns]:
            del plain[each]
            work_ahead.enter(now_ns, each, 0, 0)
    assert work_ahead.total_ns == sum(work for _, work in plain.values())


def test_what_ranks_beyond_the_slots_counts_as_at_their_ends() -> None:
    work_ahead = WorkAhead()
    work_ahead.fit(0, 100 * MS)
    work_ahead.enter(0, 1, 50 * MS, 7)
    work_ahead.enter(0, 2, -(10**15), 11)
    work_ahead.enter(0, 3, 10**15, 13)
    assert [work_ahead.before(0, number) for number in (2, 1)] == [0, 11]
    assert work_ahead.before(0, 4) == 0
    work_ahead.validate()


def test_slots_become_wider_and_finer_with_the_time_that_requests_are_given() -> None:
    work_ahead = WorkAhead()
    work_ahead.fit(0, 100 * MS)
    wide_ns = work_ahead.width_ns
    assert wide_ns * SLOTS >= 8 * 100 * MS
    work_ahead.enter(0, 1, 10 * MS, 5)
    work_ahead.enter(0, 2, 20 * MS, 5)
    work_ahead.fit(0, 10 * MS)
    assert work_ahead.width_ns < wide_ns / 4
    assert work_ahead.before(0, 2) == 5
    work_ahead.validate()
    work_ahead.clear()
    assert (len(work_ahead), work_ahead.total_ns) == (0, 0)
