"""The sources of the records of `mainspring trace`: a log, or a controller as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mainspring.cli.launcher.signals import stopping
from mainspring.cli.places import Door
from mainspring.console.live import LiveStream
from mainspring.console.perfetto import Tracer
from mainspring.console.trace_file import TraceFile
from mainspring.messages.observing import Stage
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.runs import LogProblem, Run, read_run, wall

CONNECT_NS = 10_000_000_000
"""Time for which a controller is waited for that does not answer."""
POLL_NS = 100_000_000


def trace_log(run: Run, from_ns: int, to_ns: int, output: Path) -> TraceFile:
    """Write the part ``[from_ns, to_ns)`` of a run; raise OSError if something can't be read or written."""
    about = {
        "log": str(run.paths[0].parent),
        "policy": run.policy,
        "began": run.wall(from_ns),
        "unix_ns": run.unix_ns(from_ns),
    }
    with _file(output, about) as file:
        tracer = Tracer(file)
        begun = False
        for now_ns, entry in read_run(run):
            if isinstance(entry, SegmentHeader):
                continue
            if now_ns >= to_ns:
                break
            if now_ns >= from_ns and not begun:
                tracer.begin(from_ns)
                begun = True
            tracer.take(now_ns, entry)
        if not begun:
            raise LogProblem(f"{run.paths[0].parent} has no record between --from and --to")
        tracer.finish()
    return file


def trace_live(
    door: Door, output: Path, duration_ns: int, clock: Callable[[], int] = time.monotonic_ns
) -> TraceFile:
    """Watch a controller for this long, or until Ctrl-C; raise `LogProblem` if it can't be reached.

    If its connection ends meanwhile, the trace does: what happened until it is back is not known.
    """
    controller = door.address
    stream = LiveStream(controller, "trace", keys=door.keys())
    try:
        with (
            stopping() as stop,
            _file(output, {"controller": controller, "began": wall(time.time_ns())}) as file,
        ):
            tracer = Tracer(file)
            begun_ns = None
            give_up_ns = clock() + CONNECT_NS
            while not stop.is_set():
                batch = stream.poll(POLL_NS)
                if begun_ns is None and stream.state == "connecting" and clock() > give_up_ns:
                    raise LogProblem(
                        f"no controller answers at {controller}: is `mainspring up` running? "
                        f"({stream.detail}); --address or --controller names another"
                    )
                if begun_ns is not None and (
                    stream.state != "live" or (batch is not None and batch.stage is Stage.BEGIN)
                ):
                    break
                if batch is not None:
                    for now_ns, entry in batch.records:
                        tracer.take(now_ns, entry)
                    if batch.stage is Stage.END and begun_ns is None:
                        begun_ns = batch.now_ns
                        tracer.begin(begun_ns)
                    if begun_ns is not None and batch.now_ns >= begun_ns + duration_ns:
                        break
            if begun_ns is None:
                raise LogProblem(f"stopped before {controller} had said how things stand")
            tracer.finish()
        return file
    finally:
        stream.close()


@contextmanager
def _file(output: Path, about: dict[str, Any]) -> Iterator[TraceFile]:
    """Write a trace file that is there only if it is whole."""
    file = TraceFile(output, about)
    try:
        yield file
        file.close()
    except BaseException:
        file.abandon()
        raise
