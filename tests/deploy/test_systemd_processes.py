"""The units that start single processes on several hosts, and what they have alike."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.commands import DEPLOY, taken

FOLDER = DEPLOY / "systemd"
UNITS = sorted(FOLDER.glob("mainspring-*.service"))
ALIKE = Path("mainspring-.service.d", "process.conf")
OF_A_CLUSTER = {"ExecStart", "KillMode", "OOMPolicy"}
"""What the unit of a whole cluster says beyond that: which process to start, and how its own are ended."""
SPECIFIERS = {"%H": "host-1", "%i": "0", "$WORKER_OPTIONS": "--device=cuda:1 --exec-core=3"}


def read(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(encoding="utf-8").replace("\\\n", " "))
    return parser


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_is_one_that_the_command_line_takes(unit: Path) -> None:
    command = read(unit)["Service"]["ExecStart"].replace(
        "$WORKER_OPTIONS", "--device=cuda:1 --exec-core=3" * ("worker" in unit.name)
    )
    for name, value in SPECIFIERS.items():
        command = command.replace(name, value)
    program, *arguments = shlex.split(command)
    assert program == "/opt/mainspring/bin/mainspring"
    assert arguments[0] == unit.stem.removeprefix("mainspring-").rstrip("@")
    assert taken(arguments)["config"] == Path("/etc/mainspring/mainspring.toml")


def test_each_process_that_a_host_may_run_has_a_unit() -> None:
    assert [unit.name for unit in UNITS] == [
        "mainspring-controller.service",
        "mainspring-gateway.service",
        "mainspring-worker@.service",
    ]


def test_processes_are_protected_as_a_whole_cluster_is() -> None:
    whole = dict(read(FOLDER / "mainspring.service")["Service"])
    alike = dict(read(FOLDER / ALIKE)["Service"])
    assert alike == {key: value for key, value in whole.items() if key not in OF_A_CLUSTER}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    (tmp_path / ALIKE).parent.mkdir()
    shutil.copy(FOLDER / ALIKE, tmp_path / ALIKE)
    copies = []
    for unit in UNITS:
        copy = tmp_path / unit.name.replace("@", "@0")
        copy.write_text(unit.read_text().replace("/opt/mainspring/bin/mainspring", "/bin/true"))
        copies.append(str(copy))
    done = subprocess.run(["systemd-analyze", "verify", *copies], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mainspring-" not in done.stderr, done.stderr
