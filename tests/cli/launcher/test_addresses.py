from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mainspring.cli.launcher.addresses import check_free, connectable, free_ports, parse
from mainspring.cli.launcher.run_dir import claimed, clear
from mainspring.messages.tables import ConfigError


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7400", "tcp://:7400", "tcp://host:x", "tcp://host:70000", "ipc://x"]
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like tcp://127\.0\.0\.1:7400"):
        parse(address)


def test_a_port_in_use_is_named_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address} is in use by another program; choose another"):
            check_free(address, "choose another")


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        check_free(f"tcp://127.0.0.1:{port}", "")


def test_an_address_to_listen_on_everywhere_is_reached_over_loopback() -> None:
    assert connectable("tcp://*:7401") == "tcp://127.0.0.1:7401"
    assert connectable("tcp://0.0.0.0:7401") == "tcp://127.0.0.1:7401"
    assert connectable("tcp://10.0.0.5:7401") == "tcp://10.0.0.5:7401"


def test_a_run_folder_belongs_to_one_cluster_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with (
        claimed(folder),
        pytest.raises(ConfigError, match="another cluster is using the folder"),
        claimed(folder),
    ):
        pass
    with claimed(folder):
        pass


@pytest.mark.parametrize("there", ["nothing", "file"])
def test_the_lock_is_no_link_to_something_else(tmp_path: Path, there: str) -> None:
    folder, target = tmp_path / "run", tmp_path / there
    folder.mkdir()
    if there == "file":
        target.touch()
    (folder / "lock").symlink_to(target)
    with pytest.raises(ConfigError, match="can't write to the folder"), claimed(folder):
        pass
    assert target.exists() == (there == "file")


def test_a_lock_is_its_users_alone(tmp_path: Path) -> None:
    with claimed(tmp_path):
        assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_folder_in_use_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "worker-0.log").write_text("a former run's")
    with claimed(tmp_path), pytest.raises(ConfigError, match=r"--run-dir"):
        clear(tmp_path)
    assert (tmp_path / "worker-0.log").exists()
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_that_can_not_be_made_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    complaint = rf"can't write to the folder {tmp_path}/file/run: Not a directory; choose another"
    with pytest.raises(ConfigError, match=complaint), claimed(tmp_path / "file" / "run"):
        pass
