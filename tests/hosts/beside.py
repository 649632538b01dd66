"""What a client's host runs to compare two clusters: each request goes to both of them, in blocks.

``python -m tests.hosts.beside ADDRESS OTHER``: wait until both can serve, print ``ready``, send, print
``offered``, and at last how many requests of each block each cluster answered in time, as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future
from typing import Any

import numpy as np

from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from tests.hosts.goodput import BLOCKS, PAIRS
from tests.hosts.load import MODELS, await_workers
from tests.patience import PATIENCE_S

RATE = 100.0
SLO_MS = 100.0


def in_time(future: Future[Any]) -> bool:
    """Return whether a request was answered within its SLO."""
    try:
        return bool(future.result(PATIENCE_S).timing.elapsed_ns <= SLO_MS * 1e6)
    except MainspringError:
        return False


def main(*addresses: str) -> None:
    """Send each request to both clusters, first to one and the next time first to the other."""
    one, other = (Client(address) for address in addresses)
    with one, other:
        for client in (one, other):
            await_workers(client, 1)
        inputs = {"data": np.zeros((1, *one.models()[MODELS[0]].inputs[0].shape), np.float32)}
        for client in (one, other):
            for model in MODELS * 20:
                in_time(client.submit(model, inputs, slo_ms=SLO_MS))
        print("ready", flush=True)
        began_s, futures = time.monotonic(), []
        for number in range(BLOCKS * PAIRS):
            time.sleep(max(0.0, began_s + number / RATE - time.monotonic()))
            pair: list[Any] = [None, None]
            for place in (0, 1) if number % 2 else (1, 0):
                pair[place] = (one, other)[place].submit(
                    MODELS[number // 2 % len(MODELS)], inputs, slo_ms=SLO_MS
                )
            futures.append(pair)
        print("offered", flush=True)
        found = np.array([[in_time(each) for each in pair] for pair in futures])
    print(json.dumps(found.reshape(BLOCKS, PAIRS, 2).sum(axis=1).tolist()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
