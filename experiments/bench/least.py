"""The least that a request over HTTP costs three Python processes around EXEC if nobody decides or checks.

A gateway, a controller and a worker with one connection between each two, as Mainspring's have: the gateway
receives a body into memory that it shares with the worker and parses nothing but the head's length; the
controller answers a short message with one to each of the others; the worker copies the input to memory of
its own, has another thread sleep as long as EXEC would, and sends a short result and an output, which begins
with how long that sleep was. Messages are bytes made beforehand, one system call each; every process waits
with epoll. What is left is what the kernel and the interpreter take for these calls, wake-ups and copies.
``bench.around`` counts its processor time in turns with the cluster's, ``bench.path`` what it adds to EXEC.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import queue
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mainspring.cli.launcher.addresses import free_ports

SMALL = bytes(120)
HEAD_BYTES = 64 << 10
"""Read at first, as the gateway does: the head, and what of the body came with it."""
START_S = 10.0
SLEPT = struct.Struct("<q")
GATEWAY, CONTROLLER, WORKER = ROLES = ("bare gateway", "bare controller", "bare worker")


class Waits:
    """Calls what belongs to a descriptor whenever it can be read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def add(self, end: socket.socket, call: Callable[[], None]) -> None:
        """Call this from now on."""
        self._calls[end.fileno()] = call
        self._epoll.register(end.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Wait for ever."""
        while True:
            for descriptor, _ in self._epoll.poll():
                self._calls[descriptor]()


def gateway(given: dict[str, int], sizes: dict[str, int]) -> None:
    """Receive requests one after the other, of one client."""
    shared = np.frombuffer(mmap.mmap(given["memory"], sizes["input"] + HEAD_BYTES), np.uint8)
    listener, control, data = (socket.socket(fileno=given[name]) for name in ("http", "gc", "gw"))
    waits = Waits()
    view = memoryview(shared.data)
    head = bytearray(HEAD_BYTES)
    state = {"left": 0, "head": 0}
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sizes["output"]
    clients: list[socket.socket] = []

    def accept() -> None:
        client = listener.accept()[0]
        client.setblocking(False)
        clients.append(client)
        waits.add(client, read)

    def read() -> None:
        client = clients[-1]
        with contextlib.suppress(BlockingIOError):
            if not state["left"]:
                # A head may come in two pieces.
                count = state["head"] = state["head"] + client.recv_into(memoryview(head)[state["head"] :])
                end = head.find(b"\r\n\r\n", 0, count) + 4
                if end < 4:
                    return
                state["head"] = 0
                length = int(bytes(head[:end]).lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                view[: count - end] = head[end:count]
                state["left"] = length - (count - end)
                state["size"] = length
            while state["left"]:
                begin = state["size"] - state["left"]
                count = client.recv_into(view[begin : state["size"]])
                state["left"] -= count
            control.send(SMALL)

    def dispatched() -> None:
        control.recv(1024)
        data.send(SMALL)

    def answered() -> None:
        output = data.recv(HEAD_BYTES)
        clients[-1].sendmsg((answer, output[: sizes["output"]]))

    waits.add(listener, accept)
    waits.add(control, dispatched)
    waits.add(data, answered)
    waits.run()


def controller(given: dict[str, int], _sizes: dict[str, int]) -> None:
    """Answer an arrival to both, and take results."""
    to_gateway, to_worker = (socket.socket(fileno=given[name]) for name in ("gc", "cw"))
    waits = Waits()

    def arrived() -> None:
        to_gateway.recv(1024)
        to_worker.send(SMALL)
        to_gateway.send(SMALL)

    waits.add(to_gateway, arrived)
    waits.add(to_worker, lambda: None if to_worker.recv(1024) else sys.exit())
    waits.run()


def worker(given: dict[str, int], sizes: dict[str, int]) -> None:
    """Copy inputs, have EXEC's thread sleep, and send outputs."""
    mapped = mmap.mmap(given["memory"], sizes["input"] + HEAD_BYTES, prot=mmap.PROT_READ)
    shared = np.frombuffer(mapped, np.uint8)
    own = np.zeros(sizes["input"], np.uint8)
    to_controller, to_gateway = (socket.socket(fileno=given[name]) for name in ("cw", "gw"))
    bell, ring = socket.socketpair()
    waits = Waits()
    jobs: queue.SimpleQueue[float] = queue.SimpleQueue()
    output = bytes(sizes["output"] - SLEPT.size)

    def execute() -> None:
        while True:
            sleep_s = jobs.get()
            began_ns = time.monotonic_ns()
            time.sleep(sleep_s)
            ring.send(SLEPT.pack(time.monotonic_ns() - began_ns))

    def placed() -> None:
        to_gateway.recv(1024)
        own[:] = shared[: sizes["input"]]
        jobs.put(sizes["execute_us"] / 1e6)

    def ended() -> None:
        to_gateway.sendmsg((bell.recv(SLEPT.size), output))
        to_controller.send(SMALL)

    threading.Thread(target=execute, daemon=True, name="exec").start()
    waits.add(to_controller, lambda: None if to_controller.recv(1024) else sys.exit())
    waits.add(to_gateway, placed)
    waits.add(bell, ended)
    waits.run()


RUN: dict[str, Callable[[dict[str, int], dict[str, int]], None]] = {
    GATEWAY: gateway,
    CONTROLLER: controller,
    WORKER: worker,
}


@contextlib.contextmanager
def chain(input_bytes: int, output_bytes: int, execute_ms: float) -> Iterator[tuple[int, dict[str, int]]]:
    """Run the three processes; yield the port that takes requests over HTTP, and their process ids."""
    kind = socket.SOCK_SEQPACKET
    gc, gw, cw = (socket.socketpair(socket.AF_UNIX, kind) for _ in range(3))
    memory = os.memfd_create("bare-chain")
    os.ftruncate(memory, input_bytes + HEAD_BYTES)
    (port,) = free_ports(1)
    listener = socket.create_server(("127.0.0.1", port))
    ends: dict[str, dict[str, int]] = {
        GATEWAY: {"http": listener.fileno(), "gc": gc[0].fileno(), "gw": gw[0].fileno(), "memory": memory},
        CONTROLLER: {"gc": gc[1].fileno(), "cw": cw[0].fileno()},
        WORKER: {"gw": gw[1].fileno(), "cw": cw[1].fileno(), "memory": memory},
    }
    sizes = {"input": input_bytes, "output": output_bytes, "execute_us": round(execute_ms * 1000)}
    processes: dict[str, subprocess.Popen[Any]] = {}
    try:
        for role, given in ends.items():
            said = json.dumps([role, given, sizes])
            processes[role] = subprocess.Popen(
                [sys.executable, "-m", "mainspring.experiments.bench.least", said],
                pass_fds=list(given.values()),
            )
        yield port, {role: process.pid for role, process in processes.items()}
    finally:
        for process in processes.values():
            process.terminate()
            process.wait(START_S)
        for end in (*gc, *gw, *cw, listener):
            end.close()
        os.close(memory)


def main() -> None:
    """Play the part that the command line names."""
    role, given, sizes = json.loads(sys.argv[1])
    RUN[role](given, sizes)


if __name__ == "__main__":
    main()
