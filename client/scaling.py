"""The division of a count of workers among shards. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.messages.status import ClusterStatus


def shares(status: ClusterStatus, kind: str, count: int) -> dict[int, int]:
    """Return how many workers of a kind each shard is to have, so that there are ``count``, fewer first.

    By shard, of those that something starts and stops such workers for; none if there is one controller.
    """
    known = {
        shard.number: each.wanted for shard in status.shards for each in shard.kinds if each.kind == kind
    }
    weights = {shard.number: shard.pages for shard in status.shards}
    found = divided(count, known, weights) if known else {}
    return dict(sorted(found.items(), key=lambda each: each[1] - known[each[0]]))


def divided(count: int, known: Mapping[int, int], weights: Mapping[int, int]) -> dict[int, int]:
    """Return the counts by shard that add up to ``count``, from those that are now.

    One by one, a new worker goes where there are fewest for the shard's weight, and one leaves where there
    are most; the last one of a shard stays while others have more.
    """
    found = dict(known)

    def full(shard: int, workers: int) -> float:
        return workers / weights[shard] if weights[shard] else float("inf")

    while sum(found.values()) < count:
        found[min(found, key=lambda shard: (full(shard, found[shard] + 1), shard))] += 1
    while sum(found.values()) > count:
        most = max(found.values())
        giving = [shard for shard, workers in found.items() if workers > min(1, most - 1)]
        found[max(giving, key=lambda shard: (full(shard, found[shard]), shard))] -= 1
    return found
