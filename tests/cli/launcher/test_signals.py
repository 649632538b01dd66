from __future__ import annotations

import signal
import subprocess
import sys
import time

from mainspring.cli.launcher.signals import ONE_SIGNAL_S
from tests.patience import PATIENCE_S

PROGRAM = """
import signal, sys, threading
from mainspring.cli.launcher.signals import stop_on_signals
stop = threading.Event()
stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, second_exit_code=77)
print("armed", flush=True)
stop.wait()
print("stopping", flush=True)
threading.Event().wait(float(sys.argv[1]))
print("stopped", flush=True)
"""


def start(linger_s: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(linger_s)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "armed\n"
    return child


def test_the_first_signal_stops_in_order() -> None:
    child = start(0.0)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=PATIENCE_S)
    assert out == "stopping\nstopped\n"
    assert child.returncode == 0


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        child = start(2 * ONE_SIGNAL_S)
        for _ in range(3):
            child.send_signal(number)
        out, _ = child.communicate(timeout=PATIENCE_S)
        assert (out, child.returncode) == ("stopping\nstopped\n", 0)


def test_a_second_signal_ends_the_process_at_once() -> None:
    child = start(60.0)
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None
    assert child.stdout.readline() == "stopping\n"
    began = time.monotonic()
    time.sleep(2 * ONE_SIGNAL_S)
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENCE_S) == 77
    assert time.monotonic() - began < 10
    child.stdout.close()
