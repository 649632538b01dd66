"""The cores that the processes of a local cluster may use.

An EXEC thread that shares its core with anything is late, so each worker gets a
core of its own while there are enough, and everything else shares what is left. Gateway, controller and
the workers' other threads are short bursts and share well.

EXEC threads without a core of their own may use every core, and the kernel moves such a thread of real-time
priority to a core that is free of others: pinned to one core, two would wait for each other beside free
cores. They go behind gateway and controller, and behind the EXEC threads that have a core.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Placement(msgspec.Struct, frozen=True):
    """Cores by number; on a machine of one core everything shares it."""

    shared: tuple[int, ...]
    """Cores of the controller, the gateway, and the workers' threads other than EXEC."""
    exec_cores: tuple[tuple[int, ...], ...]
    """Cores that each worker's EXEC thread may use: one of its own, or all."""

    def sharing(self) -> str:
        """Return what shares cores with what, as a sentence for a person; empty if each EXEC has its own."""
        without = [number for number, cores in enumerate(self.exec_cores) if self._shares(cores)]
        if not without:
            return ""
        everything = sorted({core for cores in self.exec_cores for core in cores} | {*self.shared})
        if everything == [*self.shared] and len(everything) == 1:
            return f"EXEC of {_counted(without)} shares core {everything[0]} with everything else"
        cores = f"cores {_listed(everything)} with all other processes"
        return f"EXEC of {_counted(without)} has no core of its own, and shares {cores}"

    def _shares(self, cores: tuple[int, ...]) -> bool:
        return len(cores) > 1 or not {*cores}.isdisjoint(self.shared)


def place(cores: Sequence[int], workers: int) -> Placement:
    """Divide these cores among ``workers`` EXEC threads and the rest, of which one core is kept at least.

    With more workers than cores to give, the others' EXEC threads may use all cores.
    """
    return place_near(cores, [frozenset()] * workers)


def place_near(cores: Sequence[int], near: Sequence[frozenset[int]]) -> Placement:
    """Divide these cores as `place` does, each EXEC thread near its device where such a core is left.

    ``near`` has the cores near each worker's device; none where that is not known.
    """
    everything = tuple(sorted(cores))
    left = [*everything]
    chosen: list[tuple[int, ...]] = []
    for wanted in near[: len(everything) - 1]:
        core = max((core for core in left if core in wanted), default=left[-1])
        left.remove(core)
        chosen.append((core,))
    return Placement(tuple(left), (*chosen, *[everything] * (len(near) - len(chosen))))


def lent_to_gateway(shared: Sequence[int], exec_cores: Sequence[int]) -> tuple[int, ...]:
    """Return the cores that a gateway of real-time priority may use; none if it needs no other than its own.

    One core for it, the controller and the workers' network threads is too little for thousands of requests
    a second, while EXEC of models that short leaves its core idle between them: where no other is left, the
    gateway may use that too. EXEC takes it back at once, by its higher priority.
    """
    return () if len(shared) > 1 else tuple(sorted({*shared, *exec_cores}))


def _counted(workers: Sequence[int]) -> str:
    """Return workers by number, of many the count."""
    if len(workers) > 4:
        return f"{len(workers)} workers"
    return f"worker{'s' if len(workers) > 1 else ''} {_listed(workers)}"


def _listed(numbers: Sequence[int]) -> str:
    """Return sorted numbers with runs as ``0-3``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
