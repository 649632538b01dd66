"""``mainspring applications`` on a gateway that serves one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring import Client
from mainspring.cli.main import build_app
from tests.gateway.fakes import serving, wait_until
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready
from tests.gateway.test_served_applications import APPLICATION

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with (
        real_controller([emulated("one", 1_000_000), emulated("other", 1_000_000)]) as controller,
        real_worker("worker", controller),
        serving(controller) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 2), 20)
        yield addresses.zeromq


@pytest.fixture
def call(address: str) -> Call:
    def run(verb: str, *words: object, to: tuple[str, ...] = ("--address", address)) -> Result:
        given = ["applications", verb, *map(str, words), *to]
        return CliRunner().invoke(build_app(), given, env={"COLUMNS": "80", "NO_COLOR": "1"})

    return run


def test_an_application_is_added_watched_told_and_removed(call: Call, address: str, tmp_path: Path) -> None:
    file = tmp_path / "sums.toml"
    file.write_text(APPLICATION)
    assert call("check", file).output == "sums makes sense\n"
    assert json.loads(call("list", "--json").output) == []
    assert call("add", file).output == "added sums\n"
    with Client(address) as client:
        learnt = client.infer("sums", {"data": X}, context="ann").timing.learnt
        assert learnt is not None
        told = call("observe", "sums", learnt.query_id, 3, 3.5)
        assert told.output == "joined 2, late 0, duplicate 0, unknown 0\n"
        again = call("observe", "sums", learnt.query_id, 0.5, "--reward")
        assert again.output == "joined 0, late 0, duplicate 1, unknown 0\n"
    shown = json.loads(call("show", "sums", "--json").output)
    assert (shown["contexts"], shown["joined"], len(shown["members"])) == (1, 2, 2)
    text = call("show", "sums").output
    assert "feedback: joined 2, late 0, duplicate 1, unknown 0, waited for 1" in text
    assert [line.split()[:4] for line in text.splitlines()[-2:]] == [
        ["one", "50.0%", "0.325", "2"], ["other", "50.0%", "0.325", "2"]
    ]  # fmt: skip
    assert max(map(len, text.splitlines() + call("list").output.splitlines())) <= 80
    assert call("forget", "sums", "ann").output == "forgot ann\n"
    assert json.loads(call("show", "sums", "--json").output)["contexts"] == 0
    assert call("remove", "sums").output == "removed sums\n"


def test_what_is_wrong_is_said_with_what_would_be_right(call: Call, tmp_path: Path) -> None:
    family = tmp_path / "few.toml"
    family.write_text('name = "few"\nmembers = ["one", "other"]\nscore = [0.5, 0.6]\n')
    for words, said in (
        (("show", "sums"), "there is no application 'sums'; there are: none"),
        (("remove", "sums"), "there is no application 'sums'; there are: none"),
        (("add", family), "is not an application, which has members and an output: mainspring graphs"),
        (("observe", "one", 1, "cat", "--reward"), "'cat' is not a reward, which is a number from 0 to 1"),
    ):
        refused = call(*words)
        assert refused.exit_code == 2
        assert said in " ".join(refused.output.replace("│", " ").split())


def test_one_folder_has_graphs_and_applications(tmp_path: Path) -> None:
    words = ["up", "--graphs", str(tmp_path), "--applications", str(tmp_path)]
    refused = CliRunner().invoke(build_app(), words)
    assert refused.exit_code == 2
    assert "put the files of both into one folder" in " ".join(refused.output.replace("│", " ").split())
