"""What `bench-http` counts, what it does to a server that is too slow, and what it makes of the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.http import Measured, kept, kept_at_best, load, refusals_of
from mainspring.experiments.bench.http_load import Plan, Result, Target, run
from mainspring.experiments.bench.http_servers import NoServer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


def measured(reply: Callable[[int], bytes], delay_s: float = 0.0, rate: float | None = None) -> Result:
    """Put a short load on a server that answers its nth request so; every reply comes in two parts."""

    async def both() -> Result:
        count = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b"x-more: 1" in head
                    assert await reader.readexactly(7) == b'{"a":1}'
                    count += 1
                    answer = reply(count)
                    await asyncio.sleep(delay_s)
                    writer.write(answer[:20])
                    await asyncio.sleep(0)
                    writer.write(answer[20:])
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = Target(server.sockets[0].getsockname()[1], "/x", '{"a":1}', (("x-more", "1"),))
        plan = Plan(target=target, seconds=0.3, connections=4, rate=rate, warmup_s=0.1, patience_ms=100.0)
        try:
            return await run(plan)
        finally:
            server.close()

    return asyncio.run(both())


def test_a_closed_loop_counts_answers_and_refusals() -> None:
    result = measured(lambda count: BUSY if count % 4 == 0 else OK)
    assert result.answered > 0
    assert result.refused.keys() == {"503"}
    assert result.asked == result.answered + result.refused["503"]
    assert result.p50_ms is not None


def test_a_server_that_has_gone_is_said_to_have() -> None:
    [port] = free_ports(1)
    with pytest.raises(NoServer, match="its load ended with code 1: ConnectionRefusedError"):
        load(Plan(target=Target(port, "/", "{}"), seconds=0.1, connections=1))


def result_of(rate: float, p99_ms: float, in_time: float) -> Result:
    return Result(int(rate), int(rate), int(in_time), {}, 1.0, 1.0, p99_ms, 0.0, 0.1)


def server_of(rate: float, p99_ms: float, late_goodput: float) -> Measured:
    closed = {count: result_of(rate, 1.0, rate) for count in (1, 8, 32)}
    opened = {
        0.8: result_of(rate, 1, rate),
        1.0: result_of(rate, 1, rate),
        1.5: result_of(rate, 1, late_goodput),
    }
    return Measured(closed, result_of(rate, p99_ms, rate), opened, rate)


def test_what_is_left_of_goodput_past_saturation_is_told() -> None:
    found = kept([server_of(900, 5, 800)])
    assert (found.value, found.met) == (800 / 900, False)


def test_a_bare_loop_refuses_every_request() -> None:
    assert refusals_of(0.2) > 0


@pytest.mark.parametrize(
    ("saturation", "refusals", "left"),
    # All of 1.5 times 1,000 are served or refused: 500 of 1,000 and 1,000 of 2,000 fill the second.
    [(1_000, 2_000, 0.5), (1_000, 1e9, 1.0), (1_000, 1_200, 0.0), (1_000, 900, 0.0)],
)
def test_what_refusing_leaves_is_served(saturation: float, refusals: float, left: float) -> None:
    assert kept_at_best(1.5, saturation, refusals) == pytest.approx(left, abs=1e-3)
