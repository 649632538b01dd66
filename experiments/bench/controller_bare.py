"""A controller that decides nothing: what its connections and messages cost by themselves.

It takes the same peers over the same connections (`controller_peers`), decodes every message, answers each
arrival with an INFER for the next worker and a Dispatch, both encoded, and what one turn has to say to a peer
leaves in one write, as the controller's does. The scheduler's cost alone is measured beside it; the sum of
the two is what a controller with this scheduler could take at least.
``python -m mainspring.experiments.bench.controller_bare ADDRESS`` prints a line once it listens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import defaultdict

from mainspring.cli.launcher.process_plan import CONTROL_PRIORITY
from mainspring.experiments.bench.controller_peers import LIMITS
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Infer
from mainspring.messages.codec import TO_CONTROLLER, encode
from mainspring.messages.peers import Arrival, Dispatch, GatewayHello, Welcome, WorkerHello
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener

BURST = 64
"""Messages that are taken before what they bring about is sent."""
WAIT_NS = 50_000_000
EXECUTE_NS = 3_000_000


class BareController:
    """Answers peers; one thread calls it."""

    def __init__(self, address: str) -> None:
        """Listen; raise OSError if the address is taken."""
        self._hub = Hub()
        self._peers = Listener(self._hub, address, LIMITS, Pass("controller"))
        self.address = self._peers.address
        self._workers: list[tuple[bytes, str]] = []
        self._actions = 0
        self._out: defaultdict[bytes, list[bytes]] = defaultdict(list)

    def serve(self, stop: threading.Event) -> None:
        """Answer until the event is set."""
        while not stop.is_set():
            self._hub.wait(WAIT_NS)
            for _ in range(BURST):
                received = self._peers.receive()
                if received is None:
                    break
                self._take(*received)
            for peer, messages in self._out.items():
                self._peers.send_all(peer, messages)
            self._out.clear()
        self._hub.close()

    def _take(self, peer: bytes, parts: list[bytes]) -> None:
        match TO_CONTROLLER.decode(parts[0]):
            case Arrival(request_id=request_id, model=model, rows=rows):
                self._actions += 1
                to, worker = self._workers[self._actions % len(self._workers)]
                now_ns = time.monotonic_ns()
                one = (request_id,), (rows,), (False,)
                infer = Infer(
                    *(
                        self._actions,
                        worker,
                        model,
                        rows,
                        *one,
                        now_ns,
                        now_ns + EXECUTE_NS,
                        now_ns,
                        EXECUTE_NS,
                    )
                )
                self._out[to].append(encode(infer))
                self._out[peer].append(encode(Dispatch(self._actions, worker, (request_id,), (False,), rows)))
            case GatewayHello():
                self._out[peer].append(encode(Welcome(PROTOCOL_VERSION, 1)))
            case WorkerHello(worker=name):
                self._workers.append((peer, name))
                self._out[peer].append(encode(Welcome(PROTOCOL_VERSION, 1)))


def main(address: str) -> None:
    """Serve until SIGTERM."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CONTROL_PRIORITY))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    bare = BareController(address)
    print(bare.address, flush=True)
    bare.serve(stop)


if __name__ == "__main__":
    main(sys.argv[1])
