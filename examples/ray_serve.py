"""An application of Ray Serve whose model runs in Mainspring, with a deadline for each request.

python examples/ray_serve.py MODEL        # then: curl -d '{"data": [[1, 2, 3, 4]]}' http://127.0.0.1:8100

It needs Ray Serve (pip install 'ray[serve]') and a running cluster of Mainspring. A request that can't be
answered in time is refused with status 503, at once.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import mainspring.ray
from mainspring import DeadlineError, InvalidRequest

PORT = 8100


class Front:
    """Takes JSON with the model's inputs, and replies with its outputs."""

    def __init__(self, model: mainspring.ray.Handle) -> None:
        self._model = model

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request."""
        inputs = {name: np.asarray(rows, np.float32) for name, rows in (await request.json()).items()}
        try:
            outputs = await self._model.remote(inputs)
        except DeadlineError as error:
            return JSONResponse({"error": str(error)}, 503)
        except InvalidRequest as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({name: array.tolist() for name, array in outputs.items()})


def application(model: str, slo_ms: float = 100.0, address: str | None = None) -> Any:
    """Return the application for `serve.run`."""
    return serve.deployment(Front).bind(mainspring.ray.handle(model, slo_ms=slo_ms, address=address))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} MODEL")
    serve.start(http_options={"port": PORT})
    serve.run(application(sys.argv[1]), blocking=True)
