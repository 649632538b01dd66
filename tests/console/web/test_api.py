"""Pictures as JSON, for scripts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from mainspring.console.web.shows import SHOWS, ask
from tests.console.web.counting import Counting
from tests.console.web.served import Start, said, say


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setitem(SHOWS, "counting", found.show)
    return found


def tokens(folder: Path, *entries: str) -> str:
    """Write a file of tokens, each ``name`` or ``name:models`` or ``name:models:admin``; return its path."""
    text = ""
    for entry in entries:
        name, models, admin = (*entry.split(":"), "*", "")[:3]
        digest = hashlib.sha256(name.encode()).hexdigest()
        text += f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nmodels = ["{models}"]\n'
        text += "admin = true\n" if admin else ""
    path = folder / "tokens.toml"
    path.write_text(text)
    return str(path)


def bearer(token: str) -> dict[str, str]:
    """Return the header that shows a token."""
    return {"authorization": f"Bearer {token}"}


def _draw_on(page: ClientConnection) -> None:
    """Draw pictures as long as they come."""
    while True:
        say(page, seen=said(page).get("n", 0))


def test_the_console_says_what_it_is(start: Start) -> None:
    found = start().json("/api/console")
    assert found["head"]["state"] == "live"
    assert found["reading_needs_token"] is False
    assert found["replay"] is None
    assert set(found["shows"]) == set(SHOWS)
    assert "worker" in json.dumps(found["shows"]["memory"])


def test_a_picture_is_the_same_as_on_a_page(start: Start, counting: Counting) -> None:
    counting.value = {"x": [1, 2]}
    console = start()
    found = console.json("/api/counting?of=some")
    with console.page() as page:
        say(page, show="counting", params={"of": "some"})
        shown = said(page)
    assert found.keys() == shown.keys()
    assert found["data"] == shown["data"] == {"x": [1, 2]}
    assert found["params"] == shown["params"] == {"of": "some"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/cuonting", "did you mean 'counting'"),
        ("/api/counting?off=1", "did you mean 'of'"),
        ("/api/counting?of=1&of=2", "'of' is there twice"),
        ("/api/models?limit=many", "limit"),
        ("/api/models?descending=perhaps", "descending"),
        ("/api/schedule?from_ns=1", "both"),
        ("/api/memory", "needs 'worker'"),
    ],
)
def test_what_is_wrong_is_told(start: Start, counting: Counting, path: str, words: str) -> None:
    status, headers, body = start().ask(path)
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert words in json.loads(body)["error"]["text"]


def test_what_is_not_there_is_told(start: Start, counting: Counting) -> None:
    counting.missing = "there is no such model"
    status, _, body = start().ask("/api/counting")
    assert status == 404
    assert json.loads(body)["error"]["text"] == counting.missing


def test_parameters_are_read_as_what_they_are(start: Start) -> None:
    console = start()
    found = console.json("/api/models?limit=7&descending=true&sort=queued")
    assert found["params"]["limit"] == 7
    assert found["params"]["descending"] is True
    asked = ask("schedule", {"workers": ["a", "b"], "back_ms": "1.5"}, text=True)
    assert (asked.values.workers, asked.values.back_ms) == (("a", "b"), 1.5)
    found = console.json("/api/recent?outcomes=late&outcomes=lost")
    assert found["params"]["outcomes"] == ["late", "lost"]


def test_no_other_method_is_taken(start: Start, counting: Counting) -> None:
    console = start()
    assert console.ask("/api/counting", {})[0] == 405
    assert console.ask("/api/console", method="DELETE")[0] == 405
    assert console.ask("/", {})[0] == 405


def test_seeing_may_need_a_token(start: Start, counting: Counting, tmp_path: Path) -> None:
    console = start(token_file=tokens(tmp_path, "all", "some:resnet*"), reading_needs_token=True)
    assert console.json("/api/console")["head"] is None
    for shown, words in (({}, "is needed"), (bearer("x"), "not one that"), (bearer("some"), "for all")):
        status, headers, body = console.ask("/api/counting", **shown)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert words in json.loads(body)["error"]["text"]
    assert console.json("/api/counting", **bearer("all"))["data"] == 0
    assert console.json("/api/console", **bearer("all"))["head"]
    assert console.ask("/")[0] in {200, 404}, "the page itself is not a secret"


def test_a_page_may_need_a_token(start: Start, counting: Counting, tmp_path: Path) -> None:
    path = tokens(tmp_path, "all", "some:resnet*")
    console = start(token_file=path, reading_needs_token=True, token_reload_ms=1.0, update_interval_ms=10.0)
    for first in ({"show": "counting"}, {"token": "x"}, {"token": "some", "show": "counting"}):
        with console.page() as page:
            say(page, **first)
            assert "token" in said(page)["error"]["text"]
            with pytest.raises(ConnectionClosed, match="1008"):
                said(page)
    with console.page() as page:
        say(page, token="all", show="counting")
        for _ in range(3):
            say(page, seen=said(page)["n"])
        # A token that is taken back ends what it began.
        tokens(tmp_path, "other")
        with pytest.raises(ConnectionClosed, match="1008"):
            _draw_on(page)


def test_a_page_that_shows_no_token_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    console = start(token_file=tokens(tmp_path, "all"), reading_needs_token=True, header_timeout_ms=1_000.0)
    with console.page() as page:
        assert "a token is needed" in said(page)["error"]["text"]


def test_reading_needs_token_needs_a_file(start: Start) -> None:
    with pytest.raises(ValueError, match="token_file"):
        start(reading_needs_token=True)
