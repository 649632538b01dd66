"""The rule by which a process obeys one of several controllers, whatever comes in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.transport.controllers import Allegiance

SAYINGS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=40)
"""Which controller says that it leads in which epoch, in order."""


@given(SAYINGS)
def test_no_lower_epoch_is_obeyed_after_a_higher_one(said: list[tuple[int, int]]) -> None:
    allegiance, obeyed = Allegiance(), []
    for controller, epoch in said:
        if allegiance.follows(controller, epoch):
            obeyed.append(epoch)
        allegiance.validate()
    assert obeyed == sorted(obeyed)
    assert allegiance.epoch == max((epoch for _, epoch in said), default=0)


@given(SAYINGS)
def test_one_epoch_is_one_controllers(said: list[tuple[int, int]]) -> None:
    allegiance, leaders = Allegiance(), dict[int, int]()
    for controller, epoch in said:
        if allegiance.follows(controller, epoch):
            assert leaders.setdefault(epoch, controller) == controller
            assert (allegiance.leader, allegiance.epoch) == (controller, epoch)
