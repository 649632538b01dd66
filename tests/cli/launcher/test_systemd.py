"""The unit and the configuration of ``deploy/systemd``: what they start, and that the docs say the same."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from mainspring.cli.launcher.up import Ports, cluster_config
from mainspring.cli.main import build_app

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "mainspring.service"
DOCS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
EXPOSURE = 25
"""Tenths; what systemd-analyze counts of a unit that may use the network and a real-time priority."""
analyze = shutil.which("systemd-analyze")
judges = "--offline" in (
    subprocess.run([analyze, "--help"], text=True, capture_output=True, check=False).stdout if analyze else ""
)


def service() -> configparser.SectionProxy:
    """Return the unit's section; a key that is there twice is an error."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    assert parser["Install"]["WantedBy"] == "multi-user.target"
    return parser["Service"]


def test_the_command_is_one_that_the_command_line_takes() -> None:
    program, verb, *arguments = shlex.split(service()["ExecStart"])
    assert Path(program).name == "mainspring"
    group = typer.main.get_command(build_app())
    command = group.get_command(None, verb)  # type: ignore[attr-defined]
    context = command.make_context(verb, arguments)
    assert context.params["config"] == Path("/etc/mainspring/mainspring.toml")
    assert context.params["log_format"] == "json"


def test_the_configuration_keeps_all_files_in_the_service_s_folder() -> None:
    config = cluster_config(FOLDER / "mainspring.toml", {}, Ports())
    state = Path("/var/lib", service()["StateDirectory"])
    assert Path(service()["WorkingDirectory"]) == state
    assert {Path(path).parent for path in (config.cluster.store or "", config.cluster.run_dir)} == {state}
    assert service()["ProtectSystem"] == "strict", "which leaves it that folder alone to write to"


def test_there_is_time_to_drain_and_room_for_all_connections() -> None:
    config = cluster_config(FOLDER / "mainspring.toml", {}, Ports())
    assert int(service()["TimeoutStopSec"]) > config.cluster.stop_timeout_s
    gateway = config.gateway
    connections = gateway.max_connections + gateway.http_max_connections + gateway.grpc_max_connections
    assert int(service()["LimitNOFILE"]) > 2 * connections


def test_the_docs_install_what_the_unit_starts() -> None:
    program = shlex.split(service()["ExecStart"])[0]
    steps = re.search(r"## As a service of systemd.*?```\n(.*?)```", DOCS, re.DOTALL)
    assert steps is not None
    typed = steps[1].replace("\\\n", " ")
    assert f"python3 -m venv {Path(program).parents[1]}\n" in typed
    assert f"useradd --system --home-dir {service()['WorkingDirectory']}" in typed
    assert re.search(rf"--shell \S+ +{service()['User']}\n", typed)
    for source in re.findall(r"deploy/systemd/\S+", typed):
        assert (ROOT / source).is_file(), source
    for path in ("/etc/mainspring/mainspring.toml", "/var/lib/mainspring/store", program):
        assert path in typed


@pytest.mark.skipif(not judges, reason="systemd 250 or later is not installed here")
def test_systemd_takes_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    assert analyze is not None
    copy = tmp_path / UNIT.name
    # It looks for the program, which is installed where the service runs.
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    quiet = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    verified = subprocess.run(
        [analyze, "verify", str(copy)], text=True, capture_output=True, check=False, env=quiet
    )
    assert verified.returncode == 0, verified.stderr
    assert UNIT.name not in verified.stderr, verified.stderr
    exposed = [analyze, "security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager", str(copy)]
    found = subprocess.run(exposed, text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
