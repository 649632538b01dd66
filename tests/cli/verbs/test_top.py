"""``mainspring top`` and a live ``mainspring trace``, against a cluster that serves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.launcher.addresses import CONTROLLER_SOCKET
from mainspring.cli.main import build_app
from mainspring.cli.verbs import top
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.console.terminal.running import NotShown
from tests.cli.verbs.test_up import INPUT, PROFILES
from tests.console.test_perfetto import Trace
from tests.telemetry.recordings import record

MAINSPRING = [sys.executable, "-m", "mainspring"]
SLOW_S = 60.0
"""How long a busy machine may take for anything here."""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a controller whose cluster is asked all the time."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "profiles.csv").write_text(PROFILES)
    off = [word for name in ("http", "grpc", "metrics", "console") for word in (f"--{name}-port", "off")]
    command = [*MAINSPRING, "up", "--engine", "emulated", "--profiles", "profiles.csv", "--workers", "2"]
    command += ["--pages", "8", "--port", "0", *off]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        stop = threading.Event()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1]
            asking = threading.Thread(target=ask, args=(address, stop))
            asking.start()
            yield f"unix://{folder}/out/run/{CONTROLLER_SOCKET}"
        finally:
            stop.set()
            asking.join()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SLOW_S)
            finally:
                process.kill()


def ask(address: str, stop: threading.Event) -> None:
    """Ask for what can be answered and for what can't, until told to stop."""
    with Client(address) as client:
        while not stop.wait(0.02):
            for model, slo_ms in (("quick", 5000), ("patient", 20)):
                with contextlib.suppress(MainspringError):
                    client.submit(model, INPUT, slo_ms=slo_ms)


