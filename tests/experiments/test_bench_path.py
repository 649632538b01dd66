"""What `make bench-path` counts of processes, and what it makes of the counts."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from mainspring.experiments.bench import around, least
from mainspring.experiments.bench.around import (
    CHAIN,
    HTTP,
    IN_PLACE,
    LOCAL,
    LOCAL_FRAMES,
    ZEROMQ,
    Around,
)
from mainspring.experiments.bench.usage import MAIN, Usage, calls_of, counted, usage_of, usage_of_threads
from mainspring.worker.realtime import name_thread
from tests.gateway.fakes import wait_until

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 63.10    0.000118           2        50           epoll_wait
 36.90    0.000069           0       120        20 sendmsg
------ ----------- ----------- --------- --------- ----------------
100.00    0.000187           1       170        20 total
"""


def test_each_thread_s_time_and_wake_ups_count_under_its_name() -> None:
    go, stop = threading.Semaphore(0), threading.Event()

    def work() -> None:
        name_thread("sleeper")
        while go.acquire() and not stop.is_set():
            sum(range(2_000_000))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    go.release()
    wait_until(lambda: _sleeper().cpu_ns > 1_000_000)
    wait_until(lambda: _sleeper().wakeups >= 1)
    found = usage_of_threads(os.getpid())
    assert found[MAIN].cpu_ns > 0
    assert usage_of(os.getpid()).cpu_ns >= found["sleeper"].cpu_ns + found[MAIN].cpu_ns
    stop.set()
    go.release()
    thread.join()


def _sleeper() -> Usage:
    return usage_of_threads(os.getpid()).get("sleeper", Usage())


def test_system_calls_are_read_from_strace_s_summary() -> None:
    assert list(counted(SUMMARY).items()) == [("sendmsg", 120), ("epoll_wait", 50)]
    assert counted("") == {}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_system_calls_of_another_process_are_counted_while_the_block_runs() -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        while theirs.recv(1) == b"x":
            theirs.send(b"y")
        os._exit(0)
    with calls_of({"echo": child}) as calls:
        for _ in range(20):
            ours.send(b"x")
            assert ours.recv(1) == b"y"
    ours.send(b"!")
    os.waitpid(child, 0)
    assert calls["echo"]["sendto"] == 20


def test_a_cluster_s_threads_are_counted_for_requests_over_zeromq_and_http(tmp_path: Path) -> None:
    found = around.measure(4.0, around.BLOCK, tmp_path)
    kinds = (ZEROMQ, LOCAL_FRAMES, LOCAL, IN_PLACE, HTTP, CHAIN)
    assert {kind: len(blocks) for kind, blocks in found.blocks.items()} == dict.fromkeys(kinds, 1)
    (chain,) = found.blocks.pop(CHAIN)
    assert {name for name, _ in chain} == set(least.ROLES), "the cluster's processes are no part of it"
    for role in least.ROLES:
        assert chain[role, MAIN].wakeups >= around.BLOCK
    for (block,) in found.blocks.values():
        for key in (("gateway", MAIN), ("controller", MAIN), ("worker-0", MAIN), ("worker-0", "exec")):
            assert block[key].wakeups >= around.BLOCK
    rows = {figure.name: figure for figure in around.figures_of(4.0, found)}
    total = rows["4 KB, HTTP: CPU around EXEC"].value
    parts = [figure.value for name, figure in rows.items() if name.startswith("4 KB, HTTP:   CPU of")]
    assert total * 1e3 == pytest.approx(sum(parts), rel=0.05)
    if shutil.which("strace"):
        assert rows["4 KB, HTTP:   system calls of gateway"].value >= 4


def test_what_a_request_costs_is_the_median_of_the_blocks() -> None:
    key = ("gateway", MAIN)
    blocks = [{key: Usage(cpu_us * 1000 * around.BLOCK, 0, 100, 50)} for cpu_us in (400, 500, 9000)]
    found = Around({HTTP: blocks}, {HTTP: {"gateway": {"read": 75}}}, {key: Usage(10**7)}, 0.005)
    total, gateway, calls = around.figures_of(around.TARGET_KB, found)
    assert total.value == pytest.approx(0.5)
    assert total.target == around.TARGET_MS
    assert "of it 0.05 ms" in total.note
    assert gateway.value == pytest.approx(500)
    assert gateway.note == "1.0 wake-ups, 2.0 turns"
    assert (calls.value, calls.note) == (1.5, "read 1.5")
