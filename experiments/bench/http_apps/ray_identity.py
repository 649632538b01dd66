"""Ray Serve with an identity model: ``python ray_identity.py FOLDER PORT``."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import Any

# By default a proxy that is not ready within 5 s, or not heard of for 10 s, is stopped and started anew: on
# two busy cores it never comes to serve. Ray's processes read this when they start.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")
os.environ.setdefault("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "120")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

STARTS = 3
"""Ray gives its processes 30 s to begin, which can't be set."""
OBJECT_STORE_BYTES = 128 << 20
"""Nothing of this model is ever put there; by default it is a third of the machine's memory."""

ray: Any = importlib.import_module("ray")
serve: Any = importlib.import_module("ray.serve")


class Identity:
    """Returns what it is given."""

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Return the input as the output."""
        return {"output": (await request.json())["input"]}


def start() -> None:
    """Start Ray on this machine, again if it was too slow to begin."""
    for left in reversed(range(STARTS)):
        try:
            # One processor, for the model: the proxy and the controller are counted as none. Each that is
            # announced has a process started in advance, which is what takes the time.
            ray.init(
                num_cpus=1,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
            )
        except Exception as error:
            if not left:
                raise
            print(f"Ray did not start, {left} more attempts: {error}", flush=True)
            ray.shutdown()
        else:
            return


if __name__ == "__main__":
    start()
    stop = threading.Event()
    # Ray's processes are in groups of their own and end only if they are told.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    # By default five at once: at a concurrency of eight it would refuse to take the rest.
    serve.run(serve.deployment(Identity, max_ongoing_requests=128).bind(), name="identity", route_prefix="/")
    stop.wait()
    serve.shutdown()
    ray.shutdown()
