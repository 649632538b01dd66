"""Requests of equal inputs that wait at one time share one execution. Pure.

The first of them *leads*: it is submitted to the controller. A later one *follows* if a leader is due no
later than itself, and is not submitted: the leader's outputs are its own. A more urgent one leads too, for a
follower must never wait for work that is planned later than its own would be. Outputs that come for any of
them answer all. When a leader ends without any, the most urgent follower takes its place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from mainspring.gateway.pending import Pending

_NEVER_NS = 1 << 63
"""When a request without a deadline is due, for comparing."""


class _Group:
    """Requests of equal inputs."""

    __slots__ = ("followers", "heap", "leaders")

    def __init__(self) -> None:
        self.leaders: dict[int, Pending] = {}
        self.followers: dict[int, Pending] = {}
        self.heap: list[tuple[int, int]] = []
        """Due instants and serials of followers, and of some that follow no more."""

    def led_ns(self) -> int:
        """Return when the most urgent leader is due."""
        return min(map(_due_ns, self.leaders.values()), default=_NEVER_NS + 1)


class Sharing:
    """All groups, by their inputs' digest."""

    def __init__(self) -> None:
        self._groups: dict[bytes, _Group] = {}

    def join(self, request: Pending) -> bool:
        """Enter a request that has a digest; return whether it follows and is not to be submitted."""
        assert request.digest is not None
        group = self._groups.setdefault(request.digest, _Group())
        request.follows = group.led_ns() <= _due_ns(request)
        if request.follows:
            group.followers[request.serial] = request
            heapq.heappush(group.heap, (_due_ns(request), request.serial))
        else:
            group.leaders[request.serial] = request
        return request.follows

    def leave(self, request: Pending) -> Pending | None:
        """A request ended without outputs; return the follower that is to be submitted now, if one is."""
        assert request.digest is not None
        group = self._groups.get(request.digest)
        if group is None:
            return None
        group.followers.pop(request.serial, None)
        group.leaders.pop(request.serial, None)
        while group.heap and group.heap[0][1] not in group.followers:
            heapq.heappop(group.heap)
        if not group.followers:
            group.heap.clear()
            if not group.leaders:
                del self._groups[request.digest]
            return None
        due_ns, serial = group.heap[0]
        if group.led_ns() <= due_ns:
            return None
        heir = group.leaders[serial] = group.followers.pop(serial)
        heir.follows = False
        return heir

    def take(self, digest: bytes) -> list[Pending]:
        """Return all that outputs answer, in the order of their arrival; none of them shares any more."""
        group = self._groups.pop(digest)
        return sorted([*group.leaders.values(), *group.followers.values()], key=lambda each: each.serial)

    def clear(self) -> None:
        """End all sharing: no follower is to be submitted any more."""
        self._groups.clear()

    def validate(self, pending: Iterable[Pending]) -> None:
        """Check against all requests without an answer; raise AssertionError with the story of one."""
        wanted = {each.serial: each for each in pending if each.digest is not None}
        for digest, group in self._groups.items():
            assert group.leaders, f"nobody leads {len(group.followers)} requests"
            for serial, each in (group.leaders | group.followers).items():
                assert wanted.pop(serial, None) is each, f"shares though it ended: {each.story()}"
                assert each.digest == digest, f"with others' inputs: {each.story()}"
                assert each.follows == (serial in group.followers), f"leads and follows: {each.story()}"
            for each in group.followers.values():
                assert each.request_id is None, f"follows, and was submitted: {each.story()}"
                assert not each.dispatches, f"follows, and was dispatched: {each.story()}"
                assert group.led_ns() <= _due_ns(each), f"more urgent than its leaders: {each.story()}"
            waiting = [serial for _, serial in group.heap if serial in group.followers]
            assert sorted(waiting) == sorted(group.followers), "a follower that can't inherit"
        lost = [each.story() for each in wanted.values()]
        assert not lost, f"in no group: {lost}"


def _due_ns(request: Pending) -> int:
    return _NEVER_NS if request.deadline_ns is None else request.deadline_ns
