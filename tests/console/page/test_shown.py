"""What the page shows against what the controller says and what its event log holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mainspring.client.errors import MainspringError
from mainspring.messages.actions import Infer, Load, Reject
from mainspring.telemetry.log import read_entries
from tests.console.page.conftest import Open, stop
from tests.console.page.live import PAGES, Site, wait_until
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page


def number(text: str) -> int:
    """Return the number that a text begins with."""
    return int(text.split(maxsplit=1)[0].replace(",", ""))


def test_memory_shows_the_controllers_pages_and_models(open_page: Open, site: Site) -> None:
    site.load()
    wait_until(lambda: sum(len(one.resident_on) for one in site.client.status().models) > 4, "residency")
    site.quiet()
    status = site.client.status()
    for worker in status.workers:
        page = open_page(f"#/memory/{worker.worker}")
        page.wait_for_function(
            "free => parseInt(document.querySelector('[data-fact=free]').textContent) === free",
            arg=worker.pages_free,
        )
        assert number(page.inner_text("[data-fact=pages]")) == worker.pages == PAGES
        rows = page.locator("table[aria-label='Models in this memory'] tbody tr").all()
        shown = {row.locator("a").inner_text(): number(row.locator("td").nth(1).inner_text()) for row in rows}
        held = {one.name: one.pages for one in status.models if worker.worker in one.resident_on}
        assert shown == held
        assert sum(shown.values()) + worker.pages_free == worker.pages


def test_cluster_shows_the_controllers_workers(open_page: Open, site: Site) -> None:
    site.load()
    site.quiet()
    page = open_page("#/cluster")
    for worker in site.client.status().workers:
        card = page.locator(".card", has=page.locator("h3", has_text=worker.worker))
        used = worker.pages - worker.pages_free
        card.locator(f"[title='{used} of {worker.pages} pages in use']").wait_for()
        expected = f"{worker.resident} of {worker.prepared}"
        card.get_by_text(expected, exact=True).wait_for()


def test_models_show_where_the_controller_has_them(open_page: Open, site: Site) -> None:
    site.load()
    site.quiet()
    status = site.client.status()
    page = open_page("#/models")
    page.locator(".models tbody tr:not(.space)").nth(len(status.models) - 1).wait_for()
    for model in status.models:
        row = page.locator(".models tbody tr", has=page.get_by_role("link", name=model.name, exact=True))
        place = row.locator("td").first.inner_text()
        expected = (
            model.resident_on[0] if len(model.resident_on) == 1 else f"{len(model.resident_on)} workers"
        )
        assert place == (expected if model.resident_on else "nowhere"), model.name
        assert number(row.locator("td").nth(10).inner_text()) == model.pages


def test_models_are_searched_and_sorted(open_page: Open, site: Site) -> None:
    site.quiet()
    page = open_page("#/models")
    names = page.locator(".models tbody tr:not([hidden]):not(.space) a")
    page.get_by_role("button", name="Model", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('.models tbody tr:not(.space) a').textContent === 'small-8'"
    )
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), reverse=True)
    page.fill("input[aria-label='Search models by name']", "large")
    page.get_by_text("8 found").wait_for()
    wait_until(lambda: len(names.all_inner_texts()) == 8, "a table of eight rows")
    assert all("large" in name for name in names.all_inner_texts())
    assert page.url.endswith("#/models?search=large&order=falling")


def test_schedule_shows_the_logs_actions_and_plans(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule")
    rows = page.locator("table[aria-label='Actions in sight'] tbody tr")

    def some() -> bool:
        return rows.count() > 3 and page.locator("table.acts .mark[data-is=in_time]").count() > 0

    wait_until(some, "actions in sight")
    stop(page)
    shown = {chosen(page, place) for place in range(3)}
    site.quiet()
    logged = {
        (entry.action_id, entry.worker, entry.model, type(entry).__name__.upper())
        for _, entry in read_entries(site.events)
        if isinstance(entry, Infer | Load)
    }
    assert len(shown) == 3
    assert shown <= logged


def chosen(page: Page, place: int) -> tuple[int, str, str, str]:
    """Choose a row of the list of actions; return what the page says of it."""
    row = page.locator("table.acts tbody tr").nth(place)
    row.locator("button").click()
    kind, _, model = row.locator("button").inner_text().partition(" ")
    box = page.locator("section[aria-label='Chosen action']")
    box.get_by_role("link", name=model, exact=True).wait_for()
    action = int(box.locator("p").first.inner_text().rpartition("action ")[2])
    return action, row.locator("td").nth(1).inner_text().split()[0], model, kind


def test_what_is_planned_is_shown_before_it_is_done(open_page: Open, site: Site) -> None:
    site.quiet()
    status = site.client.status()
    cold = next(one.name for one in status.models if one.name.startswith("large") and not one.resident_on)
    page = open_page("#/schedule")
    spec = next(spec for spec in site.client.models() if spec.name == cold)
    inputs = {
        tensor.name: np.zeros((1, *tensor.shape), np.dtype(tensor.dtype).newbyteorder("="))
        for tensor in spec.inputs
    }
    # A second is in sight at first: on a busy machine the action would be past it before it is looked for.
    page.locator(".timeline canvas").focus()
    for _ in range(9):
        page.keyboard.press("-")
    planned = page.locator("table.acts tr", has_text=f"LOAD {cold}")
    answers = [site.client.submit(cold, inputs, slo_ms=10_000)]
    planned.first.wait_for()
    for answer in answers:
        answer.result(PATIENCE_S)
    row = planned.first
    row.locator(".mark[data-is=in_time]").wait_for()
    predicted_ms = float(row.locator("td").nth(4).inner_text().split()[0])
    load = next(
        entry
        for _, entry in read_entries(site.events)
        if isinstance(entry, Load) and entry.model == cold and entry.predicted_duration_ns > 0
    )
    assert load.worker in row.locator("td").nth(1).inner_text()
    assert predicted_ms == pytest.approx(load.predicted_duration_ns / 1e6, rel=0.5)


def test_a_rejected_request_is_explained(open_page: Open, site: Site) -> None:
    site.quiet()
    status = site.client.status()
    cold = next(one.name for one in status.models if one.name.startswith("large") and not one.resident_on)
    spec = next(spec for spec in site.client.models() if spec.name == cold)
    inputs = {
        tensor.name: np.zeros((1, *tensor.shape), np.dtype(tensor.dtype).newbyteorder("="))
        for tensor in spec.inputs
    }
    with pytest.raises(MainspringError):
        site.client.infer(cold, inputs, slo_ms=60)
    page = open_page("#/request")
    line = page.locator("table.requests tbody tr", has_text=cold).first
    line.wait_for()
    request = line.locator("a.mono").inner_text()
    line.locator("a.mono").click()
    page.locator("h1", has_text=request).wait_for()
    page.locator(".summary", has_text="ms").wait_for()
    _, reject = next(
        (now_ns, entry)
        for now_ns, entry in read_entries(site.events)
        if isinstance(entry, Reject) and str(entry.request_id) == request
    )
    facts = page.locator("section[aria-label='The request']").inner_text()
    assert cold in facts
    assert reject.reason.replace("_", " ") in facts
    workers = page.locator("table[aria-label=Alternatives] tbody th").all_inner_texts()
    assert workers == ["worker-0", "worker-1"]
    assert page.locator("table[aria-label=Alternatives] .mark[data-is=failed]").count() == 2
