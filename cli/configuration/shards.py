"""``[shards]``: several controllers, of which each has a part of the models and of the workers."""

from __future__ import annotations

import msgspec

from mainspring.messages.ids import MAX_SHARDS
from mainspring.messages.sharding import first_map, map_fault


class ShardsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Several controllers. Raises ValueError on a value that can't work."""

    count: int = 1
    """Controllers that `mainspring up` starts, at sockets in the run folder, each with its part of the
    workers; ``controllers`` says it, too."""
    controllers: tuple[str, ...] = ()
    """Addresses at which they listen, by shard, instead of [controller] address; gateways on other hosts need
    it. Empty: at sockets in the run folder. Keep the order: a controller's place in it is its shard."""
    workers: tuple[int, ...] = ()
    """Workers of each shard, of those that `mainspring up` starts. Empty: as many to each as there can be."""
    pages: tuple[int, ...] = ()
    """Weight of each shard: models are divided in proportion to it. Empty: of `mainspring up` the pages of
    its workers together, else the same of all."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 1 <= self.count <= MAX_SHARDS:
            raise ValueError(f"count is {self.count}; there may be 1 to {MAX_SHARDS} controllers")
        if self.controllers and self.count not in (1, len(self.controllers)):
            raise ValueError(
                f"count is {self.count} and controllers are {len(self.controllers)}: leave count out"
            )
        for name in ("workers", "pages"):
            given = getattr(self, name)
            if given and len(given) != self.number:
                raise ValueError(
                    f"{name} has {len(given)} numbers for {self.number} controllers; give one for each"
                )
        if self.workers and min(self.workers) < 1:
            raise ValueError(f"workers has {min(self.workers)} for a shard; each needs one at least")
        if self.controllers and (fault := map_fault(first_map(self.controllers, self.pages))) is not None:
            raise ValueError(f"controllers and pages can't be: {fault}")

    @property
    def number(self) -> int:
        """Return the number of controllers."""
        return len(self.controllers) or self.count

    @property
    def several(self) -> bool:
        """Return whether there is more than one."""
        return self.number > 1

    def divided(self, workers: int) -> tuple[int, ...]:
        """Return how many of the workers each shard has; raise ValueError if there are too few."""
        if not self.workers:
            share, more = divmod(workers, self.number)
            if not share:
                raise ValueError(
                    f"there are {self.number} controllers and workers = {workers}: each controller needs a "
                    "worker; give more --workers, or fewer controllers"
                )
            return tuple(share + (number < more) for number in range(self.number))
        if sum(self.workers) != workers:
            raise ValueError(
                f"[shards] workers are {sum(self.workers)} together and [cluster] workers is {workers}: give "
                "the same number"
            )
        return self.workers
