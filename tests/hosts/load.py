"""What a client's host runs: an open loop of requests, each of whose replies is counted.

``python -m tests.hosts.load ADDRESS WORKERS SECONDS RATE END [MODEL ...]``: wait until this number of workers
has all models prepared, print ``ready``, offer until there is a file END or the time is over, print
``offered``, and at last what came of it, as a line of JSON. Meanwhile another thread asks for the
controller's status again and again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.client.errors import MainspringError
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest
from mainspring.messages.peers import TensorHeader
from mainspring.messages.status import ClusterStatus
from tests.patience import PATIENCE_S

MODELS = ("quick-1", "quick-2")
SLO_NS = 500_000_000
QUIET_S = 3.0
"""After the last request's deadline, how long further replies would be waited for."""
LOOK_S = 0.1
"""Between two looks at the status."""


def prepared(status: ClusterStatus) -> list[str]:
    """Return the workers that have every model prepared."""
    return sorted(each.worker for each in status.workers if each.prepared == len(status.models) > 0)


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
            if len(prepared(found)) >= count:
                return found
        time.sleep(0.05)
    sys.exit(f"{count} workers did not come: {found}")


class Looks:
    """The controller's status, as often as it can be had while the block runs."""

    def __init__(self, address: str) -> None:
        self.seen: list[tuple[float, float, list[str]]] = []
        """When each was asked for and when it came, and the workers that had every model prepared."""
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        with Client(self._address) as client:
            while not self._stop.wait(LOOK_S):
                asked_s = time.monotonic()
                try:
                    found = prepared(client.status())
                except MainspringError:
                    continue
                self.seen.append((asked_s, time.monotonic(), found))


class Load:
    """Requests over a connection, and the replies to each by its key."""

    def __init__(self, address: str, inputs: list[tuple[str, TensorHeader, Any]]) -> None:
        """``inputs``: a model, and the tensor of each of its requests, of as many as take turns."""
        self.connection = Connection(address, name="load")
        self.replies: dict[int, list[str]] = {}
        self.sent_ns: dict[int, int] = {}
        self._inputs = inputs

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

    def offer(self, seconds: float, rate: float, end: Path) -> None:
        """Send requests at a steady rate."""
        began_s = time.monotonic()
        for number in range(round(seconds * rate)):
            if end.exists():
                return
            self.receive_until(began_s + number / rate)
            key = number + 1
            model, header, frame = self._inputs[number % len(self._inputs)]
            self.sent_ns[key], self.replies[key] = time.monotonic_ns(), []
            self.connection.send(InferRequest(key, model, (header,), SLO_NS), (frame,))


def inputs_of(client: Client, names: tuple[str, ...]) -> list[tuple[str, TensorHeader, Any]]:
    """Return a request's input for each of these models, one row of zeros."""
    specs = client.models()
    found = []
    for name in names:
        tensor = specs[name].inputs[0]
        frame = np.zeros((1, *tensor.shape), np.float32)
        found.append((name, TensorHeader(tensor.name, "float32", frame.shape), frame))
    return found


def main(address: str, count: str, seconds: str, rate: str, end: str, *models: str) -> None:
    """Offer a load."""
    with Client(address) as client:
        before = await_workers(client, int(count))
        load = Load(address, inputs_of(client, models or MODELS))
        while load.connection.welcome is None:
            load.receive_until(time.monotonic() + 0.05)
        with Looks(address) as looks:
            print("ready", flush=True)
            load.offer(float(seconds), float(rate), Path(end))
            print("offered", flush=True)
            load.receive_until(time.monotonic() + SLO_NS / 1e9 + QUIET_S)
        after = await_workers(client, int(count))
    found: dict[str, Any] = {
        "offered": len(load.replies),
        "replies": dict(Counter(len(each) for each in load.replies.values())),
        "outcomes": dict(Counter(reply for each in load.replies.values() for reply in each)),
        "each": [(load.sent_ns[key] / 1e9, *each) for key, each in load.replies.items()],
        "looks": looks.seen,
        "before": msgspec.to_builtins(before.workers),
        "after": msgspec.to_builtins(after.workers),
        "dropped": after.dropped_messages,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
