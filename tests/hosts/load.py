"""What a client's host runs: an open loop of requests, each of whose replies is counted.

``python -m tests.hosts.load ADDRESS WORKERS SECONDS RATE``: wait until this number of workers has all
models prepared, print ``ready``, offer, print ``offered``, and at last what came of it, as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import MainspringError
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest
from mainspring.messages.peers import ClusterStatus, TensorHeader
from tests.patience import PATIENCE_S

MODELS = ("quick-1", "quick-2")
SLO_NS = 500_000_000
QUIET_S = 3.0
"""After the last request's deadline, how long further replies would be waited for."""
FRAME = np.zeros((1, 1000), np.float32)
HEADER = TensorHeader("data", "float32", (1, 1000))


def await_workers(client: Client, count: int) -> ClusterStatus:
    """Wait for workers with every model prepared; return the status."""
    give_up_s = time.monotonic() + PATIENCE_S
    found = None
    while time.monotonic() < give_up_s:
        try:
            found = client.status()
        except MainspringError:
            pass
        else:
            if sum(each.prepared == len(found.models) > 0 for each in found.workers) >= count:
                return found
        time.sleep(0.05)
    sys.exit(f"{count} workers did not come: {found}")


class Load:
    """Requests over a connection, and the replies to each by its key."""

    def __init__(self, address: str) -> None:
        self.connection = Connection(address, name="load")
        self.replies: dict[int, list[str]] = {}
        self.sent_ns: dict[int, int] = {}
        self.unsent = 0

    def receive_until(self, until_s: float) -> None:
        """Take replies in until an instant."""
        while (left_s := until_s - time.monotonic()) > 0:
            self.connection.poll(left_s * 1e3)
            while (received := self.connection.receive()) is not None:
                match received[0]:
                    case InferReply(key=key):
                        late = time.monotonic_ns() - self.sent_ns[key] > SLO_NS
                        self.replies[key].append("late" if late else "served")
                    case ErrorReply(key=key, reason=reason):
                        self.replies[key].append(str(reason))

    def offer(self, seconds: float, rate: float) -> None:
        """Send requests at a steady rate."""
        began_s = time.monotonic()
        for number in range(round(seconds * rate)):
            self.receive_until(began_s + number / rate)
            key = number + 1
            self.sent_ns[key], self.replies[key] = time.monotonic_ns(), []
            self.connection.send(InferRequest(key, MODELS[number % len(MODELS)], (HEADER,), SLO_NS), (FRAME,))


def main(address: str, count: str, seconds: str, rate: str) -> None:
    """Offer a load."""
    with Client(address) as client:
        before = await_workers(client, int(count))
        load = Load(address)
        while load.connection.welcome is None:
            load.receive_until(time.monotonic() + 0.05)
        print("ready", flush=True)
        load.offer(float(seconds), float(rate))
        print("offered", flush=True)
        load.receive_until(time.monotonic() + SLO_NS / 1e9 + QUIET_S)
        after = await_workers(client, int(count))
    found: dict[str, Any] = {
        "offered": len(load.replies),
        "replies": dict(Counter(len(each) for each in load.replies.values())),
        "outcomes": dict(Counter(reply for each in load.replies.values() for reply in each)),
        "before": msgspec.to_builtins(before.workers),
        "after": msgspec.to_builtins(after.workers),
        "dropped": after.dropped_messages,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
