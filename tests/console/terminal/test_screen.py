"""The screen over a recorded run: what is shown, what keys change, and that it fits any terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from mainspring.console.payloads import ActionLine, Cluster, Lane, Memory, Models, Schedule
from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import models
from mainspring.console.queries.schedule import schedule
from mainspring.console.queries.worker import memory
from mainspring.console.terminal.cluster import FREE, LOADING, schedule_lines
from mainspring.console.terminal.running import RecordedSource, as_json
from mainspring.console.terminal.screen import VIEWS, Screen
from mainspring.console.view.view import View
from mainspring.telemetry.runs import choose_run
from tests.telemetry.recordings import record

SECOND = 1_000_000_000
KEYS = ["1", "2", "3", "4", "tab", "back tab", "up", "down", "page up", "page down", "home", "end", "space"]
KEYS += ["n", "p", "+", "-", "left", "right", "0", "<", ">", "{", "}", "s", "r", "/", "?", "escape", "enter"]
KEYS += ["backspace", "m", "x", "unheard of"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    log = record(tmp_path_factory.mktemp("log"))
    found = RecordedSource(log, at_ns=choose_run(log).first_ns + 2 * SECOND)
    while not found.ready():
        found.work(0.05)
    return found


def shown(screen: Screen, source: RecordedSource, width: int = 80, height: int = 24) -> list[str]:
    lines = screen.frame(source.view, source.head(), source.detail(), "12:34:56", width, height)
    assert len(lines) == height
    assert all(cell_len(line.plain) <= width for line in lines)
    return [line.plain for line in lines]


def text(screen: Screen, source: RecordedSource, width: int = 80, height: int = 24) -> str:
    return "\n".join(shown(screen, source, width, height))


def press(screen: Screen, *names: str) -> Screen:
    for name in names:
        screen.key(name)
    return screen


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([name for name in KEYS if name != "q"]), max_size=12),
    st.integers(1, 200),
    st.integers(4, 80),
)
def test_any_keys_on_any_terminal_make_a_picture_that_fits(
    source: RecordedSource, names: list[str], width: int, height: int
) -> None:
    screen = Screen()
    shown(screen, source, width, height)
    for name in names:
        screen.key(name)
        shown(screen, source, width, height)


def test_the_cluster_is_what_the_query_says(source: RecordedSource) -> None:
    found = cluster(source.view)
    picture = text(Screen(), source, 140, 60)
    assert "recorded: 2.000 of " in picture
    assert "clockwork  12:34:56" in picture
    for worker in found.workers:
        assert f"{worker.name:<11} serving" in picture
        assert f"{worker.pages - worker.pages_free}/{worker.pages}" in picture
    assert f"{found.last_60s.offered_rps:,.1f}" in picture
    newest = found.recent[0]
    assert newest.outcome == "rejected"
    assert newest.id in picture
    assert newest.reason in picture


def test_nothing_is_shown_before_something_is_known(source: RecordedSource) -> None:
    screen = Screen()
    screen.known = False
    lines = screen.frame(View(), source.head(), "no controller answers", "", 80, 24)
    picture = "\n".join(line.plain for line in lines)
    assert "Nothing is known of the cluster yet: no controller answers" in picture
    assert "0.0" not in picture
    assert "worker" not in picture
    screen.known = True
    assert "rejected" in text(screen, source)


def test_of_no_second_no_rate_is_shown() -> None:
    row = Screen().lines(View(), 100, 20)[1].plain.split()
    assert row == ["0/10", *["-"] * 10]


def test_the_models_that_were_evicted_most_come_first(source: RecordedSource) -> None:
    screen = press(Screen(), "e")
    lines = shown(screen, source, 80, 24)
    wanted = models(source.view, sort="evictions", descending=True)
    assert lines[3].split()[-2:] == ["load/m", "evict/m"], "at 80 columns"
    assert [line.split()[0] for line in lines[4 : 4 + len(wanted.rows)]] == [row.name for row in wanted.rows]
    rates = [line.split()[-1].rstrip("!") for line in lines[4 : 4 + len(wanted.rows)]]
    assert rates == [f"{row.evictions_pm:,.0f}" for row in wanted.rows]


@pytest.mark.parametrize("colour", [True, False])
def test_colour_is_left_out_where_nobody_wants_it(
    source: RecordedSource, monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=100)
    for line in Screen().lines(source.view, 100, 40):
        console.print(line)
    assert bool(re.search(r"\x1b\[[0-9;]*3[1-3]m", file.getvalue())) == colour
    assert "rejected" in file.getvalue()


def test_the_memory_is_a_character_a_page(source: RecordedSource) -> None:
    found = memory(source.view, "worker-0")
    lines = shown(press(Screen(), "2"), source)
    cells = lines[3].split(" ", 2)[2].replace(" ", "")
    assert len(cells) == found.pages == 21
    assert cells.count(FREE) == found.pages_free
    loading = sum(extent.count for extent in found.extents if extent.state == "loading")
    assert cells.count(LOADING) == loading
    assert "worker-0 (1 of 2): " in lines[2]
    for model in found.models:
        assert any(model in line for line in lines)
    assert "worker-1 (2 of 2): " in text(press(Screen(), "2", "n"), source)
    assert "worker-0 (1 of 2): " in text(press(Screen(), "2", "n", "n"), source)


def test_the_schedule_shows_past_and_plan(source: RecordedSource) -> None:
    screen = press(Screen(), "3")
    lines = shown(screen, source, 120, 40)
    track = next(line for line in lines if line.startswith("worker-0 EXEC"))
    past, plan = track.split("│")
    assert {"█", "▓"} <= set(past)
    assert "░" in past + plan
    now_ns = source.view.now_ns
    span = schedule(source.view, now_ns - 350_000_000, now_ns + 150_000_000)
    outstanding = [each for each in span.actions if not each.status]
    assert outstanding
    listed = lines[lines.index(next(line for line in lines if line.startswith("actions"))) :]
    for action in outstanding:
        assert any(action.model in line and "planned" in line for line in listed)
    assert "500 ms" in lines[2]
    assert "200 ms" in shown(press(screen, "+"), source, 120)[2]
    before = text(press(screen, "left", "left", "left", "left", "left"), source, 120)
    assert "│" not in before.split("actions")[0].split("\n", 3)[3], "now is not in what is shown"
    assert "│" in text(press(screen, "0"), source, 120).split("actions")[0].split("\n", 3)[3]


def test_the_models_are_sorted_and_searched(source: RecordedSource) -> None:
    screen = press(Screen(), "4")
    lines = shown(screen, source)
    wanted = models(source.view, sort="demand", descending=True)
    assert [line.split()[0] for line in lines[4:12]] == [row.name for row in wanted.rows]
    press(screen, "/", "m", "-", "3")
    assert "search: m-3_" in text(screen, source)
    press(screen, "enter")
    assert "1-1 of 1 models, named like 'm-3'" in text(screen, source)
    assert "8 models" in text(press(screen, "escape"), source)
    press(screen, *["s"] * 20)
    assert len({screen.sort}) == 1
    small = press(Screen("models"), "end")
    assert "5-8 of 8 models" in text(small, source, 80, 9)
    assert "1-4 of 8 models" in text(press(small, "home"), source, 80, 9)


def test_a_picture_that_stands_still_can_be_scrolled(source: RecordedSource) -> None:
    screen = press(Screen(), "space")
    first = shown(screen, source)
    assert "paused" in first[0]
    kept = screen._kept
    lower = shown(press(screen, "down", "down"), source)
    assert screen._kept is kept
    assert lower[2:-3] == first[4:-1]
    shown(press(screen, "end"), source)
    shown(press(screen, "home"), source)
    assert shown(screen, source)[2:] == first[2:]
    assert "paused" not in shown(press(screen, "space"), source)[0]


def test_a_log_is_moved_and_played_instead(source: RecordedSource) -> None:
    screen = press(Screen(recorded=True), ">", "}", "<")
    assert screen.seek_ns == 10 * SECOND
    assert press(screen, "space").play
    assert not screen.paused
    assert press(Screen(), ">").seek_ns == 0
    assert press(Screen(), "q").quit
    assert press(Screen(), "hung up").quit
    assert press(Screen(), "/", "hung up").quit


def test_the_keys_are_explained(source: RecordedSource) -> None:
    explained = text(press(Screen(), "?"), source)
    for name in ("scroll", "zoom", "search", "quit"):
        assert name in explained
    assert "scroll (also" not in text(press(Screen(), "?", "?"), source)


def test_scripts_get_the_payloads(source: RecordedSource) -> None:
    found = msgspec.json.decode(as_json(source, None))
    assert list(found) == ["head", *VIEWS]
    assert msgspec.convert(found["cluster"], Cluster) == cluster(source.view)
    assert {name: msgspec.convert(each, Memory) for name, each in found["memory"].items()} == {
        name: memory(source.view, name) for name in ("worker-0", "worker-1")
    }
    assert msgspec.convert(found["models"], Models, str_keys=True) == models(source.view, limit=1000)
    assert msgspec.convert(found["schedule"], Schedule, str_keys=True).actions
    assert list(msgspec.json.decode(as_json(source, "models"))) == ["head", "models"]


def test_seeking_shows_another_moment(tmp_path: Path) -> None:
    log = record(tmp_path)
    run = choose_run(log)
    source = RecordedSource(log)
    while not source.ready():
        source.work(0.05)
    assert source.head().now_ns == pytest.approx(run.last_ns, abs=SECOND // 100)
    source.seek(-SECOND)
    while not source.ready():
        source.work(0.05)
    assert source.view.now_ns == pytest.approx(run.last_ns - SECOND, abs=SECOND // 50)
    assert "standing still" in source.detail()
    source.play()
    assert "playing" in source.detail()
    source.close()


def test_the_list_of_actions_says_why_a_load_was_sent() -> None:
    why = "for requests that wait, evicting a"
    load = ActionLine(
        1, 0, "LOAD", "m", 0, 0, [], 0, 0, 9, 0, 5, 1, 6, "engine_error", "no memory", why, ["a"]
    )
    lines = schedule_lines(Schedule(0, 10, [Lane("w", "LOAD")], [load], 1), 160, 8)
    assert "for requests that wait, evicting a; no memory" in "\n".join(line.plain for line in lines)
