"""The lease in etcd, on a real server."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.cli.launcher.addresses import free_ports
from mainspring.controller.lease import StoreError
from mainspring.controller.lease_etcd import TTL_S, EtcdStore
from mainspring.controller.lease_files import open_store
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("etcd3gw") is None:
        pytest.skip("etcd3gw is not installed")
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed")
    client, peer = free_ports(2)
    url, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    command = ["etcd", "--data-dir", str(tmp_path_factory.mktemp("etcd")), "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    command += ["--initial-cluster", f"default={peers}", "--unsafe-no-fsync"]
    process = subprocess.Popen(command)
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", client), 1):
            break
        assert time.monotonic() < until_s
        time.sleep(0.05)
    yield f"etcd://127.0.0.1:{client}"
    process.kill()
    process.wait()


@pytest.fixture
def where(etcd: str, tmp_path: Path) -> str:
    return f"{etcd}/{tmp_path.name}"


def claimed(store: EtcdStore, epoch: int) -> bool:
    """Claim, and again while etcd is yet to elect itself."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.claim(0, epoch)
        except StoreError:
            assert time.monotonic() < until_s
            time.sleep(0.1)


def test_a_claim_is_for_one_in_a_higher_epoch(where: str) -> None:
    one, other = EtcdStore(where, "one", "tcp://one:1"), EtcdStore(where, "other")
    assert claimed(one, 1)
    assert not other.claim(0, 2)
    lease = other.look(0)
    assert lease is not None
    assert (lease.epoch, lease.holder, lease.address, lease.held) == (1, "one", "tcp://one:1", True)
    assert one.renew(0)
    one.release()
    lease = other.look(0)
    assert lease is not None
    assert (lease.epoch, lease.held) == (1, False)
    assert not other.claim(0, 1)
    assert other.claim(0, 2)
    assert not one.renew(0)


def test_a_lease_that_is_not_renewed_ends_and_comes_back_to_nobody_but_its_epoch(where: str) -> None:
    one, other = EtcdStore(where, "one"), EtcdStore(where, "other")
    assert claimed(one, 5)
    until_s = time.monotonic() + PATIENCE_S
    began_s = time.monotonic()
    while (lease := other.look(0)) is None or lease.held:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert time.monotonic() - began_s >= TTL_S / 2
    assert one.renew(0), "nobody has claimed it since"
    one.release()
    assert other.claim(0, 6)
    assert not one.renew(0)


def test_without_etcd_nothing_is_known(etcd: str) -> None:
    (port,) = free_ports(1)
    store = open_store(f"etcd://127.0.0.1:{port}", "one", "")
    for call in (lambda: store.look(0), lambda: store.claim(0, 1)):
        with pytest.raises(StoreError, match=f"etcd at 127.0.0.1:{port}"):
            call()
    store.close()
