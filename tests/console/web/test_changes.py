"""What operators ask for, with a token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mainspring.console.config import ConsoleConfig
from mainspring.console.view.view import View
from mainspring.console.web.source import Granted, Unanswered
from mainspring.messages.operating import DrainWorker, PinModel, SetDefaultSlo
from tests.console.page.live import wait_until
from tests.console.web.served import Console, FedSource, Start
from tests.console.web.test_api import tokens
from tests.patience import PATIENCE_S

DRAIN = {"command": {"type": "drain_worker", "worker": "worker-0"}}
PIN = {"command": {"type": "pin_model", "model": "resnet50"}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    known = tokens(tmp_path_factory.mktemp("tokens"), "chief:*:admin", "some:resnet*:admin", "reader")
    config = ConsoleConfig(address="http://127.0.0.1:0", token_file=known, max_message_bytes=2_000)
    with Console(config, FedSource(View(), operable=True)) as console:
        yield console


@pytest.fixture
def console(running: Console) -> Console:
    """One console for all tests that leave it as they found it: no command was passed on, each is granted."""
    running.source.commands.clear()
    running.source.grant = Granted(True, "done")
    return running


def command(console: Console, token: str | None, body: object, **headers: str) -> tuple[int, Any]:
    """Return status and body of an answer."""
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    status, _, answer = console.ask("/api/operate", body, **headers)
    return status, json.loads(answer)


def test_a_command_is_passed_on_with_its_token_s_name(console: Console) -> None:
    assert command(console, "chief", DRAIN) == (200, {"done": True, "detail": "done"})
    assert command(console, "some", PIN)[0] == 200
    slo = {"command": {"type": "set_default_slo", "model": "resnet50", "slo_ns": 50_000_000}}
    assert command(console, "chief", slo)[0] == 200
    assert console.source.commands == [
        (DrainWorker("worker-0"), "chief"),
        (PinModel("resnet50"), "some"),
        (SetDefaultSlo("resnet50", 50_000_000), "chief"),
    ]


def test_what_the_controller_refuses_is_told(console: Console) -> None:
    console.source.grant = Granted(False, "there is no worker-9; there are worker-0 and worker-1")
    assert command(console, "chief", DRAIN) == (200, {"done": False, "detail": console.source.grant.detail})
    for at_once, status in ((True, 503), (False, 504)):
        console.source.grant = Unanswered("nobody is there", at_once=at_once)
        assert command(console, "chief", DRAIN) == (status, {"error": {"text": "nobody is there"}})


@pytest.mark.parametrize(
    ("token", "body", "status", "words"),
    [
        (None, DRAIN, 401, "a token is needed"),
        ("x", DRAIN, 401, "not one that is known"),
        ("reader", DRAIN, 403, "may not change"),
        ("some", DRAIN, 403, "for some"),
        ("some", {"command": {"type": "pin_model", "model": "bert"}}, 403, "may not use model 'bert'"),
        ("chief", {"command": {"type": "drain", "worker": "w"}}, 400, "drain_worker, resume_worker"),
        ("chief", {"command": {"type": "drain_worker"}}, 400, "worker"),
        ("chief", {"command": {"type": "drain_worker", "worker": 3}}, 400, "`str`"),
        ("chief", {"commands": []}, 400, "commands"),
        (
            "chief",
            {"command": {**DRAIN["command"], "wroker": "w"}},
            400,
            "no field 'wroker'; it has type, worker",
        ),
        ("chief", {"command": {"type": "set_default_slo", "model": "m", "slo_ms": 9}}, 400, "model, slo_ns"),
        ("chief", b"{", 400, "not JSON"),
        ("chief", b"\xff", 400, "not JSON"),
        ("chief", b" " * 2_001, 413, "2000 bytes"),
    ],
)
def test_what_may_not_be_is_refused(
    console: Console, token: str | None, body: object, status: int, words: str
) -> None:
    found, answer = command(console, token, body)
    assert found == status, answer
    assert words in answer["error"]["text"]
    assert not console.source.commands


def test_no_more_commands_wait_at_a_time_than_may_and_who_may_not_ask_is_not_one_of_them(
    start: Start, tmp_path: Path
) -> None:
    console = start(token_file=tokens(tmp_path, "chief:*:admin"), max_operations=1)
    console.source.answers.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(command, console, "chief", DRAIN)
        try:
            wait_until(lambda: bool(console.source.commands), "a command that waits")
            assert command(console, "chief", PIN)[0] == 503
            assert command(console, "x", PIN)[0] == 401
        finally:
            console.source.answers.set()
        assert first.result(PATIENCE_S) == (200, {"done": True, "detail": "done"})
    assert command(console, "chief", PIN)[0] == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_could_send_is_refused(console: Console, kind: str) -> None:
    found, answer = command(console, "chief", json.dumps(DRAIN).encode(), content_type=kind)
    assert found == 415
    assert "application/json" in answer["error"]["text"]


def test_without_a_file_of_tokens_nobody_may(start: Start) -> None:
    console = start()
    found, answer = command(console, "chief", DRAIN)
    assert found == 404
    assert "token_file" in answer["error"]["text"]
    assert not console.source.commands
