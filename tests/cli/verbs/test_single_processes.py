"""Controller, worker and gateway in the foreground: a signal drains, a bad flag is named, help is there."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.controller.config import ControllerConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.transport.config import TransportConfig
from mainspring.worker.config import WorkerConfig
from tests.patience import PATIENCE_S

MAINSPRING = [sys.executable, "-m", "mainspring"]


RUNS = {"controller": "running"}
"""Module whose `run` serves, where it is not `server`."""


@pytest.mark.parametrize("verb", ["controller", "gateway"])
def test_a_signal_stops_it_in_order(verb: str) -> None:
    flags = ["--address", "tcp://127.0.0.1:*", "--drain-timeout", "2s", "--log-format", "json"]
    flags += ["--controller", "tcp://127.0.0.1:1"] if verb == "gateway" else []
    with subprocess.Popen([*MAINSPRING, verb, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready tcp://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_a_worker_stops_in_order(tmp_path: object) -> None:
    flags = ["--engine", "emulated", "--controller", "tcp://127.0.0.1:1", "--store", str(tmp_path)]
    command = [*MAINSPRING, "worker", *flags, "--pages", "1", "--no-realtime"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready ")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("verb", "default", "own"),
    [
        ("gateway", GatewayConfig(), {"controller_address"}),
        ("worker", WorkerConfig(name="worker-0"), {"controller"}),
        ("controller", ControllerConfig(), {"address"}),
    ],
)
def test_options_that_are_not_given_are_what_the_configuration_says(
    verb: str, default: msgspec.Struct, own: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    started: list[msgspec.Struct] = []
    monkeypatch.setattr(
        f"mainspring.{verb}.{RUNS.get(verb, 'server')}.run", lambda config, *_, **__: started.append(config)
    )
    monkeypatch.setattr(f"mainspring.cli.verbs.{verb}.begin", lambda *_: threading.Event())
    where = "--address" if verb == "controller" else "--controller"
    done = CliRunner().invoke(build_app(), [verb, where, f"unix://{tmp_path}/controller.sock"])
    assert done.exit_code == 0, done.output
    (config,) = started
    found, wanted = msgspec.structs.asdict(config), msgspec.structs.asdict(default)
    assert {key for key, value in found.items() if value != wanted[key]} == own


CONFIG = """
[cluster]
keys = "keys"
engine = "emulated"
store = "models"
log_format = "json"
insecure = true

[controller]
address = "tcp://10.0.0.1:7300"
max_peers = 12

[scheduler]
policy = "edf"

[gateway]
http_address = "http://127.0.0.1:8100"
max_in_flight = 9

[worker]
data_address = "tcp://10.0.0.2:7500"
pages = 3

[transport]
handshakes_per_s = 64
"""


@pytest.mark.parametrize(
    ("verb", "flags", "wanted"),
    [
        ("gateway", [], {"max_in_flight": 9, "http_address": "http://127.0.0.1:8100"}),
        ("gateway", ["--http", "http://127.0.0.1:8200"], {"http_address": "http://127.0.0.1:8200"}),
        ("gateway", ["--controller", "tcp://c:1"], {"controller_address": "tcp://c:1", "max_in_flight": 9}),
        ("gateway", [], {"controller_address": "tcp://10.0.0.1:7300"}),
        ("worker", [], {"pages": 3, "engine": "emulated", "data_address": "tcp://10.0.0.2:7500"}),
        ("worker", ["--pages", "5", "--name", "w"], {"pages": 5, "name": "w"}),
        ("worker", ["--store", "new", "--store-from", "http://h:1"], {"store_from": "http://h:1"}),
        ("worker", ["--engine", "onnxruntime", "--store", "."], {"engine": "onnxruntime", "store": "."}),
        ("controller", [], {"max_peers": 12, "address": "tcp://10.0.0.1:7300"}),
        ("controller", ["--address", "tcp://0.0.0.0:7300"], {"address": "tcp://0.0.0.0:7300"}),
        ("console", [], {"controller_address": "tcp://10.0.0.1:7300"}),
    ],
)
def test_a_file_configures_a_process_and_flags_go_before_it(
    verb: str, flags: list[str], wanted: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "deployed.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    started: list[msgspec.Struct] = []
    monkeypatch.setattr(
        f"mainspring.{verb}.{RUNS.get(verb, 'server')}.run", lambda config, *_, **__: started.append(config)
    )
    begun: list[tuple[object, ...]] = []

    def begin(*said: object) -> threading.Event:
        begun.append(said)
        return threading.Event()

    monkeypatch.setattr(f"mainspring.cli.verbs.{verb}.begin", begin)
    done = CliRunner().invoke(build_app(), [verb, "--config", "deployed.toml", *flags])
    assert done.exit_code == 0, done.output
    (config,) = started
    found = msgspec.structs.asdict(config)
    assert {key: found[key] for key in wanted} == wanted
    assert found["keys"] == f"keys/{found.get('name') or verb}"
    assert begun[0][1:] == ("WARNING", "json", TransportConfig(handshakes_per_s=64))


def test_a_file_that_no_process_could_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[gateway]\nmax_inflight = 9\n", encoding="utf-8")
    command = [*MAINSPRING, "gateway", "--config", str(tmp_path / "wrong.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "did you mean 'max_in_flight'" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--drain-timeout", "soon"], "--drain-timeout"),
        (["--log-format", "xml"], "text or json"),
        (["--log-level", "LOUD"], "DEBUG, INFO, WARNING or ERROR"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], says: str) -> None:
    done = CliRunner().invoke(build_app(), ["gateway", "--address", "tcp://127.0.0.1:*", *flags])
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--store", "nowhere"], "there is no folder nowhere, where this worker would read its models"),
        (["--engine", "emulated", "--exec-core", "9999"], "core 9999 is none of those"),
    ],
)
def test_a_worker_without_its_store_or_core_does_not_start(flags: list[str], says: str) -> None:
    done = CliRunner().invoke(build_app(), ["worker", *flags])
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", " ").split())


def test_bash_completion_is_shown_and_completes() -> None:
    environment = {
        "_MAINSPRING_COMPLETE": "complete_bash",
        "COMP_WORDS": "mainspring do",
        "COMP_CWORD": "1",
        "PATH": "/usr/bin:/bin",
    }
    program = "import sys; sys.argv[0] = 'mainspring'; from mainspring.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.split() == ["doctor"], done.stderr
