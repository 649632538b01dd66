"""The view of applications: what was learnt of members, and what became of feedback."""

from __future__ import annotations

import numpy as np
import pytest

from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until
from tests.console.page.test_views import violations, wait_until_it_fits

pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install .[dev]"
)


def ask(site: Site) -> int:
    """Have an application answer, once it is there; return the id of the answer."""
    model = next(each for each in site.client.models() if each.name == "small-1")
    application = f'name = "chosen"\nmembers = ["small-1", "small-2"]\noutput = "{model.outputs[0].name}"\n'
    site.client.add_graph(application + "context = true\nconfidence = 0.9\ndefault = -1\n")
    inputs = {each.name: np.zeros((1, *each.shape), each.dtype) for each in model.inputs}
    learnt = site.client.infer("chosen", inputs, slo_ms=60_000, context="ann").timing.learnt
    assert learnt is not None
    return learnt.query_id


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_shows_what_was_learnt_and_what_became_of_feedback(
    open_page: Open, site: Site, width: int, dark: bool
) -> None:
    site.quiet()
    query_id = ask(site)
    for _ in range(2):
        site.client.observe("chosen", query_id, [0])
    (own,) = site.client.applications()

    def told() -> bool:
        found = site.api("applications")["applications"]
        return [each["duplicate"] for each in found] == [own.duplicate]

    wait_until(told, "a report")
    page = open_page("#/applications", width, dark=dark)
    panel = page.locator("section.panel", has_text="chosen")
    panel.locator("tbody tr").nth(1).wait_for()
    names = panel.locator("tbody th").all_inner_texts()
    assert names == ["small-1", "small-2"]
    labels, values = (panel.locator(each).all_inner_texts() for each in ("dt", "dd"))
    shown = dict(zip(labels, values, strict=True))
    expected = {"Feedback joined": own.joined, "Feedback duplicate": own.duplicate, "Requests": own.requests}
    assert {name: shown[name] for name in expected} == {name: str(each) for name, each in expected.items()}
    assert page.locator("[role=status]", has_text="1 application").count() == 1
    assert violations(page) == []
    wait_until_it_fits(page, "#/applications")
    row = "nav => [...nav.querySelectorAll('a')].every((a) => a.scrollWidth <= a.clientWidth)"
    assert page.locator(".rail").evaluate(row), "a name in the rail is wider than its place"


def test_one_that_is_removed_is_shown_no_more(open_page: Open, site: Site) -> None:
    ask(site)
    page = open_page("#/applications")
    page.locator("section.panel", has_text="chosen").wait_for()
    site.client.remove_graph("chosen")
    page.locator("p.empty", has_text="No gateway serves an application.").wait_for()
    assert page.locator("section.panel").count() == 0
