"""What gateways refuse, silent workers, models that are awaited, and curves of one model or worker."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from mainspring.simulator.scenario import random_model
from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until
from tests.console.page.test_views import violations, wait_until_it_fits
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

NUMBER = re.compile(r"[1-9]")


def ask_for_no_model(site: Site) -> None:
    """Send a request for a model that there is not: the gateway refuses it itself."""
    body = b'{"inputs": []}'
    asked = urllib.request.Request(f"{site.http}/v2/models/nobody/infer", body)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(asked, timeout=PATIENCE_S)


@pytest.mark.parametrize("width", [1280, 400])
def test_what_gateways_refuse_has_a_panel_and_a_mark(open_page: Open, site: Site, width: int) -> None:
    page = open_page("#/cluster?window=5min", width)
    ask_for_no_model(site)
    panel = page.get_by_role("region", name="Refused by gateways")
    panel.locator("li", has_text="unknown model").filter(has_text=NUMBER).wait_for()
    panel.get_by_text("never reached the controller").wait_for()
    mark = page.get_by_role("region", name="What happened").locator("li[data-kind=refused]").first
    mark.get_by_text("refuses requests before they reach the controller").wait_for()
    assert violations(page) == []
    wait_until_it_fits(page, "#/cluster")


def test_a_worker_that_gives_no_sign_of_life_is_said_to_before_it_is_gone(
    open_page: Open, site: Site
) -> None:
    page = open_page("#/cluster")
    pid = site.cluster.supervisor.pid("worker-1")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        told = page.get_by_role("region", name="What happened").locator("li", has_text="worker-1")
        told.filter(has_text="gives no sign of life").first.wait_for()
        page.locator(".card", has_text="worker-1").filter(has_text=re.compile("silent|gone")).wait_for()
    finally:
        os.kill(pid, signal.SIGCONT)

    def back() -> bool:
        states = {one["name"]: one["state"] for one in site.api("cluster")["workers"]}
        return states.get("worker-1") == "serving"

    wait_until(back, "a worker that is back")


@pytest.mark.parametrize("width", [1280, 400])
def test_models_that_are_not_served_yet_are_named_with_why(open_page: Open, width: int) -> None:
    page = open_page("#/cluster", width)
    page.evaluate(
        """async () => {
            const { awaitedPanel } = await import('./views/cluster.js');
            const { root, draw } = awaitedPanel();
            document.querySelector('main').append(root);
            draw({ detector: 'being compiled', giant: "can't be loaded: it needs 900 pages" }, 3); }"""
    )
    panel = page.get_by_role("region", name="Not served yet")
    assert [" ".join(text.split()) for text in panel.locator("li").all_inner_texts()] == [
        "detector being compiled",
        "giant can't be loaded: it needs 900 pages",
    ]
    panel.get_by_text("and 3 more").wait_for()
    assert violations(page) == []
    wait_until_it_fits(page, "#/cluster")


def shown(page: Page, name: str) -> dict[str, str]:
    """Move a chart's cursor to the newest second that is over, and return what its box says."""
    panel = page.get_by_role("region", name=name, exact=True)
    canvas = panel.locator("canvas[aria-roledescription=chart]")
    canvas.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    box = panel.locator(".tip")
    box.wait_for()
    return dict(zip(box.locator("dt").all_inner_texts(), box.locator("dd").all_inner_texts(), strict=True))


def test_a_models_page_has_the_course_of_its_requests_and_latency(open_page: Open, site: Site) -> None:
    site.load()
    busiest = max(site.api("models?sort=demand&descending=true")["rows"], key=lambda row: row["demand_rps"])
    page = open_page(f"#/model/{busiest['name']}")
    page.wait_for_function("() => document.querySelectorAll('main .plot canvas').length >= 2")
    assert set(shown(page, "Requests")) == {"offered", "rejected", "late", "in time"}
    assert set(shown(page, "Latency")) == {"mean", "longest"}
    series = site.api(f"model?name={busiest['name']}")["series"]
    assert sum(series["offered"]) > 0
    # A second that is chosen leads to its requests, with this model's alone.
    page.keyboard.press("Enter")
    page.wait_for_url(f"**moment=*model={busiest['name']}*")


def test_a_workers_page_has_the_course_of_what_it_did(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/worker/worker-0")
    busy, batches = shown(page, "Busy"), shown(page, "Batches")
    assert set(busy) == {"EXEC", "LOAD"}
    assert all(value.endswith("%") or value == "\u2013" for value in busy.values())
    assert set(batches) == {"batches", "rows"}
    series = site.api("worker?name=worker-0")["series"]
    assert sum(series["batches"]) > 0
    assert sum(series["rows"]) >= sum(series["batches"])


def test_a_model_that_is_served_unverified_is_said_to_be(open_page: Open, site: Site) -> None:
    made = random_model(np.random.default_rng(0), "on-word", "e")
    site.client.add_model(msgspec.structs.replace(made, verified=False))
    try:
        known = next(row["name"] for row in site.api("models")["rows"] if row["name"] != "on-word")
        for name, verified in (("on-word", False), (known, True)):
            page = open_page(f"#/model/{name}")
            ready = page.get_by_role("region", name="The model").get_by_text(re.compile("^(yes|no:)"))
            assert ("; unverified: compared with nothing" in ready.inner_text()) is not verified
            assert site.api(f"model?name={name}")["verified"] is verified
    finally:
        site.client.remove_model("on-word")
