"""The page to try a model, in a browser: values and pictures go out, outputs and times come back."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mainspring import Client
from mainspring.messages.model import TensorSpec
from tests.console.page.live import CHROMIUM, FLAGS
from tests.gateway.fakes import serving, wait_until
from tests.gateway.http.conftest import faked, with_tensors
from tests.gateway.http.raw import Peer
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODELS = [
    emulated("numbers"),
    with_tensors(
        "picture", (TensorSpec("pixels", "uint8", (2, 2, 3)),), (TensorSpec("scores", "float32", (3,)),)
    ),
    with_tensors(
        "planes", (TensorSpec("pixels", "float32", (3, 2, 2)),), (TensorSpec("scores", "float32", (3,)),)
    ),
]
TOKEN = "a token of a test"
WIDTHS = ((1280, False), (400, True))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install .[dev]"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway before a real controller and worker, whose emulated device gives zeros."""
    with (
        real_controller(MODELS) as controller,
        real_worker("one", controller),
        serving(controller, http_address="http://127.0.0.1:0") as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, len(MODELS)), 30)
        yield addresses.http


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return what opens the page; it may complain of nothing, and ask nobody but its gateway."""
    contexts, complaints = [], list[str]()

    def begin(url: str, width: int = 1280, *, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1e3)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: _note(complaints, said))
        page.on("request", lambda asked: _note_foreign(complaints, url, asked.url))
        page.goto(f"{url}/docs")
        page.wait_for_selector("main:not([aria-busy])")
        return page

    yield begin
    for context in contexts:
        context.close()
    assert complaints == []


def _note(complaints: list[str], said: Any) -> None:
    # The browser itself tells of every answer that is an error.
    if said.type in ("error", "warning") and "the server responded with a status of" not in said.text:
        complaints.append(said.text)


def _note_foreign(complaints: list[str], url: str, asked: str) -> None:
    if not asked.startswith((f"{url}/", "blob:")):
        complaints.append(f"it asked {asked}")


def png(*rows: list[tuple[int, int, int]]) -> bytes:
    """Return a picture of these colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    head = len(rows[0]).to_bytes(4) + len(rows).to_bytes(4) + bytes([8, 2, 0, 0, 0])
    lines = b"".join(bytes([0]) + b"".join(map(bytes, row)) for row in rows)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PICTURE = png([RED, GREEN], [BLUE, WHITE])


def choose(page: Page, model: str) -> None:
    page.get_by_label("Model").select_option(f"{model}\n1")
    page.locator("legend", has_text="data" if model == "numbers" else "pixels").wait_for()


def take_picture(page: Page) -> None:
    file: Any = {"name": "a.png", "mimeType": "image/png", "buffer": PICTURE}
    page.get_by_label("or a picture").set_input_files(file)


def violations(page: Any) -> list[str]:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install .[dev]"
    )
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]


