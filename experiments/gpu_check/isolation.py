"""Runs a check in a process of its own, with a limit to its time, whatever becomes of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from mainspring.experiments.gpu_check.parts import PARTS
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, failed

END_S = 5.0
"""For a process that has given its verdicts to end."""


def run_alone(name: str, settings: Settings, limit_s: float) -> list[Verdict]:
    """Return the verdicts of a check, or one that says how it went wrong; its processes have ended then."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_carry_out, args=(name, settings, theirs))
    process.start()
    theirs.close()
    found = False
    try:
        found = ours.poll(limit_s)
        if not found:
            return [failed(f"check {name}", f"it had not ended after {limit_s:.0f} s")]
        return msgspec.json.decode(ours.recv_bytes(), type=list[Verdict])
    except EOFError:
        process.join(END_S)
        return [failed(f"check {name}", f"its process died: {_death(process.exitcode)}")]
    finally:
        process.join(END_S if found else 0)
        _end(process)


def _carry_out(name: str, settings: Settings, answers: Connection) -> None:
    # A group of its own, so that what it starts can be ended with it.
    os.setpgid(0, 0)
    try:
        found = PARTS[name].check(settings)
    except Exception as error:
        # Where GPUs are lent for minutes, nobody can come back to ask where it was raised.
        traceback.print_exc()
        found = [failed(f"check {name}", str(error) or repr(error))]
    answers.send_bytes(msgspec.json.encode(found))


def _end(process: BaseProcess) -> None:
    """End a process and all that it started."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
