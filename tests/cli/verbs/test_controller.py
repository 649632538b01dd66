"""``mainspring controller`` as a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.cli.main import main
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_GATEWAY, encode
from mainspring.messages.peers import GatewayHello, Goodbye, ModelUp, Ping, Welcome
from tests.blocking import Client
from tests.patience import PATIENCE_S

Fail = Callable[..., tuple[object, str]]

TABLE = """family,model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms
ResNet,resnet18,602,4,46.7,3.79,1.4,1.8,2.5,4.1,7.4
"""


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Return what runs a controller that should not run: its exit code, and its errors on one line."""
    monkeypatch.setattr("mainspring.cli.verbs.controller.begin", lambda *_: threading.Event())

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["mainspring", "controller", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, " ".join(capsys.readouterr().err.split())

    return run


def test_it_says_where_it_listens_serves_and_leaves_in_good_order(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    flags = ["--address", f"unix://{tmp_path}/controller.sock", "--copies", "2"]
    flags += ["--profiles", str(tmp_path / "table.csv"), "--event-log", str(tmp_path / "events")]
    command = [sys.executable, "-m", "mainspring", "controller", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, address = process.stdout.readline().split()
        assert word == "ready"
        gateway = Client(address, role="gateway")
        gateway.send([encode(GatewayHello(PROTOCOL_VERSION, "g0"))])
        received = [TO_GATEWAY.decode(gateway.receive(20_000)[0])]
        while sum(isinstance(each, ModelUp) for each in received) < 2:
            received.append(TO_GATEWAY.decode(gateway.receive(20_000)[0]))
        process.send_signal(signal.SIGTERM)
        while isinstance(message := TO_GATEWAY.decode(gateway.receive(20_000)[0]), Ping):
            pass
        gateway.close()
        assert process.wait(PATIENCE_S) == 0
    assert isinstance(received[0], Welcome)
    assert [up.model.name for up in received if isinstance(up, ModelUp)] == ["resnet18-1", "resnet18-2"]
    assert isinstance(message, Goodbye)
    assert list((tmp_path / "events").glob("*.events"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "clokwork"), "choose one of"),
        (("--store", "a", "--profiles", "b"), "not from both"),
        (("--address", "tcp//127.0.0.1:7401"), "tcp//127.0.0.1:7401"),
        (("--store", "/nowhere/at/all"), "/nowhere/at/all"),
    ],
)
def test_a_wrong_use_is_explained_in_a_line(fail: Fail, arguments: tuple[str, ...], words: str) -> None:
    code, errors = fail(*arguments)
    assert code != 0
    assert words in errors
    assert "Traceback" not in errors


def test_an_address_that_other_hosts_reach_needs_keys(fail: Fail) -> None:
    code, errors = fail("--address", "tcp://0.0.0.0:*")
    assert code != 0
    assert "--address tcp://0.0.0.0:* is open to other hosts" in errors
    assert "give it keys" in errors
    assert "insecure" not in errors
    assert "Traceback" not in errors


def test_a_port_in_use_is_named(fail: Fail) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, errors = fail("--address", f"tcp://127.0.0.1:{port}")
    assert code != 0
    assert f"can't listen on tcp://127.0.0.1:{port}" in errors
    assert "--address" in errors
