"""The controller's page table of one worker: which pages are free, and where a model can go.

A model needs its *extents*: runs of adjacent pages. Single pages are taken from the low end of the
cache and longer extents from the shortest run that holds them, the highest first, so that models of
single pages do not cut up the room that the others need.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


class PageTable:
    """Owners of the pages of one worker; a page has at most one owner."""

    def __init__(self, pages: int) -> None:
        self.size = pages
        self._owner: list[str | None] = [None] * pages
        self._free: list[int] = list(range(pages))

    @property
    def free(self) -> int:
        """Number of pages without an owner."""
        return len(self._free)

    def owner(self, page: int) -> str | None:
        """Return the model that owns a page."""
        return self._owner[page]

    def owners(self, pages: Iterable[int]) -> set[str | None]:
        """Return the models that own pages, None among them if a page is free."""
        owner = self._owner
        return {owner[page] for page in pages}

    def take(self, model: str, pages: Iterable[int]) -> None:
        """Give free pages to a model; raise ValueError on a page that is not free."""
        owner, free, taken = self._owner, self._free, list(pages)
        for page in taken:
            if not 0 <= page < self.size or owner[page] is not None:
                raise ValueError(f"page {page} is not free for {model}")
            owner[page] = model
        first = bisect_left(free, taken[0]) if taken else 0
        if free[first : first + len(taken)] == taken:
            # Mostly they are neighbours among the free ones.
            del free[first : first + len(taken)]
        else:
            for page in taken:
                del free[bisect_left(free, page)]

    def give_back(self, model: str, pages: Iterable[int]) -> None:
        """Free a model's pages; raise ValueError on a page that is not its own."""
        owner, free, given = self._owner, self._free, sorted(pages)
        for page in given:
            if owner[page] != model:
                raise ValueError(f"page {page} is owned by {owner[page]}, not by {model}")
            owner[page] = None
        first = bisect_left(free, given[0]) if given else len(free)
        if first == len(free) or free[first] > given[-1]:
            free[first:first] = given
        else:
            for page in given:
                insort(free, page)

    def place(self, extents: Sequence[int], also_free: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Return pages for the extents, in their order, or None if there is no room.

        ``also_free`` are pages that count as free although they still have an owner; models of single
        pages use them only when the free ones run out.
        """
        need = sum(extents)
        if need > len(self._free) + len(also_free):
            return None
        if need == len(extents):
            pages = self._free[:need]
            return (*pages, *also_free[: need - len(pages)])
        return _place_runs(extents, _runs(sorted((*self._free, *also_free))))

    def validate(self, owned: dict[str, tuple[int, ...]]) -> None:
        """Check the table against each model's pages; raise AssertionError with the story."""
        seen: dict[int, str] = {}
        for model, pages in owned.items():
            for page in pages:
                assert page not in seen, f"page {page} belongs to {seen[page]} and to {model}"
                assert self._owner[page] == model, f"page {page} of {model} is owned by {self._owner[page]}"
                seen[page] = model
        assert len(seen) + len(self._free) == self.size, (
            f"{len(seen)} owned + {len(self._free)} free pages are not {self.size}"
        )


def _place_runs(extents: Sequence[int], runs: list[list[int]]) -> tuple[int, ...] | None:
    """Put each extent, the longest first, at the high end of the shortest run that holds it."""
    chosen: list[tuple[int, ...]] = [()] * len(extents)
    for index in sorted(range(len(extents)), key=lambda i: (-extents[i], i)):
        need = extents[index]
        fitting = [run for run in runs if run[1] >= need]
        if not fitting:
            return None
        run = min(fitting, key=lambda run: (run[1], -run[0]))
        run[1] -= need
        first = run[0] + run[1]
        chosen[index] = tuple(range(first, first + need))
    return tuple(page for extent in chosen for page in extent)


def _runs(free: Iterable[int]) -> list[list[int]]:
    """Return ascending free pages as [first page, length] runs."""
    runs: list[list[int]] = []
    for page in free:
        if runs and runs[-1][0] + runs[-1][1] == page:
            runs[-1][1] += 1
        else:
            runs.append([page, 1])
    return runs
