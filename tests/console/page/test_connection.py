"""A page whose console dies, or whose controller does: it says so, and goes on by itself."""

from __future__ import annotations

import os
import signal

import pytest

from tests.console.page.conftest import Open
from tests.console.page.live import Site


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
