"""`mainspring keys`: an authority, its certificates, and a list of what is revoked."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner
from zmq.utils import z85

from mainspring.cli.authority import Authority
from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import with_sockets
from mainspring.cli.main import build_app
from mainspring.messages.tables import ConfigError
from mainspring.transport.certificate import Named
from mainspring.transport.curve import KnownClients, read_client_keys, read_gateway_key
from mainspring.transport.keys import BadKeys, Keys


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(build_app(), ["keys", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_authority_issues_renews_and_revokes(tmp_path: Path) -> None:
    at = ("--keys", tmp_path)
    run("init", "--cluster", "prod", *at)
    assert run("issue", "worker", "w0", "--host", "node1.example", "--host", "::1", *at).strip() == str(
        tmp_path / "w0"
    )
    first = Keys(str(tmp_path / "w0"))
    assert first.own.names == (Named("prod", "worker", "w0"),)
    assert first.cluster == "prod"
    assert first.name_of("worker") == "w0"
    run("issue", "worker", "w0", *at)
    second = Keys(str(tmp_path / "w0"))
    assert second.own.serial != first.own.serial
    assert f"{first.own.serial:x}" in run("revoke", "w0", "--keep-newest", *at)
    assert Keys(str(tmp_path / "w0")).revokes(first.own)
    assert not second.revokes(second.own)
    listed = run("list", *at)
    assert listed.count("mainspring://prod/worker/w0") == 2
    assert listed.count("revoked") == 1
    run("revoke", "w0", *at)
    with pytest.raises(BadKeys, match="would be refused by others: certificate revoked"):
        Keys(str(tmp_path / "w0"))


def test_a_key_of_curve_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "curve.key"
    public = run("curve", path).strip()
    assert len(public) == 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert zmq.curve_public(read_gateway_key(path)).decode() == public
    own = tmp_path / "alice.key"
    listed = run("curve", own, "--gateway", path).strip()
    keys = read_client_keys(own)
    assert (keys.public.decode(), keys.gateway.decode()) == (listed, public)
    assert KnownClients(str(path)).knows(z85.decode(listed))
    assert not KnownClients(str(path)).knows(z85.decode(public))
    with pytest.raises(ConfigError, match="holds no secret key of a gateway"):
        run("curve", tmp_path / "bob.key", "--gateway", own)
    with pytest.raises(ConfigError, match="can't be written"):
        run("curve", path)


def test_private_keys_are_their_users_alone(tmp_path: Path) -> None:
    run("init", "--keys", tmp_path)
    run("issue", "gateway", "*", "--keys", tmp_path)
    for path in (tmp_path / "ca/key.pem", tmp_path / "gateway/key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert Keys(str(tmp_path / "gateway")).name_of("gateway") == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("issue", "worker", "a b"), "has no name of a process"),
        (("issue", "worker", "w0", "--host", "a_b"), "neither a host's name nor a numeric address"),
        (("issue", "worker", "w0", "--days", "9999"), "longer than the authority's own"),
        (("issue", "worker", "ca"), "is the folder of the authority"),
        (("revoke", "nobody"), "'nobody' has no such certificate"),
        (("init",), "has a key already"),
    ],
)
def test_what_can_not_be_is_refused_in_words(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    Authority.create(tmp_path, "here")
    with pytest.raises(ConfigError, match=why):
        run(*words, "--keys", tmp_path)


def test_an_unknown_role_and_a_missing_authority_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["keys", "issue", "boss", "b", "--keys", str(tmp_path)])
    assert result.exit_code == 2
    with pytest.raises(ConfigError, match="keys init"):
        run("issue", "worker", "w0", "--keys", tmp_path)


def test_each_process_of_a_cluster_takes_the_folder_of_its_name(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "keys", "here")
    config = read_config({"cluster": {"keys": str(tmp_path / "keys")}}, "mainspring.toml")
    with pytest.raises(ConfigError, match="mainspring keys issue controller controller --keys"):
        with_sockets(config, tmp_path)
    for role in ("controller", "gateway"):
        authority.issue(role, role, (), 30)
    given = with_sockets(config, tmp_path)
    assert given.controller.keys == str(tmp_path / "keys/controller")
    assert given.gateway.keys == str(tmp_path / "keys/gateway")
