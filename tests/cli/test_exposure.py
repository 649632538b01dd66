"""What is open to other hosts is encrypted, or said to be insecure, or the process does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli.authority import Authority
from mainspring.cli.configuration.config import read_config
from mainspring.cli.exposure import check_exposed, of_cluster, reaches_beyond
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.main import build_app
from mainspring.messages.tables import ConfigError


@pytest.mark.parametrize(
    ("address", "beyond"),
    [
        ("", False),
        ("unix:///run/mainspring/controller.sock", False),
        ("name://10.0.0.1:7400", False),
        ("tcp://127.0.0.1:7400", False),
        ("tcp://127.8.9.1:*", False),
        ("tcp://localhost:7400", False),
        ("tcp://[::1]:7400", False),
        ("http://127.0.0.1:0", False),
        ("tcp://0.0.0.0:7400", True),
        ("tcp://*:7400", True),
        ("tcp://[::]:*", True),
        ("tcp://10.0.0.1:7400", True),
        ("tcp://node1:7400", True),
        ("tcp://localhost.example.com:7400", True),
        ("http://[fe80::1%eth0]:8000", True),
        ("grpcs://0.0.0.0:8001", True),
    ],
)
def test_who_may_reach_an_address(address: str, beyond: bool) -> None:
    assert reaches_beyond(address) is beyond


@pytest.mark.parametrize(
    "rest", ["127.0.0.1:99999", "127.0.0.1", "::1:80", "127.0.0.1:７４００", ":80", "h:80/x"]
)
@pytest.mark.parametrize(
    ("table", "key", "scheme"),
    [
        ("controller", "address", "tcp"),
        ("worker", "data_address", "tcp"),
        ("gateway", "address", "tcp"),
        ("gateway", "http_address", "http"),
        ("gateway", "grpc_address", "grpc"),
        ("gateway", "metrics_address", "http"),
    ],
)
def test_what_is_no_address_is_named_with_its_key(table: str, key: str, scheme: str, rest: str) -> None:
    config = read_config({table: {key: f"{scheme}://{rest}"}}, "")
    with pytest.raises(ConfigError, match=rf"^\[{table}\] {key} is '.*; write it like {scheme}://127"):
        check_exposed(of_cluster(config), insecure=True)


def test_an_address_without_a_scheme_is_shown_the_one_of_its_key() -> None:
    config = read_config({"gateway": {"http_address": "127.0.0.1:8000"}}, "")
    with pytest.raises(ConfigError, match=r"write it like http://127\.0\.0\.1:8000"):
        check_exposed(of_cluster(config), insecure=True)


OPEN: list[tuple[dict[str, dict[str, Any]], str, dict[str, dict[str, Any]]]] = [
    ({"controller": {"address": "tcp://0.0.0.0:0"}}, "[controller] address", {"cluster": {"keys": "K"}}),
    ({"worker": {"data_address": "tcp://0.0.0.0:*"}}, "[worker] data_address", {"cluster": {"keys": "K"}}),
    (
        {"repository": {"address": "tcp://*:0"}},
        "[repository] address",
        {"cluster": {"keys": "K"}},
    ),
    (
        {"gateway": {"http_address": "http://0.0.0.0:0"}},
        "[gateway] http_address",
        {"gateway": {"http_address": "https://0.0.0.0:0", "tls": "keys"}},
    ),
    (
        {"gateway": {"grpc_address": "grpc://0.0.0.0:0"}},
        "[gateway] grpc_address",
        {"gateway": {"grpc_address": "grpcs://0.0.0.0:0", "tls": "keys"}},
    ),
    (
        {"gateway": {"metrics_address": "http://0.0.0.0:0"}},
        "[gateway] metrics_address",
        {"gateway": {"metrics_address": "https://0.0.0.0:0", "tls": "keys"}},
    ),
    (
        {"console": {"address": "http://0.0.0.0:0"}, "cluster": {"console": True}},
        "[console] address",
        {"console": {"address": "https://0.0.0.0:0", "tls": "keys"}},
    ),
]


def merged(*tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in tables:
        for name, table in each.items():
            found[name] = {**found.get(name, {}), **table}
    return found


@pytest.mark.parametrize(("tables", "key", "encrypted"), OPEN)
def test_a_cluster_that_is_open_in_clear_does_not_start(
    tables: dict[str, dict[str, Any]], key: str, encrypted: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    base: dict[str, dict[str, Any]] = {
        "cluster": {"engine": "emulated", "run_dir": str(tmp_path / "run")},
        "repository": {"path": str(tmp_path)},
    }
    authority = Authority.create(tmp_path / "keys", "here")
    for role, name in (
        *(("controller", "controller"), ("gateway", "gateway"), ("worker", "worker-0")),
        *(("repository", "repository"), ("operator", "console")),
    ):
        authority.issue(role, name, (), 30)
    clear = merged(base, tables, {"repository": {"path": str(tmp_path)}})
    with pytest.raises(ConfigError) as caught:
        make_plan(read_config(clear, "the test"))
    assert str(caught.value).startswith(f"{key} ")
    assert "mainspring keys" in str(caught.value)
    insecure = read_config(merged(clear, {"cluster": {"insecure": True}}), "the test")
    if "keys" in encrypted.get("cluster", {}):
        # Processes of several hosts know one another by keys alone.
        assert "insecure" not in str(caught.value)
        with pytest.raises(ConfigError, match="give it keys"):
            make_plan(insecure)
    else:
        assert "insecure = true" in str(caught.value)
        make_plan(insecure)
    given = merged(clear, encrypted)
    if given["cluster"].get("keys"):
        given["cluster"]["keys"] = str(tmp_path / "keys")
    make_plan(read_config(given, "the test"))


def test_clients_over_zeromq_beyond_this_host_need_curve(tmp_path: Path) -> None:
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"engine": "emulated", "run_dir": str(tmp_path / "run")},
        "repository": {"path": str(tmp_path)},
        "gateway": {"address": "tcp://0.0.0.0:7400"},
    }
    with pytest.raises(ConfigError, match=r"\[gateway\] address tcp://0\.0\.0\.0:7400 is open to"):
        make_plan(read_config(tables, "the test"))
    tables["gateway"]["curve_key"] = "curve.key"
    make_plan(read_config(tables, "the test"))


@pytest.mark.parametrize(
    "words",
    [
        ["controller", "--address", "tcp://0.0.0.0:0"],
        ["worker", "--data-address", "tcp://*:*", "--engine", "emulated"],
        ["gateway", "--http", "http://0.0.0.0:0"],
        ["gateway", "--address", "tcp://0.0.0.0:*"],
        ["console", "--address", "http://0.0.0.0:0"],
    ],
)
def test_a_process_that_is_open_in_clear_does_not_start(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(build_app(), words)
    assert isinstance(result.exception, ConfigError), result.output
    assert "is open to other hosts, and what is said there is not encrypted" in str(result.exception)
    assert ("--insecure" in str(result.exception)) is (words[0] == "console" or "--http" in words)
