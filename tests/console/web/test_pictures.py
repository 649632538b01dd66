"""Pictures that several pages share."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.console.view.view import View
from mainspring.console.web.pictures import Picture, Pictures
from mainspring.console.web.shows import SHOWS, ask
from tests.console.web.counting import Changing, Counting
from tests.console.web.served import FedSource

HOUR_NS = 3_600_000_000_000


class Beaten(Pictures):
    """One whose beats a test counts."""

    now = 0

    def beat(self) -> int:
        return self.now


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Changing:
    found = Changing()
    monkeypatch.setitem(SHOWS, "changing", found.show)
    return found


def all_of(pictures: Pictures, *known: int | None, show: str = "changing") -> list[Picture]:
    """Return what pages get at one time that know up to these versions."""

    async def get() -> list[Picture]:
        asked = ask(show, {})
        return list(await asyncio.gather(*(pictures.get(asked, version) for version in known)))

    return asyncio.run(get())


def begin() -> Beaten:
    return Beaten(FedSource(View(), operable=False), HOUR_NS, 1.0)


def test_who_knows_nothing_gets_it_whole_and_who_knows_all_what_changed(changing: Changing) -> None:
    pictures = begin()
    first, second = all_of(pictures, None, None)
    assert first is second
    assert first.version == 1
    pictures.now = 1
    new, old = all_of(pictures, None, 1)
    assert new is not old
    assert changing.afters == [None, None, 1]


def test_pages_that_got_out_of_step_get_the_same_again(changing: Changing) -> None:
    pictures = begin()
    all_of(pictures, None)
    pictures.now = 1
    late, early = all_of(pictures, None, 1)
    assert (late.version, early.version) == (2, 3)
    pictures.now = 2
    third = all_of(pictures, 3, 2)
    assert third[0] is third[1], "each gets its own for ever"
    assert changing.afters[-1] == 2, "the one that was late would miss what changed"
    pictures.now = 3
    assert all_of(pictures, 4, 4)[0].version == 5
    assert changing.afters[-1] == 4


def test_a_page_that_skipped_beats_gets_all_that_changed_since(changing: Changing) -> None:
    pictures = begin()
    all_of(pictures, None)
    for pictures.now in (1, 2, 3):
        all_of(pictures, pictures.now)
    pictures.now = 4
    slow, fast = all_of(pictures, 1, 4)
    assert changing.afters[-1] == 1
    assert slow is fast, "who knows more can go on with more than it needs"


def test_another_epoch_shares_nothing(changing: Changing) -> None:
    pictures = begin()
    first = all_of(pictures, None)[0]
    pictures._source.epoch += 1  # type: ignore[misc]
    assert all_of(pictures, None)[0] is not first


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    monkeypatch.setitem(SHOWS, "counting", counting.show)
    pictures = begin()

    async def get() -> None:
        for number in range(1_000):
            await pictures.get(ask("counting", {"of": str(number)}))

    asyncio.run(get())
    assert len(pictures._kept) <= 256


def test_what_nobody_asks_for_any_more_is_forgotten(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    monkeypatch.setitem(SHOWS, "counting", counting.show)
    pictures = Beaten(FedSource(View(), operable=False), 100_000_000, 1.0)

    async def get(of: str) -> None:
        await pictures.get(ask("counting", {"of": of}))

    asyncio.run(get("a chosen second"))
    for pictures.now in range(200):
        asyncio.run(get("the present"))
    assert len(pictures._kept) == 1
