"""An asynchronous client with 1,000 requests in flight on one connection.

python examples/async_client.py MODEL
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import numpy as np

from mainspring import AsyncClient, MainspringError

REQUESTS = 1_000


async def main(model: str, address: str = "tcp://127.0.0.1:7400", slo_ms: float = 1_000.0) -> Counter[str]:
    """Send all requests at once; return and print how many were answered, and why the others were not."""
    async with AsyncClient(address) as client:
        specs = {spec.name: spec for spec in await client.models()}
        if model not in specs:
            sys.exit(f"{model} is not served; these are: {', '.join(specs) or 'none'}")
        spec = specs[model]
        inputs = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs}

        async def one() -> str:
            try:
                await client.infer(model, inputs, slo_ms=slo_ms)
            except MainspringError as error:
                return type(error).__name__
            return "answered"

        outcomes = Counter(await asyncio.gather(*(one() for _ in range(REQUESTS))))
    for outcome, count in outcomes.most_common():
        print(f"{count:5d} {outcome}")
    return outcomes


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} MODEL")
    asyncio.run(main(sys.argv[1]))
