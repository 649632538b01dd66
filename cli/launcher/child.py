"""A child process of a local cluster: ``python -m mainspring.cli.launcher.child JOB.json``.

It ties its life to its parent's, takes its cores before any library starts threads, and runs one of the
process's servers until SIGTERM, which drains. A second SIGTERM ends it at once. Everything it prints goes
to the log file that its parent opened for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from mainspring.cli.launcher.jobs import Job, RepositoryJob
from mainspring.cli.launcher.signals import stop_on_signals
from mainspring.cli.output import SERVING_PATIENCE_S, keep_saying, set_up_logging
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.worker.realtime import end_realtime

PR_SET_PDEATHSIG = 1


def main(path: str) -> int:
    """Run the job described by the file at ``path``; return the exit code."""
    job = msgspec.json.decode(Path(path).read_bytes(), type=Job)
    die_with_parent(job.parent_pid)
    if not isinstance(job, RepositoryJob):
        # What others may read of the store is for its owner to say.
        os.umask(0o077)
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    with contextlib.suppress(PermissionError):
        os.nice(job.nice)
        if job.priority:
            # Threads that are started later, ZeroMQ's among them, inherit it.
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(job.priority))
            if job.lent_cores:
                os.sched_setaffinity(0, job.lent_cores)
    keep_saying(patience_s=SERVING_PATIENCE_S)
    set_up_logging(job.name, job.log_level, job.log_format)
    HandshakeRate.limits = job.transport
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then says SIGTERM.
    stop_on_signals(stop, signal.SIGTERM, second_exit_code=1)
    try:
        job.run(stop)
    except Exception as error:
        logging.getLogger("mainspring").exception("stopped by an error")
        # The last line of the log is what the supervisor quotes.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        end_realtime()
    return 0


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, and go at once if it is already dead."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the parent died before this process was ready")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
