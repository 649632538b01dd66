"""A controller of `varieties`, for a benchmark; with an event log if it is given a folder.

``python -m mainspring.experiments.bench.controller_served ADDRESS MODELS [FOLDER]`` prints a line once it
listens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from mainspring.cli.launcher.process_plan import CONTROL_PRIORITY
from mainspring.controller.config import ControllerConfig
from mainspring.controller.running import run
from mainspring.experiments.scheduler_load import varieties
from mainspring.scheduler.config import SchedulerConfig


def main(address: str, models: int, folder: str | None = None) -> None:
    """Serve until SIGTERM."""
    with contextlib.suppress(PermissionError):
        # As `mainspring up` does: else what is measured is who else wants this processor.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CONTROL_PRIORITY))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = ControllerConfig(address=address, event_log_dir=folder, drain_timeout_ms=100.0)
    run(config, SchedulerConfig(), varieties(models), stop, lambda at: print(at, flush=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
