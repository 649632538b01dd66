"""Sockets in a folder: private, found by long paths, and no trouble after a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainspring.transport.local import parse_local
from tests.blocking import Client, Server
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def meet(server: Server, client: Client) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not client.link.connected and time.monotonic() < give_up_s:
        server.poll(1)
        client.poll(1)
    assert client.link.connected


@pytest.mark.parametrize("depth", [0, 6])
def test_processes_meet_in_a_folder_however_long_its_path(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-folder-with-a-long-name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(f"unix://{folder}/controller.sock")
    assert stat.S_IMODE((folder / "controller.sock").stat().st_mode) == 0o600
    client = Client(server.address, b"c")
    meet(server, client)
    client.send([b"hello"])
    assert server.receive() == [b"tool/c", b"hello"]
    with pytest.raises(OSError, match="in use"):
        Server(server.address)
    client.close()
    server.close()
    assert not list(folder.iterdir())


def test_a_socket_that_a_killed_process_left_is_put_away(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/controller.sock"
    code = (
        "import sys, time; from tests.blocking import Server; "
        "s = Server(sys.argv[1]); print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, address], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "controller.sock").exists()
    server = Server(address)
    client = Client(address)
    meet(server, client)
    client.close()
    server.close()


def test_a_file_of_somebody_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="is not a socket"):
        Server(f"unix://{path}")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("address", ["unix://relative", "unix:///ends/", "unix://", "unix:///a\nb"])
def test_a_path_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="write it like unix:///"):
        parse_local(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_not_let_in_even_where_the_modes_would(tmp_path: Path) -> None:
    server = Server(f"unix://{tmp_path}/controller.sock", role="controller")
    seen: list[str] = []
    server.listener.on_violation = seen.append
    for each in (tmp_path, *tmp_path.parents):
        if each != Path("/tmp") and each.is_relative_to("/tmp"):
            each.chmod(0o755)
    (tmp_path / "controller.sock").chmod(0o777)
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(bytes.fromhex(sys.argv[2])); "
        "print(s.recv(4096))"
    )
    from tests.transport.raw import connecting

    opening = connecting("operator", b"admin").opening.hex()
    with subprocess.Popen(
        [sys.executable, "-c", code, f"{tmp_path}/controller.sock", opening], stdout=subprocess.PIPE
    ) as process:
        while process.poll() is None:
            server.poll(10)
        assert process.stdout is not None
        assert b"it is not a process of this user on this host" in process.stdout.read()
    assert len(seen) == 1
    assert not server.listener._channels
    server.close()
