"""A page whose console dies, or whose controller does: it says so, and goes on by itself."""

from __future__ import annotations

import os
import signal

import pytest

from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until


@pytest.mark.parametrize("process", ["console", "controller"])
def test_a_page_recovers_when_a_process_was_killed(open_page: Open, site: Site, process: str) -> None:
    page = open_page("#/cluster")
    page.locator("#link[data-state=live]").wait_for()
    workers = page.locator(".card").count()
    pid = site.cluster.supervisor.pid(process)
    assert pid is not None
    page.evaluate(
        """() => { window.states = []; new MutationObserver(() => window.states.push(
            [document.querySelector('#link').dataset.state, document.body.classList.contains('stale')]
        )).observe(document.querySelector('#link'), {attributes: true}); }"""
    )
    os.kill(pid, signal.SIGKILL)
    page.wait_for_function("() => window.states.some(([state]) => state === 'connecting')")
    page.wait_for_function("() => window.states.length > 1 && window.states.at(-1)[0] === 'live'")
    assert ["connecting", True] in page.evaluate("window.states")
    page.wait_for_function("() => document.querySelector('#notice').hidden")
    page.wait_for_function("count => document.querySelectorAll('.card').length === count", arg=workers)


def test_what_a_console_was_not_there_to_see_it_does_not_deny(open_page: Open, site: Site) -> None:
    site.load()
    wait_until(lambda: any(each.resident_on for each in site.client.status().models), "a model in a memory")
    site.quiet()
    held = next(each for each in site.client.status().models if each.resident_on)
    pid = site.cluster.supervisor.pid("console")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def came_later() -> bool:
        try:
            line = site.api(f"model?name={held.name}")["line"]
        except OSError:
            return False
        return bool(line["resident_on"]) and line["last_load_ns"] is None

    wait_until(came_later, "a console that did not see the LOAD")
    memory = site.api(f"memory?worker={held.resident_on[0]}")
    assert memory["last_used_ns"][memory["models"].index(held.name)] > 0, "the snapshot says when it was used"
    for hash_ in (f"#/model/{held.name}", f"#/models?search={held.name}"):
        page = open_page(hash_)
        page.get_by_text("not seen", exact=True).first.wait_for()
        assert "never" not in page.inner_text("main")
