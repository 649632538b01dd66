"""A controller of `varieties` with an event log, for a benchmark.

``python -m mainspring.experiments.bench.console_controller ADDRESS FOLDER`` prints a line once it listens.
"""

from __future__ import annotations

import signal
import sys
import threading

from mainspring.controller.config import ControllerConfig
from mainspring.controller.server import run
from mainspring.experiments.scheduler_load import Setting, varieties
from mainspring.scheduler.config import SchedulerConfig


def main(address: str, folder: str) -> None:
    """Serve until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = ControllerConfig(address=address, event_log_dir=folder, drain_timeout_ms=100.0)
    models = varieties(Setting().models)
    run(config, SchedulerConfig(), models, stop, lambda at: print(at, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
