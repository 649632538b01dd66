"""``infer``, ``models`` and ``gateway`` against a gateway with a fake cluster behind it."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mainspring import Client
from mainspring.cli.main import build_app
from mainspring.cli.verbs.models import print_list
from mainspring.client.errors import GatewayUnreachable
from mainspring.compiler.artifact import store
from mainspring.messages.clients import WeighModel
from mainspring.messages.model import Profile
from mainspring.messages.status import ModelStatus
from tests.gateway.fakes import fake_cluster, gateway, make_spec, wait_until
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        with Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        yield address


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_infer_prints_outputs_and_timing_and_writes_them(address: str, tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    arguments = [
        "infer",
        "double",
        "--slo",
        "5s",
        "--address",
        address,
        "--output-dir",
        str(tmp_path / "out"),
    ]
    for given in (str(tmp_path / "x.npy"), f"data={tmp_path / 'x.npy'}"):
        result = run(*arguments, "--input", given)
        assert result.exit_code == 0, result.output
        for part in ("twice", "float32", "2 x 4", "0, 2, 4, 6, ...", "sum", "queued", "batch of 2", "fake"):
            assert part in result.output
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "twice.npy"), x * 2)


def test_infer_makes_up_inputs_and_prints_json(address: str) -> None:
    result = run(
        "infer", "double", "--random", "--rows", "3", "--output", "sum", "--json", "--address", address
    )
    shown = json.loads(result.output)
    assert shown["outputs"] == {"sum": {"dtype": "float32", "shape": [3]}}
    assert shown["timing"]["left_ns"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["double"], "--random to make some up"),
        (["doubel", "--random"], "did you mean 'double'?"),
        (["double", "--random", "--slo", "50"], "like 50ms or 0.05s"),
        (["double", "--random", "--slo", "0ms"], "above 0; write it like 100ms, or none"),
        (["double", "--input", "nowhere.npy"], "nowhere.npy can't be read"),
    ],
)
def test_infer_says_what_is_wrong(address: str, arguments: list[str], says: str) -> None:
    result = run("infer", *arguments, "--address", address)
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())


def test_models_are_listed_removed_and_missed(address: str) -> None:
    shown = run("models", "list", "--address", address)
    assert "data: float32[rows, 4]" in shown.output
    listed = json.loads(run("models", "list", "--json", "--address", address).output)
    assert "mute" in [each["name"] for each in listed]
    assert run("models", "remove", "mute", "--address", address).output == "removed mute\n"
    missing = run("infer", "mute", "--random", "--address", address)
    assert missing.exit_code == 2


def test_a_model_is_weighed_and_what_is_not_said_is_asked_for(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(Client, "_exchange", lambda self, message: sent.append(message))
    weighed = run("models", "set", "double", "--goodput-weight", "20", "--address", address)
    assert weighed.output == "an answer counts as 20: double\n"
    back = run("models", "set", "double", "--goodput-weight", "0", "--address", address)
    assert back.output == "as configured: double\n"
    assert [(each.name, each.weight) for each in sent if isinstance(each, WeighModel)] == [
        ("double", 20.0),
        ("double", None),
    ]
    assert "--goodput-weight" in run("models", "set", "double", "--address", address).output


def test_a_model_that_is_served_already_is_not_said_to_be_added(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stored:
        def __init__(self, path: Path) -> None:
            assert path == tmp_path
            self.root = path

        def names(self) -> list[str]:
            return ["double", "new"]

        def manifest(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(spec=lambda: make_spec(name), whole=True, unshared="")

    monkeypatch.setattr(store, "Store", Stored)
    monkeypatch.setattr(Client, "add_model", lambda self, spec: None)
    flags = ["--store", str(tmp_path), "--address", address]
    assert run("models", "add", "double", "new", *flags).output == "double is served already\nadded new\n"


def test_models_are_shown_live(address: str) -> None:
    command = [sys.executable, "-m", "mainspring", "models", "--watch", "--json", "--interval", "0.1"]
    with subprocess.Popen([*command, "--address", address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        finally:
            process.kill()
    for look in looks:
        states = {each["model"]: each["prepared_on"] for each in look}
        assert states["double"] == ["fake"]
        assert "hold" in states


def test_a_cluster_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = functools.partial(Client, connect_timeout_s=0.1)
    monkeypatch.setattr("mainspring.client.client.Client", impatient)
    result = run("models", "list", "--address", "tcp://127.0.0.1:1")
    assert isinstance(result.exception, GatewayUnreachable)
    assert "mainspring up" in str(result.exception)


def test_a_gateway_says_where_it_listens_and_leaves_in_good_order() -> None:
    with fake_cluster() as cluster:
        options = ["--address", "tcp://127.0.0.1:*", "--controller", cluster.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "gateway", *options], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            word, address = process.stdout.readline().split()
            assert word == "ready"
            with Client(address) as client:
                wait_until(lambda: len(client.models()) == len(cluster.specs))
                client.infer("double", {"data": np.ones((1, 4), np.float32)})
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            wait_until(lambda: cluster.goodbyes)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_the_list_says_how_durations_spread(capsys: pytest.CaptureFixture[str]) -> None:
    spread = Profile({1: 2_000_000}, 1_000, spread=12.0)
    specs = [
        msgspec.structs.replace(make_spec(name), profiles={"cpu": profile})
        for name, profile in (("turns", spread), ("even", msgspec.structs.replace(spread, spread=0.0)))
    ]
    states = {spec.name: ModelStatus(spec.name, 1, (), (), 0, erratic=spec.name == "turns") for spec in specs}
    print_list(specs, states)
    turns, even = capsys.readouterr().out.split("even: ")
    assert "INFER 1: 2 ms (99th percentile 12.0 times the median)" in turns
    assert "0 queued; erratic" in turns
    assert "erratic" not in even
    assert "percentile" not in even
