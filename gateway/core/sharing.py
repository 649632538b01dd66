"""Requests of equal inputs that wait at one time share one execution. Pure.

The first of them *leads*: it is submitted to the controller. A later one *follows* if a leader is due no
later than itself and has no lower priority, and is not submitted: the leader's outputs are its own. A more
urgent or more important one leads too, for a follower must never wait for work that is planned later than its
own would be. Outputs that come for any of them answer all. When a leader ends without any, the most urgent
follower of each priority takes its place, unless another leader serves it as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from mainspring.gateway.core.requests import Pending

_NEVER_NS: Final = 1 << 63
"""The instant at which a request without a deadline is due, for comparing."""
_NO_PRIORITY: Final = 1 << 31
"""Rank of a request that asks for none: behind all that do."""
MOST_RANKS: Final = 64
"""Priorities of the followers of equal inputs: all are looked at when a leader ends. One more leads."""
_SPARE_ENTRIES: Final = 64
"""Ended followers that the heaps may hold before they are rebuilt without them."""


class _Group:
    """Requests of equal inputs."""

    __slots__ = ("followers", "heaps", "leaders")

    def __init__(self) -> None:
        self.leaders: dict[int, Pending] = {}
        self.followers: dict[int, Pending] = {}
        self.heaps: dict[int, list[tuple[int, int]]] = {}
        """The heap of each rank: due instants and serials of followers, and of some that follow no more."""

    def leads(self, request: Pending) -> bool:
        """Return whether a leader is due no later than a request, and no less important."""
        due_ns, rank = _due_ns(request), _rank(request)
        return any(_due_ns(each) <= due_ns and _rank(each) <= rank for each in self.leaders.values())

    def follow(self, request: Pending) -> bool:
        """Enter a request behind the leaders, if one leads it; return whether that is so."""
        rank = _rank(request)
        if rank not in self.heaps and len(self.heaps) >= MOST_RANKS:
            return False
        if not self.leads(request):
            return False
        self.followers[request.serial] = request
        heapq.heappush(self.heaps.setdefault(rank, []), (_due_ns(request), request.serial))
        return True

    def leave(self, serial: int) -> None:
        """Forget a follower, if it is one."""
        if self.followers.pop(serial, None) is None:
            return
        if sum(map(len, self.heaps.values())) > 2 * len(self.followers) + _SPARE_ENTRIES:
            self.heaps.clear()
            for each in self.followers.values():
                self.heaps.setdefault(_rank(each), []).append((_due_ns(each), each.serial))
            for heap in self.heaps.values():
                heapq.heapify(heap)

    def lead_anew(self) -> list[Pending]:
        """Make leaders of the followers that no leader leads any more; return those."""
        heirs = []
        for rank, heap in sorted(self.heaps.items()):
            while heap and heap[0][1] not in self.followers:
                heapq.heappop(heap)
            if not heap:
                del self.heaps[rank]
                continue
            # The others of its rank are due no earlier: what leads it leads them.
            first = self.followers[heap[0][1]]
            if not self.leads(first):
                heapq.heappop(heap)
                self.leaders[first.serial] = self.followers.pop(first.serial)
                first.lead()
                heirs.append(first)
        return heirs


class Sharing:
    """All groups, by their inputs' digest."""

    def __init__(self) -> None:
        self._groups: dict[bytes, _Group] = {}

    def join(self, request: Pending) -> bool:
        """Enter a request that has a digest; return whether it follows and is not to be submitted."""
        assert request.digest is not None
        group = self._groups.setdefault(request.digest, _Group())
        if group.follow(request):
            request.follow()
            return True
        group.leaders[request.serial] = request
        return False

    def leave(self, request: Pending) -> list[Pending]:
        """A request ended without outputs; return the followers that are to be submitted now."""
        group = None if request.digest is None else self._groups.get(request.digest)
        if group is None or request.digest is None:
            return []
        group.leave(request.serial)
        led = group.leaders.pop(request.serial, None) is not None
        heirs = group.lead_anew() if led else []
        if not group.leaders:
            del self._groups[request.digest]
        return heirs

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
                assert group.leads(each), f"more urgent than its leaders: {each.story()}"
            waiting = [serial for heap in group.heaps.values() for _, serial in heap]
            waiting = [serial for serial in waiting if serial in group.followers]
            assert sorted(waiting) == sorted(group.followers), "a follower that can't inherit"
        lost = [each.story() for each in wanted.values()]
        assert not lost, f"in no group: {lost}"


def _due_ns(request: Pending) -> int:
    return _NEVER_NS if request.deadline_ns is None else request.deadline_ns


def _rank(request: Pending) -> int:
    """Return the place of a request's priority: 1 is the highest, and no priority the last."""
    return request.accepted.priority or _NO_PRIORITY
