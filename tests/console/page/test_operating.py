"""Operating from the page: with a token, after a question, with the answer shown and the deed logged."""

from __future__ import annotations

import json
import math
import urllib.request
from typing import Any

from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import OperatorCommand, PinModel, SetGraph, UnpinModel
from mainspring.telemetry.log import read_entries
from tests.console.page.conftest import Open
from tests.console.page.live import TOKEN, Site, wait_until
from tests.patience import PATIENCE_S


def test_a_worker_is_drained_and_resumed(open_page: Open, site: Site) -> None:
    page = open_page("#/operate")
    drain = page.get_by_role("button", name="Drain worker-1")
    drain.wait_for()
    assert drain.is_disabled()
    assert "token" in page.inner_text(".why-not")
    page.fill("#operate-token", TOKEN)
    page.get_by_role("button", name="Use it").click()
    assert TOKEN not in page.content()
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
    for verb, state in (("Drain", "draining"), ("Resume", "serving")):
        page.get_by_role("button", name=f"{verb} worker-1").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        dialog.wait_for(state="detached")
        page.get_by_role("button", name=f"{verb} worker-1").click()
        dialog.get_by_role("button", name=verb).click()
        page.locator(".result").wait_for()
        assert page.get_attribute(".result", "data-good") == "true", page.inner_text(".result")
        page.locator(".placements li", has_text="worker-1").locator(f".mark[data-is={state}]").wait_for()
    page.locator(".deeds li", has_text="ann resume worker-1").wait_for()
    wait_until(lambda: len(asked(site)) >= 2, "two commands in the event log")
    assert [type(one.command).__name__ for one in asked(site)][:2] == ["DrainWorker", "ResumeWorker"]
    assert {one.who for one in asked(site)} == {"ann"}


def test_what_the_controller_refuses_is_shown(open_page: Open) -> None:
    page = open_page("#/operate?model=nothing-like-it")
    page.fill("#operate-token", TOKEN)
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pin").click()
    page.locator(".result").wait_for()
    assert "nothing-like-it" in page.inner_text(".result")
    assert page.get_attribute(".result", "data-good") == "false"


def test_a_default_slo_counts_for_requests_that_bring_none(open_page: Open, site: Site) -> None:
    page = open_page("#/operate?model=small-2")
    page.fill("#operate-token", TOKEN)
    page.get_by_role("button", name="Use it").click()
    assert "deadline_ns_left" not in infer(site, "small-2")
    for given, good in (("-5", "false"), ("20000", "true")):
        page.fill("#operate-slo", given)
        page.get_by_role("button", name="Set default SLO").click()
        page.get_by_role("dialog").get_by_role("button", name="Set").click()
        page.locator(f".result[data-good={good}]").wait_for()
    wait_until(lambda: "deadline_ns_left" in infer(site, "small-2"), "an answer with a deadline")
    assert 10e9 < infer(site, "small-2")["deadline_ns_left"] < 20e9


def test_a_wrong_token_changes_nothing(open_page: Open, site: Site) -> None:
    page = open_page("#/operate?model=small-1")
    for token, verb, good in (("ms_of_a_stranger", "Unpin", "false"), (TOKEN, "Pin", "true")):
        page.fill("#operate-token", token)
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("button", name=verb, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=verb).click()
        page.locator(f".result[data-good={good}]").wait_for()
        assert ("token" in page.inner_text(".result")) == (good == "false")
    wait_until(lambda: PinModel("small-1") in commands(site), "the command that was granted in the log")
    assert UnpinModel("small-1") not in commands(site)


def commands(site: Site) -> list[OperatorCommand]:
    return [one.command for one in asked(site)]


def infer(site: Site, model: str) -> dict[str, Any]:
    """Send a request over HTTP that says nothing of a deadline; return its answer's parameters."""
    url = f"{site.http}/v2/models/{model}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        inputs = json.load(reply)["inputs"]
    for tensor in inputs:
        tensor["shape"] = [1, *tensor["shape"][1:]]
        tensor["data"] = [0] * math.prod(tensor["shape"])
    body = json.dumps({"inputs": inputs}).encode()
    with urllib.request.urlopen(f"{url}/infer", body, timeout=PATIENCE_S) as reply:
        found: dict[str, Any] = json.load(reply)["parameters"]
    return found


def asked(site: Site) -> list[OperatorAsked]:
    """Return what operators asked for on the page, as the event log has it: graphs come from the site."""
    entries = [entry for _, entry in read_entries(site.events) if isinstance(entry, OperatorAsked)]
    return [each for each in entries if not isinstance(each.command, SetGraph)]
