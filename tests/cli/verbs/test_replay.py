"""The command ``replay`` against a gateway that says no to everything, over a real socket."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
import zmq
from typer.testing import CliRunner

from mainspring.cli.launcher.signals import ONE_SIGNAL_S, stopping
from mainspring.cli.main import build_app
from mainspring.cli.verbs.replay import matching
from mainspring.messages.clients import (
    ClientHello,
    ClientWelcome,
    ErrorReply,
    InferRequest,
    ListModels,
    ModelList,
)
from mainspring.messages.codec import FROM_CLIENT, encode
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.traces.arrival import WorkloadError
from tests.patience import PATIENCE_S


@pytest.fixture
def app() -> typer.Typer:
    return build_app()


@contextmanager
def refusing_gateway() -> Iterator[str]:
    """Serves the models ``cat`` and ``dog`` and rejects each request as overloaded."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.bind("tcp://127.0.0.1:*")
    stop = threading.Event()
    specs = tuple(
        ModelSpec(name, "h", "e", (1, 2), 1, (1,), (TensorSpec("x", "float32", (2,)),), (), {})
        for name in ("cat", "dog")
    )

    def serve() -> None:
        while not stop.is_set():
            if socket.poll(20):
                sender, data, *_ = socket.recv_multipart()
                message = FROM_CLIENT.decode(data)
                match message:
                    case ClientHello():
                        socket.send_multipart([sender, encode(ClientWelcome(1, "t", 1 << 20, 100))])
                    case ListModels():
                        socket.send_multipart([sender, encode(ModelList(message.key, specs))])
                    case InferRequest():
                        reply = ErrorReply(message.key, Reason.OVERLOADED, message.model)
                        socket.send_multipart([sender, encode(reply)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield socket.last_endpoint.decode()
    finally:
        stop.set()
        thread.join()
        socket.close()
        context.term()


def test_it_sends_reports_and_writes_both_files(app: typer.Typer, tmp_path: Path) -> None:
    with refusing_gateway() as address:
        arguments = [
            "replay",
            "--workload",
            "poisson",
            "--rate",
            "200",
            "--duration",
            "500ms",
            "--models",
            "c*",
        ]
        arguments += ["--address", address, "--output", str(tmp_path), "--slo", "20s"]
        result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
        table = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "summary.json").read_text()) | printed
    assert 60 < printed["offered"] < 140
    assert printed["rejected"] == {"overloaded": printed["offered"]}
    assert (printed["slo_ms"], printed["models"], printed["lost"]) == (20_000.0, 1, 0)
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert "rejected: overloaded" in table.stdout
    assert "summary.json" in table.stdout


def test_a_trace_is_played_without_naming_its_kind(app: typer.Typer, tmp_path: Path) -> None:
    trace = tmp_path / "a21.csv"
    trace.write_text("app,func,end_timestamp,duration\n" + "a,f,1,0.5\na,f,1.01,0.5\na,f,1.02,0.5\n")
    with refusing_gateway() as address:
        arguments = ["replay", "--trace", str(trace), "--duration", "100ms", "--address", address, "--json"]
        arguments += ["--output", str(tmp_path / "out")]
        printed = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert printed["title"].startswith("azure2021 (a21.csv): 2 models")
    assert printed["offered"] == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workload", "azure2019"], "read from a file; name it with --trace"),
        (["--workload", "poisson", "--trace", "t.csv"], "generated and would not read t.csv"),
        (["--duration", "5 parsecs"], "'5 parsecs' is not a duration"),
        (["--duration", "none"], "not a time above 0"),
        (["--zipf", "1.2"], "there is no --zipf any more: the workload synthetic is skewed"),
        (["--think", "1s"], "there is no --think any more: simulate a workload of kind closed"),
        (["--slo", "0ms"], "write it like 100ms, or none"),
    ],
)
def test_wrong_usage_is_told_apart_from_failures(
    app: typer.Typer, arguments: list[str], complaint: str
) -> None:
    result = CliRunner().invoke(app, ["replay", *arguments])
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workload", "azure2019", "--trace", "nowhere.csv"], r"nowhere\.csv"),
        (["--rate", "0.001", "--duration", "1ms"], "no request at all; begin earlier in the trace"),
        (["--models", "bird*"], "no model matches 'bird\\*'.*cat, dog"),
    ],
)
def test_what_is_wrong_is_said(
    app: typer.Typer, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    with refusing_gateway() as address, pytest.raises(WorkloadError, match=complaint):
        CliRunner().invoke(
            app,
            ["replay", "--address", address, "--output", str(tmp_path), *arguments],
            catch_exceptions=False,
        )
    assert not {path.name for path in tmp_path.iterdir()} - {"lock"}, "no report of nothing"


def test_globs_choose_models() -> None:
    assert matching(["b1", "a2", "a1"], "a*") == ["a1", "a2"]
    with pytest.raises(WorkloadError, match="no model at all"):
        matching([], "*")


def test_the_first_interrupt_stops_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2 * ONE_SIGNAL_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
