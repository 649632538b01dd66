"""Pictures of the console's page for the documentation, of every view at two widths.

A simulated cluster of twelve devices is written as an event log, which the console plays; the view that
changes what is served is of a small live cluster. ``python -m mainspring.experiments.console_screens`` needs
Debian's chromium and ``pip install .[dev]``; it takes about three minutes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.transport.tokens import token_sha256
from tests.console.played import FLAGS, play, playing, replay, seek, write_log

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path("docs/images/console")
MODELS = (
    ModelGroup(name="resnet50", infer_ms={"1": 2.6, "2": 3.9, "4": 6.0, "8": 10.0, "16": 17.3}, copies=120),
    ModelGroup(name="densenet121", infer_ms={"1": 5.8, "4": 9.6, "16": 24.0}, weights_mb=32, copies=90),
    ModelGroup(
        name="vgg16", infer_ms={"1": 4.5, "4": 9.9, "16": 29.0}, weights_mb=553, load_ms=45.0, copies=40
    ),
    ModelGroup(name="mobilenet", infer_ms={"1": 1.3, "16": 5.0}, weights_mb=14, load_ms=2.0, copies=150),
)
VIEWS = {
    "cluster": "#/cluster",
    "memory": "#/memory/worker-2",
    "schedule": "#/schedule",
    "zoomed": "#/schedule/worker-1",
    "models": "#/models?sort=demand&order=falling",
    "model": "#/model/resnet50-1",
    "requests": "#/request",
    "request": "#/request/last-rejected",
}
ZOOMS = 7
SIZES = {1280: 900, 390: 844}
ALSO_DARK = ("cluster", "schedule")
LENGTH_S = 68.0
SHOWN_S = 64.0
SETTLE_MS = 2_500.0
PROFILES = f"{','.join(COLUMNS)}\nresnet50,602,4,98,8,2.6,3.9,6.0,10.0,17.3\n"
TOKEN = "ms_for_a_picture"


def cluster() -> SimulationSpec:
    """Return the cluster that is shown, a part of whose requests have little time."""
    return SimulationSpec(
        devices=(DeviceGroup(count=12, pages=240),),
        models=MODELS,
        workload=(
            WorkloadSpec(rate=1_150.0, zipf_exponent=0.8),
            WorkloadSpec(rate=60.0, zipf_exponent=0.8, slo_ms=9.0),
        ),
        scheduler=SchedulerConfig(),
        warm_up_s=0.0,
        duration_s=LENGTH_S,
    )


def opened(browser: Browser, width: int, dark: bool) -> Page:
    """Return a page of a screen of that width."""
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme="dark" if dark else "light",
        has_touch=width < 500,
    )
    return context.new_page()


def take(page: Page, name: str, output: Path) -> None:
    """Wait for the view and keep a picture of it."""
    page.wait_for_selector("main:not([aria-busy])")
    if name.startswith("zoomed"):
        page.locator(".timeline canvas").focus()
        for _ in range(ZOOMS):
            page.keyboard.press("+")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=output / f"{name}.png")
    typer.echo(f"{output / name}.png")


def recorded(browser: Browser, url: str, output: Path) -> None:
    """Take the pictures of the run that the console at ``url`` plays."""
    for width in SIZES:
        for dark in (False, True):
            page = opened(browser, width, dark)
            for name, hash_ in VIEWS.items():
                if dark and name not in ALSO_DARK:
                    continue
                page.goto(f"{url}/{hash_}")
                take(page, f"{name}-{width}{'-dark' if dark else ''}", output)
            page.context.close()


def reach(url: str) -> None:
    """Play the log up to the moment that is shown, so that the console has a minute's history, and stop."""
    play(url, 0.0, speed=10.0)
    while (now := replay(url))["at_ns"] - now["first_ns"] < SHOWN_S * 1e9:
        time.sleep(0.2)
    seek(url, playing=False)


def operate(browser: Browser, folder: Path, output: Path) -> None:
    """Take the pictures of operating a small live cluster."""
    profiles, tokens = folder / "profiles.csv", folder / "tokens.toml"
    profiles.write_text(PROFILES)
    entry = f'name = "ann"\nsha256 = "{token_sha256(TOKEN)}"\nmodels = ["*"]\nadmin = true\n'
    tokens.write_text(f"[[token]]\n{entry}")
    gateway, controller, console = free_ports(3)
    url = f"http://127.0.0.1:{console}"
    tables: dict[str, Any] = {
        "cluster": {
            "engine": "emulated",
            "profiles": str(profiles),
            "copies": 8,
            "workers": 3,
            "run_dir": str(folder / "run"),
            "console": True,
        },
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "console": {"address": url, "token_file": str(tokens)},
    }
    with LocalCluster(make_plan(read_config(tables, "the pictures")), lambda _: None):
        for width in SIZES:
            page = opened(browser, width, dark=False)
            page.goto(f"{url}/#/operate?model=resnet50-3")
            page.fill("#operate-token", TOKEN)
            page.get_by_role("button", name="Use it").click()
            take(page, f"operate-{width}", output)
            page.get_by_role("button", name="Drain worker-1").click()
            take(page, f"confirm-{width}", output)
            page.context.close()


def main(output: Annotated[Path, typer.Option(help="Folder of the pictures.")] = IMAGES) -> None:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("there is no chromium here: apt install chromium")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        log = Path(folder) / "log"
        write_log(log, cluster())
        with playing(log) as url:
            reach(url)
            recorded(browser, url, output)
        operate(browser, Path(folder), output)
        browser.close()


if __name__ == "__main__":
    typer.run(main)
