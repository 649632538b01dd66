"""What builds and starts containers: the image, docker-compose's files, and the runtime for KServe."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import read_config, read_tables
from mainspring.cli.launcher.up import Ports, cluster_config
from tests.deploy.commands import DEPLOY, ROOT, taken

yaml = pytest.importorskip("yaml")
COMPOSE = shutil.which("docker-compose", path=str(Path(sys.executable).parent))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
USER = 10001


def composed(file: str, *profiles: str) -> dict[str, Any]:
    """Return the services that a file has for these profiles, as Docker Compose reads it."""
    if COMPOSE is None:
        pytest.skip("`make chart` installs Docker Compose")
    flags = [f"--profile={each}" for each in profiles]
    command = [COMPOSE, "-f", str(DEPLOY / "compose" / file), *flags, "config", "--format", "json"]
    environment = {**os.environ, "CONTROLLER": "10.0.0.1", "SELF": "10.0.0.2"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return services


def test_one_host_has_a_cluster_whose_files_are_mounted() -> None:
    (service,) = composed("compose.yaml").values()
    verb, config, *flags = service["command"]
    taken([verb, config, *flags])
    mounted = {each["target"]: each["source"] for each in service["volumes"]}
    own = cluster_config(Path(mounted[config]), {}, Ports())
    assert own.cluster.store in mounted
    assert Path(own.cluster.run_dir).parent.as_posix() in mounted
    published = {int(each["published"]) for each in service["ports"]}
    assert {each["host_ip"] for each in service["ports"]} == {"127.0.0.1"}
    assert not own.gateway.curve_key, "without it ZeroMQ is for this host's own user alone"
    front_ends = (own.gateway.http_address, own.gateway.grpc_address)
    listens = (*front_ends, own.gateway.metrics_address, own.console.address)
    assert {int(each.rpartition(":")[2]) for each in listens} == published


def test_three_hosts_have_one_cluster() -> None:
    services = composed("hosts.yaml", "controller", "gateway", "worker")
    assert set(services) == {"controller", "console", "gateway", "worker"}
    flags = {name: taken(service["command"]) for name, service in services.items()}
    for name in ("console", "gateway", "worker"):
        assert flags[name]["controller"] == "tcp://10.0.0.1:7300"
    assert flags["controller"]["address"].endswith(":7300")
    assert flags["worker"]["data_host"] == "10.0.0.2"
    for service in services.values():
        mounted = {each["target"] for each in service["volumes"]}
        assert service["environment"]["MAINSPRING_KEYS"] in mounted
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
    for role in ("controller", "gateway", "worker"):
        alone = composed("hosts.yaml", role)
        assert role in alone
        assert set(alone) <= {role, "console"}


def test_the_image_has_what_it_is_built_from_and_runs_as_a_user_of_its_own() -> None:
    instructions = DOCKERFILE.replace("\\\n", " ").splitlines()
    for line in instructions:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = shlex.split(line)[1:]
            for source in sources:
                assert (ROOT / source).exists(), source
    assert f"USER {USER}:{USER}" in instructions
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entry = next(line for line in instructions if line.startswith("ENTRYPOINT"))
    assert entry == 'ENTRYPOINT ["mainspring"]'
    assert "mainspring" in scripts
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes --only-binary :all:" in DOCKERFILE
    assert "--require-hashes --only-binary :all:" in makefile
    least = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert least is not None
    assert set(re.findall(r"FROM python:([\d.]+)-", DOCKERFILE)) == {least[1]}


def test_the_runtime_for_kserve_starts_what_the_command_line_takes(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((DEPLOY / "kserve" / "servingruntime.yaml").read_text())
    configuration, runtime = documents
    spec = runtime["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container", "the one that KServe gives the model to"
    flags = taken(container["args"])
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert str(flags["config"].parent) in mounts
    assert {each["name"] for each in spec["volumes"]} == set(mounts.values())
    (volume,) = [each for each in spec["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == configuration["metadata"]["name"]
    file = tmp_path / flags["config"].name
    file.write_text(configuration["data"][file.name])
    own = read_config(read_tables(file), str(file))
    port = int(own.gateway.http_address.rpartition(":")[2])
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert container["readinessProbe"]["httpGet"]["port"] == port
    assert own.gateway.metrics_address.endswith(
        runtime["metadata"]["annotations"]["prometheus.kserve.io/port"]
    )