class Terminal:
    """A program on a terminal of 80 by 24."""

    def __init__(self, *words: str) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.before = termios.tcgetattr(theirs)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        self.process = subprocess.Popen(
            [*MAINSPRING, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        self._ours, self.theirs = ours, theirs
        self.shown = ""

    def press(self, keys: str) -> None:
        self.shown = ""
        os.write(self._ours, keys.encode())

    def see(self, pattern: str) -> str:
        """Wait until what was shown since the last key has a pattern; return what matched."""
        give_up_s = time.monotonic() + SLOW_S
        while (found := re.search(pattern, self.plain())) is None:
            assert time.monotonic() < give_up_s, f"{pattern!r} is not in {self.plain()[-4000:]}"
            assert self.process.poll() is None, self.plain()
            self._read()
        return found[0]

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def frames(self, count: int) -> list[str]:
        """Return so many whole pictures that come after one another."""
        give_up_s = time.monotonic() + SLOW_S
        while self.shown.count("\x1b[H") <= count:
            assert time.monotonic() < give_up_s, f"only these pictures came: {self.shown!r}"
            self._read()
        return self.shown.split("\x1b[H")[1 : count + 1]

    def ends(self) -> int:
        """Wait until the program has ended; return its exit code."""
        give_up_s = time.monotonic() + SLOW_S
        while self.process.poll() is None and time.monotonic() < give_up_s:
            self._read()
        self._read()
        return self.process.wait(1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)

    def _read(self) -> None:
        if select.select([self._ours], [], [], 0.05)[0]:
            self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")


@pytest.fixture
def terminal(controller: str) -> Iterator[Terminal]:
    opened = Terminal("top", "--controller", controller)
    try:
        yield opened
    finally:
        opened.close()


def test_every_view_of_a_live_cluster_at_80_by_24(terminal: Terminal) -> None:
    terminal.see(r"mainspring top   live")
    terminal.see(r"worker-1 +serving")
    terminal.see(r"rejected, by code: deadline_unreachable [1-9]")
    terminal.see(r"s rejected +patient +deadline_unreachable")
    terminal.press("2")
    terminal.see(r"worker-0 \(1 of 2\): \d of 8 pages used")
    terminal.press("n")
    terminal.see(r"worker-1 \(2 of 2\): \d of 8 pages used")
    terminal.press("3")
    terminal.see(r"worker-0 EXEC +[█▓░│ ]+")
    terminal.see(r"INFER +quick +1/1 ")
    terminal.press("4")
    terminal.see(r"1-2 of 2 models, by demand, most first")
    terminal.see(r"quick +worker-\d")
    terminal.press("/qu\r")
    terminal.see(r"1-1 of 1 models, named like 'qu'")
    for frame in terminal.frames(3):
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).replace("\r", "").split("\n")
        assert len(lines) <= 24
        assert all(len(line) <= 80 for line in lines)


def test_it_pauses_and_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.see(r"worker-1 +serving")
    terminal.press(" ")
    terminal.see(r"mainspring top   paused")
    terminal.press(" ")
    terminal.see(r"mainspring top   live")
    terminal.press("q")
    assert terminal.ends() == 0
    assert terminal.shown.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in terminal.shown
    assert termios.tcgetattr(terminal.theirs) == terminal.before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(terminal: Terminal, number: signal.Signals) -> None:
    terminal.see(r"worker-1 +serving")
    terminal.process.send_signal(number)
    assert terminal.ends() == 128 + number
    assert "\x1b[?1049l" in terminal.shown
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def run(*words: str) -> str:
    found = CliRunner().invoke(build_app(), [*words], env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_one_picture_for_scripts(controller: str) -> None:
    found = json.loads(run("top", "--controller", controller, "--once", "--json", "--watch", "1s"))
    assert found["head"]["state"] == "live"
    assert found["head"]["policy"]
    assert {worker["name"]: worker["state"] for worker in found["cluster"]["workers"]} == {
        "worker-0": "serving",
        "worker-1": "serving",
    }
    assert found["cluster"]["last_10s"]["offered_rps"] > 0
    assert [each["pages"] for each in found["memory"].values()] == [8, 8]
    assert {row["name"] for row in found["models"]["rows"]} == {"quick", "patient"}
    assert found["schedule"]["actions"]


def test_one_picture_without_a_terminal_as_soon_as_the_state_is_known(controller: str) -> None:
    shown = run("top", "--controller", controller, "--view", "models")
    assert shown.startswith("live  ")
    assert "2 models" in shown
    words = "top", "--controller", controller, "--json", "--view", "cluster"
    found = [json.loads(run(*words))["cluster"] for _ in range(3)]
    assert [worker["prepared"] for worker in found[0]["workers"]] == [2, 2]
    assert min(each["last_10s"]["seconds"] for each in found) == 0, "none of them waited for a whole second"


def test_a_live_trace_keeps_the_format_s_rules(controller: str, tmp_path: Path) -> None:
    output = tmp_path / "live.json"
    run("trace", "--controller", controller, "--duration", "1s", "--perfetto", str(output))
    trace = Trace(output)
    assert trace.about["controller"] == controller
    assert len(trace.flows) > 3
    assert {"worker-0 (emulated)", "worker-1 (emulated)"} <= set(trace.names.values())
    outcomes = {event["name"] for event in trace.by_phase["b"] if event["cat"] == "request"}
    assert {"in time", "rejected: deadline_unreachable"} <= outcomes
    used = {event["args"]["pages"] for event in trace.by_phase["C"] if event["name"] == "free"}
    assert used
    assert max(used) < 8 or len(used) > 1, "the picture said what was resident"


def test_a_trace_that_can_t_be_written_is_refused_before_anything_is_watched(tmp_path: Path) -> None:
    for output, why in ((tmp_path, "is a directory"), (tmp_path / "none" / "run.json", "there is no folder")):
        words = ["trace", "--controller", "tcp://127.0.0.1:1", "--perfetto", str(output)]
        found = CliRunner().invoke(build_app(), words, env={"COLUMNS": "300"})
        assert found.exit_code == 2
        assert why in found.output


def test_a_controller_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "PATIENCE_S", 0.3)
    words = ["top", "--once", "--controller", "tcp://127.0.0.1:1"]
    found = CliRunner().invoke(build_app(), words)
    assert isinstance(found.exception, NotShown)
    assert "nothing to show after 0.3 s" in str(found.exception)


def test_a_log_is_shown_at_any_moment(tmp_path: Path) -> None:
    log = str(record(tmp_path))
    assert "standing" not in run("top", "--log", log, "--once")
    found = json.loads(run("top", "--log", log, "--once", "--json", "--at", "1.5", "--view", "cluster"))
    assert list(found) == ["head", "cluster"]
    assert found["head"]["state"] == "recorded"
    assert found["head"]["now_ns"] == pytest.approx(1_500_000_000, abs=20_000_000)
    assert found["cluster"]["workers"][0]["name"] == "worker-0"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--view", "sky"], "there is no view 'sky': choose of cluster, memory, schedule, models"),
        (["--at", "3"], "give --log DIR too"),
        (["--log", "LOG", "--at", "90"], "90.000 s from the start of a run of 4."),
        (["--log", "LOG", "--controller", "tcp://127.0.0.1:1"], "--controller is about a live cluster"),
        (["--controller", "nonsense", "--once"], "nonsense"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: list[str], complaint: str) -> None:
    log = str(record(tmp_path)) if "LOG" in options else ""
    words = ["top", *(log if option == "LOG" else option for option in options)]
    found = CliRunner().invoke(build_app(), words, env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert found.exit_code == 2, (found.output, found.exception)
    assert complaint in found.output
