"""A synchronous client: one request with a deadline, and what to do if it can't be met.

mainspring up --store store --pages 64
python examples/sync_client.py MODEL
"""

from __future__ import annotations

import sys

import numpy as np

from mainspring import Client, DeadlineError


def main(model: str, address: str = "tcp://127.0.0.1:7400", slo_ms: float = 100.0) -> None:
    """Send one row of zeros to a model and print what came back."""
    with Client(address) as client:
        specs = {spec.name: spec for spec in client.models()}
        if model not in specs:
            sys.exit(f"{model} is not served; these are: {', '.join(specs) or 'none'}")
        spec = specs[model]
        inputs = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs}
        try:
            result = client.infer(model, inputs, slo_ms=slo_ms)
        except DeadlineError as error:
            print(f"not in time: {error}")
            return
    for name, array in result.items():
        print(f"{name}: {array.dtype.name} {array.shape}")
    print(f"took {result.timing.total_ns / 1e6:.1f} ms on {result.timing.worker}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} MODEL")
    main(sys.argv[1])
