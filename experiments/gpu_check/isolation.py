"""Runs a check in a process of its own, with a limit to its time, whatever becomes of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from mainspring.experiments.gpu_check.parts import PARTS, Check
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, as_rehearsed, failed

END_S = 5.0
_LAST = b""


def run_alone(
    name: str, settings: Settings, limit_s: float, on_verdict: Callable[[Verdict], None] = lambda _: None
) -> list[Verdict]:
    """Return the verdicts of a check; its processes have ended then.

    If it is cut or dies, what it has found until then is kept, and one more says how it went wrong.
    ``on_verdict`` is told each as it comes.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=carry_out, args=(PARTS[name].check, name, settings, theirs))
    process.start()
    theirs.close()
    found: list[Verdict] = []
    for verdict in received(name, process, ours, limit_s):
        found.append(verdict)
        on_verdict(verdict)
    return found


def received(name: str, process: BaseProcess, answers: Connection, limit_s: float) -> Iterator[Verdict]:
    """Yield the verdicts of a process that runs `carry_out`, and one more if it does not end well."""
    end_s = time.monotonic() + limit_s
    ended = False
    try:
        while answers.poll(max(0.0, end_s - time.monotonic())):
            message = answers.recv_bytes()
            if message == _LAST:
                ended = True
                return
            yield msgspec.json.decode(message, type=Verdict)
        yield failed(f"check {name}", f"it had not ended after {limit_s:.0f} s")
    except EOFError:
        process.join(END_S)
        yield failed(f"check {name}", f"its process died: {_death(process.exitcode)}")
    finally:
        process.join(END_S if ended else 0)
        _end(process)


def carry_out(check: Check, name: str, settings: Settings, answers: Connection) -> None:
    """Send each verdict of a check as it is found, in a process of its own; then that it was the last."""
    # A group of its own, so that what it starts can be ended with it.
    os.setpgid(0, 0)
    try:
        for found in check(settings):
            verdict = as_rehearsed(found) if settings.rehearsed else found
            answers.send_bytes(msgspec.json.encode(verdict))
    except Exception as error:
        # Where GPUs are lent for minutes, nobody can come back to ask where it was raised.
        traceback.print_exc()
        answers.send_bytes(msgspec.json.encode(failed(f"check {name}", str(error) or repr(error))))
    answers.send_bytes(_LAST)


def _end(process: BaseProcess) -> None:
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
