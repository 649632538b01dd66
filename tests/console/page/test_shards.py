"""Several controllers: each has a console, and each page links to the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from tests.console.page.live import COPIES, PAGES, PROFILES

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_page_links_to_the_consoles_of_the_other_controllers(browser: Browser, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.csv"
    profiles.write_text(PROFILES)
    gateway, console = free_ports(2)
    config = read_config(
        {
            "cluster": {
                **{"engine": "emulated", "profiles": str(profiles), "copies": COPIES, "workers": 3},
                **{"run_dir": str(tmp_path / "run"), "console": True},
            },
            "shards": {"workers": [2, 1], "count": 2},
            "worker": {"pages": PAGES},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "console": {"address": f"http://127.0.0.1:{console}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None), browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://localhost:{console}/#/cluster")
        links = page.locator("#shards a")
        links.nth(1).wait_for()
        assert links.all_text_contents() == ["shard 0", "shard 1"]
        assert links.nth(0).get_attribute("aria-current") == "page"
        page.get_by_text("worker-1").first.wait_for()
        assert page.get_by_text("worker-2").count() == 0
        links.nth(1).click()
        page.wait_for_url(f"http://localhost:{console + 1}/**")
        page.get_by_text("worker-2").first.wait_for()
        assert page.get_by_text("worker-1").count() == 0
        assert page.locator("#shards [aria-current]").text_content() == "shard 1"