def test_values_go_out_and_outputs_and_times_come_back(opened: Callable[..., Page], url: str) -> None:
    page = opened(url)
    choose(page, "numbers")
    assert "data" in page.locator("#tensors").inner_text()
    page.get_by_label("Values as JSON").fill("[[1, 2, 3, 4.5]]")
    with page.expect_request("**/infer") as asked:
        page.get_by_role("button", name="Send").click()
    assert asked.value.headers["x-mainspring-slo-ms"] == "1000"
    assert json.loads(asked.value.post_data_buffer or b"")["inputs"][0]["data"] == [[1, 2, 3, 4.5]]
    page.locator("#answer").wait_for()
    rows = page.locator("#parts tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows][:1] == ["receiving"]
    spent_ms = [float(row.split("\t")[1]) for row in rows]
    total_ms, here_ms = map(float, re.findall(r"([\d.]+) ms", page.locator("#where").inner_text())[:2])
    assert sum(spent_ms[:-1]) == pytest.approx(total_ms, abs=0.01)
    assert sum(spent_ms) == pytest.approx(here_ms, abs=0.01)
    assert page.locator("#outputs tr").count() == len(MODELS[0].outputs)


def test_a_picture_becomes_the_tensor(opened: Callable[..., Page], url: str) -> None:
    page = opened(url)
    for model, wanted in (
        ("picture", bytes([*RED, *GREEN, *BLUE, *WHITE])),
        ("planes", bytes([255, 0, 0, 255, 0, 255, 0, 255, 0, 0, 255, 255])),
    ):
        choose(page, model)
        take_picture(page)
        with page.expect_request("**/infer") as asked:
            page.get_by_role("button", name="Send").click()
        page.locator("#answer").wait_for()
        sent = asked.value.post_data_buffer or b""
        binary = sent[int(asked.value.headers["inference-header-content-length"]) :]
        if model == "planes":
            binary = (np.frombuffer(binary, np.float32) * 255).round().astype(np.uint8).tobytes()
        assert binary == wanted, model


def test_dimensions_that_are_open_become_the_pictures(opened: Callable[..., Page], url: str) -> None:
    page = opened(url)
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}
    told = {"name": "picture", "versions": ["1"], "platform": "", "inputs": [tensor], "outputs": []}
    page.route(re.compile(r"/v2/models/picture[^/]*(/versions/1)?$"), lambda route: route.fulfill(json=told))
    choose(page, "picture")
    assert page.get_by_label("Shape").input_value() == "1, 1, 1, 3"
    take_picture(page)
    with page.expect_request("**/infer") as asked:
        page.get_by_role("button", name="Send").click()
    assert page.get_by_label("Shape").input_value() == "1, 2, 2, 3"
    assert (asked.value.post_data_buffer or b"").endswith(bytes([*RED, *GREEN, *BLUE, *WHITE]))


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("Values as JSON", "[1, 2", "are no JSON"),
        ("Values as JSON", "", "has no values: write them as JSON"),
        ("Values as JSON", "[1, 2]", "has 2 values"),
        ("Shape", "a", "is a list of whole numbers"),
        ("Deadline", "0.001", "deadline"),
    ],
)
def test_what_is_wrong_is_said(
    opened: Callable[..., Page], url: str, field: str, text: str, said: str
) -> None:
    page = opened(url)
    choose(page, "numbers")
    page.get_by_label(field).first.fill(text)
    page.get_by_role("button", name="Send").click()
    page.locator("#error", has_text=re.compile(said)).wait_for()
    assert not page.locator("#answer").is_visible()


@pytest.mark.parametrize(("width", "dark"), WIDTHS)
def test_it_fits_and_is_accessible(opened: Callable[..., Page], url: str, width: int, dark: bool) -> None:
    page = opened(url, width, dark=dark)
    choose(page, "picture")
    take_picture(page)
    page.get_by_role("button", name="Send").click()
    page.locator("#answer").wait_for()
    assert violations(page) == []
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_token_is_asked_for_and_used(opened: Callable[..., Page], tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    path.write_text(f'[[token]]\nname = "one"\nsha256 = "{digest}"\nmodels = ["double"]\n')
    with faked(token_file=str(path)) as served:
        page = opened(f"http://{served.host}")
        page.locator("#error", has_text="401").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="List the models").click()
        page.locator("legend", has_text="data").wait_for()
        assert page.locator("#model option").all_inner_texts() == ["double, version 1"]
        page.get_by_role("button", name="Send").click()
        page.locator("#answer").wait_for()
        assert page.locator("#outputs tr").count() == 2


def test_it_can_be_left_out_and_is_sent_with_a_strict_policy() -> None:
    with faked(http_docs=False) as served, Peer(served.host) as peer:
        assert peer.ask("GET", "/docs").status == 404
    with faked() as served, Peer(served.host) as peer:
        reply = peer.ask("GET", "/docs")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert not re.search(rb"https?://", reply.body), "nothing from outside"
