"""``mainspring console`` started singly: whose cluster it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli import places
from mainspring.cli.main import build_app
from mainspring.cli.verbs import console as verb
from mainspring.client.address import ADDRESS_VARIABLE
from mainspring.console import server
from mainspring.console.config import ConsoleConfig

THERE = "unix:///somewhere/controller.sock"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ConsoleConfig]:
    """Return the configurations with which consoles would be run, where a gateway says where all is."""
    found: list[ConsoleConfig] = []

    def place(name: str, address: str, token: str | None) -> str:
        return THERE if (name, address) == (places.CONTROLLER, "tcp://127.0.0.1:9") else ""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "place", place)
    monkeypatch.setattr(verb, "begin", lambda *_: None)
    monkeypatch.setattr(server, "run", lambda config, *_: found.append(config))
    return found


def run(*arguments: str, **environment: Any) -> None:
    result = CliRunner().invoke(build_app(), ["console", *arguments], env=environment)
    assert result.exit_code == 0, result.output


def test_it_asks_the_gateway_that_the_environment_names(shown: list[ConsoleConfig]) -> None:
    run(**{ADDRESS_VARIABLE: "tcp://127.0.0.1:9"})
    assert shown[0].controller_address == THERE


def test_a_controller_that_is_named_needs_no_gateway(shown: list[ConsoleConfig]) -> None:
    run("--controller", "unix:///other.sock", **{ADDRESS_VARIABLE: "tcp://127.0.0.1:9"})
    run(**{ADDRESS_VARIABLE: ""})
    assert shown[0].controller_address == "unix:///other.sock"
    assert shown[1].controller_address != THERE
