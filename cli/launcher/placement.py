"""Which cores the processes of a local cluster may use.

An EXEC thread that shares its core with anything is late (design.md, section 6), so each worker gets a
core of its own while there are enough, and everything else shares what is left. Gateway, controller and
the workers' other threads are short bursts and share well.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Placement(msgspec.Struct, frozen=True):
    """Cores by number; on a machine of one core everything shares it."""

    shared: tuple[int, ...]
    """For the controller, the gateway, and the workers' threads other than EXEC."""
    exec_cores: tuple[int, ...]
    """For each worker, the core of its EXEC thread."""


def place(cores: Sequence[int], workers: int) -> Placement:
    """Divide these cores among ``workers`` EXEC threads and the rest, of which one core is kept at least.

    With more workers than cores to give, the others' EXEC threads go round over all cores.
    """
    ordered = sorted(cores)
    given = min(workers, len(ordered) - 1)
    own = ordered[len(ordered) - given :] if given else []
    shared = tuple(ordered[: len(ordered) - given])
    return Placement(shared, (*own, *spread(ordered, workers - given)))


def place_near(cores: Sequence[int], near: Sequence[frozenset[int]]) -> Placement:
    """Divide these cores as `place` does, each EXEC thread near its device where such a core is left.

    ``near`` has the cores near each worker's device; none where that is not known.
    """
    left = sorted(cores)
    chosen: list[int] = []
    for wanted in near:
        if len(left) == 1:
            break
        core = max((core for core in left if core in wanted), default=left[-1])
        left.remove(core)
        chosen.append(core)
    return Placement(tuple(left), (*chosen, *spread(sorted(cores), len(near) - len(chosen))))


def lent_to_gateway(shared: Sequence[int], exec_cores: Sequence[int]) -> tuple[int, ...]:
    """Return the cores that a gateway of real-time priority may use; none if it needs no other than its own.

    One core for it, the controller and the workers' network threads is too little for thousands of requests
    a second, while EXEC of models that short leaves its core idle between them: where no other is left, the
    gateway may use that too. EXEC takes it back at once, by its higher priority.
    """
    return () if len(shared) > 1 else tuple(sorted({*shared, *exec_cores}))


def spread(cores: Sequence[int], workers: int) -> tuple[int, ...]:
    """Deal the cores round, the last first, to the EXEC threads of ``workers`` workers that share them."""
    return tuple(cores[-1 - number % len(cores)] for number in range(workers))
