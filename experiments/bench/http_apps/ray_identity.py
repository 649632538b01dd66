"""Ray Serve with an identity model: ``python ray_identity.py PORT``."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

ray: Any = importlib.import_module("ray")
serve: Any = importlib.import_module("ray.serve")


class Identity:
    """Returns what it is given."""

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Return the input as the output."""
        return {"output": (await request.json())["input"]}


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    # By default five at once: at a concurrency of eight it would refuse to take the rest.
    serve.run(serve.deployment(Identity, max_ongoing_requests=128).bind(), name="identity", route_prefix="/")
    threading.Event().wait()
