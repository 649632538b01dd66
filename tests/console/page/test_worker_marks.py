"""A worker that was away: its tile stays while it is, and a mark stays when it is back."""

from __future__ import annotations

import os
import re
import signal

from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until


def test_a_worker_that_was_away_keeps_its_tile_and_leaves_a_mark(open_page: Open, site: Site) -> None:
    def happened(kind: str) -> bool:
        return any(one["kind"] == kind for one in site.api("cluster")["happenings"])

    pid = site.cluster.supervisor.pid("worker-1")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: happened("gone"), "a worker that is found to be gone")
        page = open_page("#/memory/worker-0")
        page.locator("nav.workers a", has_text="worker-1").filter(has_text="gone").wait_for()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: happened("back"), "a worker that is back")
    page = open_page("#/cluster")
    page.locator(".deeds li", has_text="worker-1").filter(has_text="back after").first.wait_for()
    page.locator(".deeds li", has_text="worker-1").filter(has_text="gone: ").first.wait_for()
    # The card has the newest that happened: on a busy machine the worker may be late again since.
    newest = re.compile("back after|no sign of life|times")
    page.locator(".card", has_text="worker-1").filter(has_text=newest).wait_for()
    page.locator(".deeds a", has_text="worker-1").first.click()
    page.locator("h1", has_text="worker-1").wait_for()
    page.locator(".deeds li", has_text="worker-1").filter(has_text="back after").first.wait_for()
    page.get_by_role("link", name="Schedule", exact=True).last.click()
    page.locator("h1", has_text="Schedule of worker-1").wait_for()
    page.locator(".deeds li", has_text="worker-1").filter(has_text="back after").first.wait_for()
    marked = site.api("schedule?from_ns=0&to_ns=1000000000000000000&workers=worker-1")["happenings"]
    assert {"gone", "back"} <= {one["kind"] for one in marked}
