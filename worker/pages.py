"""Who owns which page of the device's weights memory (Clockwork, section 5.2: the PageCache).

Pure bookkeeping. The controller chooses page numbers; this table only refuses what can't be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PageTable:
    """Owner of each page; a model's pages are *loading* until `confirm`, then *resident*."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"a page table needs at least one page, not {pages}")
        self._owner: list[str | None] = [None] * pages
        self._loading: dict[str, tuple[int, ...]] = {}
        self._resident: dict[str, tuple[int, ...]] = {}
        self._free = pages

    def __len__(self) -> int:
        return len(self._owner)

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return self._free

    def malformed(self, extents: Sequence[int], pages: Sequence[int]) -> str:
        """Why ``pages`` could hold these extents at no time, or an empty string."""
        if len(pages) != sum(extents):
            return f"{len(pages)} pages named, the model needs {sum(extents)}"
        if any(not 0 <= page < len(self._owner) for page in pages):
            return f"a page is out of range: this worker has pages 0 to {len(self._owner) - 1}"
        if len(set(pages)) != len(pages):
            return "a page is named twice"
        start = 0
        for index, length in enumerate(extents):
            run = pages[start : start + length]
            if any(page != run[0] + step for step, page in enumerate(run)):
                return f"extent {index} needs {length} adjacent pages in ascending order"
            start += length
        return ""

    def occupied(self, pages: Iterable[int]) -> str:
        """Name the first of ``pages`` that has an owner, or return an empty string."""
        for page in pages:
            owner = self._owner[page]
            if owner is not None:
                return f"page {page} belongs to {owner}"
        return ""

    def acquire(self, model: str, pages: tuple[int, ...]) -> None:
        """Give free pages to a model that has none; they count as loading."""
        for page in pages:
            self._owner[page] = model
        self._loading[model] = pages
        self._free -= len(pages)

    def confirm(self, model: str) -> None:
        """The model's weights are all in its pages."""
        self._resident[model] = self._loading.pop(model)

    def give_up(self, model: str) -> None:
        """Free the pages of a resident or loading model."""
        pages = self._resident.pop(model, None)
        if pages is None:
            pages = self._loading.pop(model)
        for page in pages:
            self._owner[page] = None
        self._free += len(pages)

    def resident_pages(self, model: str) -> tuple[int, ...] | None:
        """Pages of a resident model, in the order of its weights file; None if it is not resident."""
        return self._resident.get(model)

    def loading(self) -> list[str]:
        """Models whose LOAD is running."""
        return list(self._loading)

    def residents(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Resident models with their pages, in the order in which they became resident."""
        return self._resident.items()

    def validate(self) -> None:
        """Raise `AssertionError` unless each page has one owner at most and free + owned = all."""
        both = [model for model in self._loading if model in self._resident]
        assert not both, f"both loading and resident: {both}"
        expected: list[str | None] = [None] * len(self._owner)
        for model, pages in [*self._loading.items(), *self._resident.items()]:
            for page in pages:
                assert expected[page] is None, f"page {page} belongs to {expected[page]} and to {model}"
                expected[page] = model
        assert expected == self._owner, f"owners differ from the models' pages: {self._owner} != {expected}"
        assert self._free == self._owner.count(None), f"free is {self._free}, not {self._owner.count(None)}"
