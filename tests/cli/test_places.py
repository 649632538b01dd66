"""One address names a cluster: of a flag, the environment or a file, and the gateway knows the others."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli import main as cli
from mainspring.cli import places
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.main import build_app
from mainspring.client.address import ADDRESS_VARIABLE
from mainspring.client.client import Client
from mainspring.messages.tables import ConfigError
from tests.cli.verbs.test_up import up


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a cluster whose every port is any, and yield its gateway's address."""
    folder = tmp_path_factory.mktemp("cluster")
    with up(folder) as (_, address):
        yield address


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(build_app(), arguments, env={ADDRESS_VARIABLE: None, **environment})


def test_a_gateway_says_where_the_others_are(cluster: str) -> None:
    told = places.asked(cluster, None) or {}
    assert told.keys() == {"controller", "http", "grpc", "metrics", "console"}
    assert {places.place(name, cluster, None) for name in ("controller", "http", "console")} <= {
        *told.values()
    }


@pytest.mark.parametrize(
    "verb",
    [
        ["status"],
        ["models"],
        ["models", "list"],
        ["top", "--once", "--watch", "0s"],
        ["trace", "--duration", "100ms"],
    ],
)
def test_every_verb_takes_the_gateways_address(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    by_flag = run(tmp_path, monkeypatch, *verb, "--address", cluster)
    assert by_flag.exit_code == 0, by_flag.output
    one_dead = run(tmp_path, monkeypatch, *verb, "--address", f"tcp://127.0.0.1:1,{cluster}")
    assert one_dead.exit_code == 0, one_dead.output
    by_environment = run(tmp_path, monkeypatch, *verb, **{ADDRESS_VARIABLE: cluster})
    assert by_environment.exit_code == 0, by_environment.output
    (tmp_path / "mainspring.toml").write_text(f'[gateway]\naddress = "{cluster}"\n')
    by_file = run(tmp_path, monkeypatch, *verb)
    assert by_file.exit_code == 0, by_file.output


def test_the_console_is_found_by_the_gateways_address(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path, monkeypatch, "explain", "last", "--address", cluster)
    assert "the console at http://" in str(done.exception), "it was asked, and had no request to tell of"


def test_an_error_names_the_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    impatient = functools.partial(Client, connect_timeout_s=0.1)
    monkeypatch.setattr("mainspring.client.client.Client", impatient)
    monkeypatch.setattr(sys, "argv", ["mainspring", "status", "--address", nobody])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.strip().endswith("--address or MAINSPRING_ADDRESS names another.")


def test_what_is_given_comes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAINSPRING_ADDRESS", raising=False)
    assert places.gateway() == "tcp://127.0.0.1:7400"
    (tmp_path / "mainspring.toml").write_text('[gateway]\naddress = "tcp://*:9001"\n')
    assert places.gateway() == "tcp://127.0.0.1:9001"
    monkeypatch.setenv("MAINSPRING_ADDRESS", "tcp://10.0.0.2:9002")
    assert places.gateway() == "tcp://10.0.0.2:9002"
    assert places.gateway("tcp://10.0.0.3:9003") == "tcp://10.0.0.3:9003"
    monkeypatch.delenv("MAINSPRING_ADDRESS")
    (tmp_path / "mainspring.toml").write_text("[gateway\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        places.gateway()


@pytest.mark.parametrize("words", [("top", "--once"), ("trace",), ("explain", "1"), ("models", "index")])
def test_a_gateway_that_was_named_and_is_dead_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(places, "asked", functools.partial(places.asked, patience_s=0.05))
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    result = run(tmp_path, monkeypatch, *words, "--address", nobody)
    assert f"no gateway answers at {nobody}" in f"{result.output} {result.exception}"


def test_without_a_gateway_the_places_are_those_of_a_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mainspring.toml").write_text(f'[gateway]\naddress = "tcp://127.0.0.1:{port}"\n')
    nobody = f"tcp://127.0.0.1:{port}"
    monkeypatch.setattr(places, "asked", functools.partial(places.asked, patience_s=0.05))
    assert places.asked(nobody, None) is None
    assert places.place(places.CONTROLLER, nobody, None) == ""
    assert places.place(places.CONSOLE, nobody, None) == "http://127.0.0.1:8003"


def test_a_file_with_several_gateways_names_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    Path("mainspring.toml").write_text("[cluster]\ngateways = 2\n")
    assert places.gateway() == "tcp://127.0.0.1:7400,tcp://127.0.0.1:7410"
    Path("mainspring.toml").write_text('[cluster]\ngateways = 2\n[gateway]\naddress = "tcp://*:7500"\n')
    assert places.gateway() == "tcp://127.0.0.1:7500,tcp://127.0.0.1:7510"
